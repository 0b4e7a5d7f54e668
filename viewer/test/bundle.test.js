// Builds the page and the module: the page's script has a limit, and the module leaves the training to a second file.

import { gzipSync } from "node:zlib";
import { build } from "vite";
import { expect, test } from "vitest";

const MAX_PAGE = 300_000; // bytes of the page's script, compressed
const MAX_MODULE = 100_000; // bytes of glgpt.js and what it imports at once, compressed

/** Returns the scripts of a build. */
async function scripts(mode) {
  const found = [await build({ mode, logLevel: "silent", build: { write: false } })].flat();
  return found[0].output.filter(({ type }) => type === "chunk");
}

test("the page is one script within its limit", { timeout: 60_000 }, async () => {
  const [page, ...others] = await scripts("production");
  expect(others).toEqual([]);
  expect(gzipSync(page.code, { level: 9 }).length).toBeLessThan(MAX_PAGE);
});

test("the module loads the training when it is called", { timeout: 60_000 }, async () => {
  const [module, ...others] = await scripts("embed");
  const first = [module, ...others.filter(({ fileName }) => module.imports.includes(fileName))];
  expect(first.flatMap(({ modules }) => Object.keys(modules)).filter((path) => path.includes("/src/training"))).toEqual(
    [],
  );
  expect(module.dynamicImports).toHaveLength(1);
  const size = first.reduce((sum, { code }) => sum + gzipSync(code, { level: 9 }).length, 0);
  expect(size).toBeLessThan(MAX_MODULE);
});
