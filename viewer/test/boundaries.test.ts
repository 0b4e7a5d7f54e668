// Checks the import rules of eslint.config.js: a deliberate violation of each rule is an error.

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
  ["src/runtime/gl/a.ts", 'import "../engine/chunks";', [IMPORT]],
  ["src/runtime/gl/a.ts", 'import "../../document";', [IMPORT]],
  ["src/runtime/gl/a.ts", "document.title = '';", [GLOBAL]],
  ["src/runtime/gl/a.ts", 'import "./wait"; import "../generated/program";', []],
  ["src/runtime/gguf/a.ts", 'import "../engine/manifest";', [IMPORT]],
  ["src/runtime/gguf/a.ts", 'import "../gl/errors"; import "../generated/program";', []],
  ["src/runtime/io/a.ts", 'import "../engine/chunks"; document.title = "";', [IMPORT, GLOBAL]],
  ["src/runtime/io/a.ts", 'import "../gl/errors";', []],
  ["src/runtime/engine/a.ts", 'import "../../training/session";', [IMPORT]],
  ["src/runtime/engine/a.ts", 'import "../../app/stores/model";', [IMPORT]],
  ["src/runtime/engine/a.ts", 'import "../../document";', [IMPORT]],
  [
    "src/runtime/engine/a.ts",
    'import { signal } from "@preact/signals"; requestAnimationFrame(signal);',
    [IMPORT, GLOBAL],
  ],
  ["src/runtime/engine/a.ts", 'import { signal } from "@preact/signals-core"; signal(0);', []],
  [
    "src/runtime/engine/a.ts",
    'import "../gl/player"; import "../io/fetch-stream"; import "../../../schema/manifest.schema.json";',
    [],
  ],
  ["src/training/a.ts", 'import "../app/drawing/painter";', [IMPORT]],
  ["src/training/a.ts", 'import "../document";', [IMPORT]],
  ["src/training/a.ts", 'import "uplot";', [IMPORT]],
  ["src/training/a.ts", 'import "lucide";', [IMPORT]],
  ["src/training/a.ts", 'import "../runtime/engine/model"; import "../runtime/gl/player";', []],
  ["src/api.ts", 'import "./app/stores/model";', [IMPORT]],
  ["src/text-runs.ts", 'import "./app/stores/model"; import "preact";', [IMPORT, IMPORT]],
  ["src/app/drawing/a.ts", 'import "../stores/model";', [IMPORT]],
  ["src/app/stores/a.ts", 'import "../features/text/store";', [IMPORT]],
  ["src/app/stores/a.ts", 'import "../ui/tools";', [IMPORT]],
  ["src/app/stores/a.ts", 'import "../../training/session";', [IMPORT]],
  ["src/app/stores/a.ts", 'import "../../api"; import "../../runtime/gl/errors"; import "../drawing/scale";', []],
  ["src/app/ui/a.ts", 'import "../features/text/store";', [IMPORT]],
  ["src/app/ui/a.ts", 'import "../shell";', [IMPORT]],
  ["src/app/ui/a.ts", 'import "../../api";', [IMPORT]],
  ["src/app/ui/a.ts", 'import "../stores/route"; import "../../runtime/gl/errors"; import "./tools";', []],
  ["src/app/features/text/a.ts", 'import "../train/view";', [IMPORT]],
  ["src/app/features/text/a.ts", 'import "../../shell";', [IMPORT]],
  ["src/app/features/text/a.ts", 'import "../../../dashboard/state";', [IMPORT]],
  ["src/app/features/text/a.ts", 'import "../../../main";', [IMPORT]],
  ["src/app/features/text/a.ts", 'import "../train/store"; import "../tour"; import "./sampling";', []],
  [
    "src/app/features/text/a.ts",
    'import "preact"; import "../../../training/session"; import "../../ui/tools"; document.title = "";',
    [],
  ],
  ["src/app/features/a.ts", 'import "../shell";', [IMPORT]],
  ["src/app/features/a.ts", 'import "../stores/route"; import "./text/view";', []],
  ["src/app/a.ts", 'import "./features/text/store";', [IMPORT]],
  ["src/app/a.ts", 'import "../training/session";', [IMPORT]],
  ["src/app/a.ts", 'import "./features"; import "./ui/tools"; import "./router"; import "../api";', []],
  ["src/dashboard/a.ts", 'import "../app/stores/model";', [IMPORT]],
  ["src/dashboard/a.ts", 'import "../runtime/engine/model";', [IMPORT]],
  [
    "src/dashboard/a.ts",
    'import "../app/ui/curves"; import "../runtime/io/storage"; import "@preact/signals"; document.title = "";',
    [],
  ],
])(
  "%s: %s",
  async (file, code, expected) => {
    expect(await violations(file, code)).toEqual(expected);
  },
  60_000,
); // the first case also loads eslint's rules
