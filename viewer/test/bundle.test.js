// Builds the page and the module. Checks their sizes, and that the module's training code is in a second file.

import { readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { build } from "vite";
import { expect, test } from "vitest";

const MAX_PAGE = 300_000; // compressed bytes of the page's script
const MAX_MODULE = 95_000; // compressed bytes of glgpt.js and of its static imports

/** Returns the scripts of a build. */
async function scripts(mode) {
  const found = [await build({ mode, logLevel: "silent", build: { write: false } })].flat();
  return found[0].output.filter(({ type }) => type === "chunk");
}

test("no schema has the keyword `format`, which the page's validator ignores", () => {
  const folder = new URL("../schema/", import.meta.url);
  for (const name of readdirSync(folder))
    expect(readFileSync(new URL(name, folder), "utf8")).not.toMatch(/"format": "/);
});

test("the page is one script within its size limit", { timeout: 60_000 }, async () => {
  const [page, ...others] = await scripts("production");
  expect(others).toEqual([]);
  expect(gzipSync(page.code, { level: 9 }).length).toBeLessThan(MAX_PAGE);
});

test("the module loads the training code only when a caller trains", { timeout: 60_000 }, async () => {
  const [module, ...others] = await scripts("embed");
  const first = [module, ...others.filter(({ fileName }) => module.imports.includes(fileName))];
  expect(first.flatMap(({ modules }) => Object.keys(modules)).filter((path) => path.includes("/src/training"))).toEqual(
    [],
  );
  expect(module.dynamicImports).toHaveLength(1);
  const size = first.reduce((sum, { code }) => sum + gzipSync(code, { level: 9 }).length, 0);
  expect(size).toBeLessThan(MAX_MODULE);
});
