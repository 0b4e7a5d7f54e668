// The strictest of typescript-eslint's plain sets, with four exceptions.
import tseslint from "typescript-eslint";

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
  { files: ["test/**"], rules: { "@typescript-eslint/require-await": "off" } }, // stands in for what waits
);
