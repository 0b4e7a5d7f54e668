// The strictest of typescript-eslint's plain sets, with four exceptions, and which folder of src/ may import which.
import tseslint from "typescript-eslint";

/** What a browser has only where there is a document: workers and tests have none of it. */
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

const INTERFACE = { regex: "^(preact|@preact|uplot)(/|$)", message: "Only ui/ draws an interface." };

const DASHBOARD = "The dashboard imports parts of ui/ that know no model: curves, facts, mark.";

/** `folder` may import from above itself only what `allowed` (a regular expression of what follows `../`) names. */
function room(folder, allowed, message) {
  return {
    files: [`src/${folder}/**`],
    rules: {
      "no-restricted-imports": ["error", { patterns: [{ regex: `^\\.\\./${allowed}`, message }, INTERFACE] }],
      "no-restricted-globals": ["error", ...DOM_GLOBALS.map((name) => ({ name, message: "Only ui/ and src/document.ts know the DOM." }))],
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
      "@typescript-eslint/no-non-null-assertion": "off", // tsc makes every index doubtful; `!` says that it is known
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/no-meaningless-void-operator": "off", // `void signal.value` subscribes to a signal
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    files: ["src/**"],
    rules: {
      // Prompts, tokens and names are a stranger's text: they never become markup or code.
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "createContextualFragment"].map((property) => ({ property })),
        { object: "document", property: "write" },
      ],
      "no-restricted-syntax": ["error", { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Text never becomes markup." }],
      "no-eval": "error",
    },
  },
  room("gl", "", "gl/ imports no other folder."),
  room("engine", "(?!gl/|\\.\\./schema/)", "engine/ imports gl/ only."),
  room("training", "(?!gl/|engine/)", "training/ imports gl/ and engine/ only."),
  {
    files: ["src/api.ts", "src/embed.ts", "src/document.ts"],
    rules: {
      "no-restricted-imports": ["error", { patterns: [{ regex: "^\\./ui/", message: "The scriptable object has no interface." }, INTERFACE] }],
    },
  },
  {
    files: ["src/dashboard/**"],
    rules: { "no-restricted-imports": ["error", { patterns: [{ regex: "^\\.\\./(?!ui/(curves|facts|mark|base\\.css)$)", message: DASHBOARD }] }] },
  },
  { files: ["test/**"], rules: { "@typescript-eslint/require-await": "off" } }, // stands in for what waits
);
