// Extends typescript-eslint's strict type-checked rules: limits the folders that each folder of src/ may import, and
// bans code that turns text into markup.
import tseslint from "typescript-eslint";

/** Lists globals that exist only with a document. Workers and tests have no document. */
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

const INTERFACE = {
  regex: "^(preact|uplot|lucide)(/|$)|^@preact/(?!signals-core$)",
  message: "Only app/ and dashboard/ may import user-interface packages.",
};

/** Returns a rule that refuses imports that match `regex`. */
const noImports = (regex, message, ...more) => ["error", { patterns: [{ regex, message }, ...more] }];

/** Returns the rules of a folder that must not use the DOM or import paths that match the regex `forbidden`. */
function folderRules(folder, forbidden, message) {
  return {
    files: [`src/${folder}/**`],
    rules: {
      "no-restricted-imports": noImports(forbidden, message, INTERFACE),
      "no-restricted-globals": [
        "error",
        ...DOM_GLOBALS.map((name) => ({ name, message: "Only app/, dashboard/ and src/document.ts may use the DOM." })),
      ],
    },
  };
}

/** Returns the rule for `files` of app/: they must not import paths that match the regular expression `forbidden`. */
const appRules = (files, forbidden, message) => ({
  files: [`src/app/${files}`],
  rules: { "no-restricted-imports": noImports(forbidden, message) },
});

export default tseslint.config(
  { ignores: ["**/dist", "**/node_modules", "public", "*.config.*", "test/*.js"] },
  tseslint.configs.strictTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "@typescript-eslint/no-non-null-assertion": "off", // tsc types `list[i]` as possibly undefined
      "max-params": ["error", 8],
      // Prettier does not wrap long strings and comments.
      "max-len": ["error", { code: 120, ignoreUrls: true, ignoreRegExpLiterals: true }],
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
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "createContextualFragment"].map(
          (property) => ({ property }),
        ),
        { object: "document", property: "write" },
      ],
      "no-restricted-syntax": [
        "error",
        { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Text must not become markup." },
      ],
      "no-eval": "error",
    },
  },
  folderRules("runtime/gl", "^\\.\\./(?!generated/)", "gl/ may import only generated/."),
  folderRules("runtime/chat", "^\\.\\./(?!gl/)", "chat/ may import only gl/."),
  folderRules("runtime/constraints", "^\\.\\./(?!gl/)", "constraints/ may import only gl/."),
  folderRules("runtime/io", "^\\.\\./(?!gl/)", "io/ may import only gl/."),
  folderRules("runtime/gguf", "^\\.\\./(?!gl/|generated/)", "gguf/ may import only gl/ and generated/."),
  folderRules(
    "runtime/engine",
    "^\\.\\./(?!chat/|constraints/|gl/|gguf/|io/|generated/|\\.\\./\\.\\./schema/)",
    "engine/ may import only chat/, constraints/, gl/, gguf/, io/ and generated/.",
  ),
  folderRules(
    "runtime/selftest",
    "^\\.\\./(?!engine/|gl/|generated/)",
    "selftest/ may import only engine/, gl/ and generated/.",
  ),
  folderRules("training", "^\\.\\./(?!runtime/)", "training/ may import only runtime/."),
  appRules("drawing/**", "^\\.\\./(?!\\.\\./(runtime/|\\.\\./\\.\\./glsl/))", "drawing/ may import only runtime/."),
  appRules(
    "stores/**",
    "^\\.\\./(?!drawing/|\\.\\./(api$|runtime/))",
    "stores/ may import only api.ts, runtime/ and drawing/.",
  ),
  appRules(
    "ui/**",
    "^\\.\\./(?!drawing/|stores/|\\.\\./runtime/)",
    "ui/ may import only runtime/, drawing/ and stores/.",
  ),
  appRules(
    "features/*/**",
    "^\\.\\./(?!\\.\\./)[^/]+/(?!store$)|" +
      "^\\.\\./\\.\\./(?!drawing/|stores/|ui/|\\.\\./(api$|document$|runtime/|training/))",
    "A feature may import store.ts and index.ts of other features. Outside of features/, it may import only " +
      "drawing/, stores/, ui/, api.ts, document.ts, runtime/ and training/.",
  ),
  appRules("features/*", "^\\.\\./(?!stores/)", "features/index.ts may import only features and stores/."),
  appRules(
    "*",
    "^\\./features/|^\\.\\./(?!api$|document$|runtime/)",
    "Files directly in app/ may import only features/index.ts, the other folders of app/, api.ts, document.ts and " +
      "runtime/.",
  ),
  {
    files: ["src/*.ts"],
    rules: {
      "no-restricted-imports": noImports("^\\./app/", "The scriptable object must not import app/.", INTERFACE),
    },
  },
  {
    files: ["src/dashboard/**"],
    rules: {
      "no-restricted-imports": noImports(
        "^\\.\\./(?!app/ui/(classes|curves|facts|mark|base\\.css|(shared|band)\\.module\\.css)$|" +
          "runtime/(generated|io)/)",
        "The dashboard may import only runtime/generated/, runtime/io/ and the parts of app/ui/ that use no model: " +
          "curves, facts, mark and the shared styles.",
      ),
    },
  },
  { files: ["src/runtime/generated/**"], rules: { "max-len": "off" } },
  { files: ["test/**"], rules: { "@typescript-eslint/require-await": "off" } }, // stubs of asynchronous functions
);
