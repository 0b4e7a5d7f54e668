// Checks that the published types (glgpt.d.ts) compile, and that a program that uses them compiles.

import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import ts from "typescript";
import { expect, test } from "vitest";

test("a program compiles with the published types", { timeout: 120_000 }, async () => {
  const folder = await mkdtemp(join(tmpdir(), "types"));
  try {
    const rolldown = resolve("node_modules/rolldown/bin/cli.mjs");
    await promisify(execFile)(process.execPath, [rolldown, "-c", "types.config.ts", "-d", folder]);
    const program = ts.createProgram([resolve("test/consumer.ts")], {
      target: ts.ScriptTarget.ES2022,
      module: ts.ModuleKind.ESNext,
      moduleResolution: ts.ModuleResolutionKind.Bundler,
      lib: ["lib.es2022.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts", "lib.dom.asynciterable.d.ts"],
      types: [],
      strict: true,
      noEmit: true,
      skipDefaultLibCheck: true,
      paths: { glgpt: [join(folder, "glgpt.d.ts")] },
    });
    const found = ts.getPreEmitDiagnostics(program);
    expect(found.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n"))).toEqual([]);
    expect(program.getSourceFiles().map(({ fileName }) => fileName)).not.toContain(resolve("src/embed.ts"));
  } finally {
    await rm(folder, { recursive: true });
  }
});
