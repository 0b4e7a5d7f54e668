import { basename, dirname } from "node:path";
import { defineConfig, type Plugin, type UserConfig } from "vite";

/**
 * Prefixes the name of a CSS class with the name of its module, as in `text-token`. For `style.module.css`, the prefix
 * is the name of the folder; for `shared.module.css`, it is `ui`. A class that is named like the prefix is not changed.
 */
function className(name: string, file: string): string {
  const module = basename(file.split("?")[0]!, ".module.css");
  const owner = module === "style" ? basename(dirname(file)) : module === "shared" ? "ui" : module;
  return name === owner ? name : `${owner}-${name}`;
}

const css: UserConfig["css"] = { modules: { localsConvention: "camelCaseOnly", generateScopedName: className } };

/** Removes the descriptions from the JSON schemas, because checking a document does not use them. */
const schemas: Plugin = {
  name: "schemas",
  enforce: "pre",
  transform(code, id) {
    if (!id.endsWith(".schema.json")) return null;
    const kept = (name: string, value: unknown) =>
      name === "description" && typeof value === "string" ? undefined : value;
    return JSON.stringify(JSON.parse(code, kept));
  },
};

/** Removes the checks of string formats, such as dates, from the JSON schema library: the schemas use no formats. */
const formats: Plugin = {
  name: "formats",
  enforce: "pre",
  load: (id) => (/@cfworker\/json-schema\/.*\/format\.js$/.test(id) ? "export const format = {};" : null),
};

// Builds the page. Its addresses are relative, so that it works under any path. It has one script and one style sheet,
// which `glgpt export --single-file` inserts into index.html.
const page: UserConfig & { test: object } = {
  base: "./",
  css,
  plugins: [schemas, formats],
  // Vitest also reads style sheets, and uses all processors. The timeout allows for a busy machine.
  test: { css: true, maxWorkers: "100%", testTimeout: 60_000 },
  build: { target: "es2022", assetsInlineLimit: 1 << 20, chunkSizeWarningLimit: 600, modulePreload: false },
};

// Builds the scriptable object as a module, with an example page.
const embed: UserConfig = {
  base: "./", // the module finds the file with the grammar worker next to itself
  publicDir: "embed",
  plugins: [schemas, formats],
  build: {
    target: "es2022",
    outDir: "dist/embed",
    lib: { entry: "src/embed.ts", formats: ["es"], fileName: () => "glgpt.js" },
    // Without `minify` here, Vite keeps the white space of a library. Chunks hold rarely used code, such as training.
    rolldownOptions: { output: { minify: true, chunkFileNames: "assets/glgpt-[hash].js" } },
  },
};

// Builds a federation's dashboard, which the gateway serves.
const dashboard: UserConfig = {
  base: "./",
  css,
  root: "dashboard",
  publicDir: false,
  build: { target: "es2022", outDir: "../dist/dashboard", emptyOutDir: true, modulePreload: false },
};

export default defineConfig(({ mode }) => ({ embed, dashboard })[mode] ?? page);
