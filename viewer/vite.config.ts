import { basename, dirname } from "node:path";
import { defineConfig, type Plugin, type UserConfig } from "vite";

/** Names a class of a CSS module after its file (a `style.module.css`: after its folder), such as `text-token`. */
function className(name: string, file: string): string {
  const module = basename(file.split("?")[0]!, ".module.css");
  const owner = module === "style" ? basename(dirname(file)) : module === "shared" ? "ui" : module;
  return name === owner ? name : `${owner}-${name}`;
}

const css: UserConfig["css"] = { modules: { localsConvention: "camelCaseOnly", generateScopedName: className } };

/** Leaves the descriptions out of the schemas, which check nothing. */
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

// The page. Addresses are relative, so that it works under any path; one script and one style fit into a single file.
const page: UserConfig & { test: object } = {
  base: "./",
  css,
  plugins: [schemas],
  // Vitest reads style sheets too, and uses all processors. A busy machine may take ten times the usual time of a test.
  test: { css: true, maxWorkers: "100%", testTimeout: 60_000 },
  build: { target: "es2022", assetsInlineLimit: 1 << 20, chunkSizeWarningLimit: 600, modulePreload: false },
};

// The scriptable object as a module, with an example page.
const embed: UserConfig = {
  base: "./", // the file that constrains text is next to the module
  publicDir: "embed",
  plugins: [schemas],
  build: {
    target: "es2022",
    outDir: "dist/embed",
    minify: "oxc",
    lib: { entry: "src/embed.ts", formats: ["es"], fileName: () => "glgpt.js" },
    rolldownOptions: { output: { chunkFileNames: "assets/glgpt-[hash].js" } }, // the training's and what both need
  },
};

// A federation's dashboard, which its gateway serves.
const dashboard: UserConfig = {
  base: "./",
  css,
  root: "dashboard",
  publicDir: false,
  build: { target: "es2022", outDir: "../dist/dashboard", emptyOutDir: true, modulePreload: false },
};

export default defineConfig(({ mode }) => ({ embed, dashboard })[mode] ?? page);
