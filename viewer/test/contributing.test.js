// Adds a view to a copy of the page as CONTRIBUTING describes. Fails if tsc, eslint, prettier or the build refuses the
// view.

import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { ESLint } from "eslint";
import prettier from "prettier";
import ts from "typescript";
import { build } from "vite";
import { expect, test } from "vitest";

const COPIED = ["src", "schema", "index.html", "package.json", "tsconfig.json", "eslint.config.js", "vite.config.ts"];

/** Returns the code of the view in CONTRIBUTING's list, the line that imports the view, and its name. */
async function recipe() {
  const text = await readFile("../CONTRIBUTING.md", "utf8");
  const section = text.split("## Adding a view of the page\n")[1].split("\n## ")[0];
  const [, view] = /```tsx\n([^]*?)```/.exec(section);
  const [, line, name] = /`(import \{ view as (\w+) \} from [^`]+)`/.exec(section);
  return { view, line, name };
}

/** Copies the page to `folder` and adds the view. Returns the paths of the view's file and of the list of views. */
async function follow(folder, { view, line, name }) {
  for (const each of COPIED) await cp(each, join(folder, each), { recursive: true });
  await cp("../glsl", join(folder, "../glsl"), { recursive: true });
  await symlink(resolve("node_modules"), join(folder, "node_modules"));
  const features = join(folder, "src/app/features");
  const [added, index] = [join(features, name, "view.tsx"), join(features, "index.ts")];
  await mkdir(join(features, name));
  await writeFile(added, view);
  const before = await readFile(index, "utf8");
  const imported = before.replace(/import \{ view as .*\n/, (first) => `${first}${line}\n`);
  await writeFile(index, imported.replace(/(VIEWS: [^=]*= \[[^\]]*)/, `$1, ${name}`));
  return [added, index];
}

/** Returns a TypeScript program of these files, with the options of the folder's tsconfig.json. */
function programOf(folder, files) {
  const { config } = ts.readConfigFile(join(folder, "tsconfig.json"), ts.sys.readFile);
  return ts.createProgram(files, ts.parseJsonConfigFileContent(config, ts.sys, folder).options);
}

/** Returns the messages of tsc and eslint about these files. */
async function complaints(folder, files) {
  const program = programOf(folder, files);
  const errors = files.flatMap((file) => ts.getPreEmitDiagnostics(program, program.getSourceFile(file)));
  const parserOptions = { projectService: false, programs: [program] }; // eslint uses the types that tsc has loaded
  const eslint = new ESLint({ cwd: folder, overrideConfig: { languageOptions: { parserOptions } } });
  const linted = (await eslint.lintFiles(files)).flatMap(({ messages }) => messages);
  return [
    ...errors.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n")),
    ...linted.map(({ message }) => message),
  ];
}

test("a view is added as CONTRIBUTING says", { timeout: 120_000 }, async () => {
  const temporary = await mkdtemp(join(tmpdir(), "view"));
  const folder = join(temporary, "viewer");
  try {
    const made = await recipe();
    const files = await follow(folder, made);
    expect(await complaints(folder, files)).toEqual([]);
    for (const file of files) {
      const options = { ...(await prettier.resolveConfig(resolve("package.json"))), filepath: file };
      expect(await prettier.check(await readFile(file, "utf8"), options)).toBe(true);
    }
    const { output } = await build({ root: folder, logLevel: "silent", build: { write: false, minify: false } });
    const script = output.find(({ type }) => type === "chunk").code;
    const title = /title: "(\w+)"/.exec(made.view)[1];
    expect(script).toContain(`title: "${title}"`);
  } finally {
    await rm(temporary, { recursive: true });
  }
});
