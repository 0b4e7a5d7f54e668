// typescript-eslint's strict type-checked rules with four exceptions, and which folders each folder of src/ may import.
import tseslint from "typescript-eslint";

/** Globals that exist only with a document, so not in workers and tests. */
const DOM_GLOBALS = [
  "document",
  "window",
  "history",
  "screen",
  "requestAnimationFrame",
  "getComputedStyle",
  "matchMedia",
  "innerWidth",
  "innerHeight",
];

const INTERFACE = { regex: "^(preact|@preact|uplot)(/|$)", message: "Only ui/ may import user-interface packages." };

const DASHBOARD = "The dashboard may import only the parts of ui/ that use no model: curves, facts, mark.";

/** Returns the rules of a folder that may import from `../` only what the regular expression `allowed` matches. */
function folderRules(folder, allowed, message) {
  return {
    files: [`src/${folder}/**`],
    rules: {
      "no-restricted-imports": ["error", { patterns: [{ regex: `^\\.\\./${allowed}`, message }, INTERFACE] }],
      "no-restricted-globals": ["error", ...DOM_GLOBALS.map((name) => ({ name, message: "Only ui/ and src/document.ts may use the DOM." }))],
    },
  };
}

export default tseslint.config(
  { ignores: ["**/dist", "**/node_modules", "public", "*.config.*"] },
  tseslint.configs.strictTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "@typescript-eslint/no-non-null-assertion": "off", // tsc types every index as possibly undefined
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/no-meaningless-void-operator": "off", // `void signal.value` subscribes to a signal
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    files: ["src/**"],
    rules: {
      // Prompts, tokens and names are untrusted text: they must not become markup or code.
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "createContextualFragment"].map((property) => ({ property })),
        { object: "document", property: "write" },
      ],
      "no-restricted-syntax": ["error", { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Text must not become markup." }],
      "no-eval": "error",
    },
  },
  folderRules("gl", "", "gl/ may import no other folder."),
  folderRules("engine", "(?!gl/|\\.\\./schema/)", "engine/ may import only gl/."),
  folderRules("training", "(?!gl/|engine/)", "training/ may import only gl/ and engine/."),
  {
    files: ["src/api.ts", "src/embed.ts", "src/document.ts"],
    rules: {
      "no-restricted-imports": ["error", { patterns: [{ regex: "^\\./ui/", message: "The scriptable object must not import ui/." }, INTERFACE] }],
    },
  },
  {
    files: ["src/dashboard/**"],
    rules: { "no-restricted-imports": ["error", { patterns: [{ regex: "^\\.\\./(?!ui/(curves|facts|mark|base\\.css)$)", message: DASHBOARD }] }] },
  },
  { files: ["test/**"], rules: { "@typescript-eslint/require-await": "off" } }, // stubs of asynchronous functions
);
