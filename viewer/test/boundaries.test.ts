// Checks the import rules of eslint.config.js: a deliberate violation of each is an error.

import { ESLint, Linter } from "eslint";
import { expect, test } from "vitest";

const RULES = ["no-restricted-imports", "no-restricted-globals"];

async function violations(file: string, code: string): Promise<(string | null)[]> {
  const config = (await new ESLint().calculateConfigForFile(file)) as Linter.Config;
  const rules = Object.fromEntries(RULES.flatMap((rule) => (config.rules?.[rule] ? [[rule, config.rules[rule]]] : [])));
  const { parser } = config.languageOptions ?? {};
  const alone = { files: ["**/*.ts"], languageOptions: parser ? { parser } : {}, rules };
  return new Linter().verify(code, [alone], { filename: "any.ts" }).map((found) => found.ruleId);
}

const [IMPORT, GLOBAL] = ["no-restricted-imports", "no-restricted-globals"];

test.each([
  ["src/gl/a.ts", 'import "../engine/chunks";', [IMPORT]],
  ["src/gl/a.ts", 'import "../document";', [IMPORT]],
  ["src/gl/a.ts", "document.title = '';", [GLOBAL]],
  ["src/gl/a.ts", 'import "./wait";', []],
  ["src/engine/a.ts", 'import "../training/session";', [IMPORT]],
  ["src/engine/a.ts", 'import "../ui/state";', [IMPORT]],
  ["src/engine/a.ts", 'import "../document";', [IMPORT]],
  ["src/engine/a.ts", 'import { signal } from "@preact/signals"; requestAnimationFrame(signal);', [IMPORT, GLOBAL]],
  ["src/engine/a.ts", 'import "../gl/player"; import "../../schema/manifest.schema.json";', []],
  ["src/training/a.ts", 'import "../ui/drawing/painter";', [IMPORT]],
  ["src/training/a.ts", 'import "uplot";', [IMPORT]],
  ["src/training/a.ts", 'import "../engine/model"; import "../gl/player";', []],
  ["src/api.ts", 'import "./ui/state";', [IMPORT]],
  ["src/ui/a.ts", 'import "preact"; import "../training/session"; document.title = "";', []],
  ["src/dashboard/a.ts", 'import "../ui/state";', [IMPORT]],
  ["src/dashboard/a.ts", 'import "../engine/model";', [IMPORT]],
  ["src/dashboard/a.ts", 'import "../ui/curves"; import "./state"; import "@preact/signals"; document.title = "";', []],
])("%s: %s", async (file, code, expected) => {
  expect(await violations(file, code)).toEqual(expected);
}, 60_000); // the first loads eslint's rules
