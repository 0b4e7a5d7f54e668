import { defineConfig, type UserConfig } from "vite";

// The page. Addresses are relative, so that it works under any path; one script and one style fit into a single file.
const page: UserConfig = {
  base: "./",
  build: { target: "es2022", assetsInlineLimit: 1 << 20, chunkSizeWarningLimit: 600, modulePreload: false },
};

// The scriptable object as a module, with an example page.
const embed: UserConfig = {
  publicDir: "embed",
  build: {
    target: "es2022",
    outDir: "dist/embed",
    minify: "oxc",
    lib: { entry: "src/embed.ts", formats: ["es"], fileName: () => "glgpt.js" },
  },
};

// A federation's dashboard, which its gateway serves.
const dashboard: UserConfig = {
  base: "./",
  root: "dashboard",
  publicDir: false,
  build: { target: "es2022", outDir: "../dist/dashboard", emptyOutDir: true, modulePreload: false },
};

export default defineConfig(({ mode }) => ({ embed, dashboard })[mode] ?? page);
