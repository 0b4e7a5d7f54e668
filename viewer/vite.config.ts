import { defineConfig, type UserConfig } from "vite";

// Relative addresses, so that the page works under any path; one script and one style, so that a single file can hold them.
const page: UserConfig = {
  base: "./",
  build: { target: "es2022", assetsInlineLimit: 1 << 20, chunkSizeWarningLimit: 600, modulePreload: false },
};

// The scriptable object as a module, and an example of its use.
const embed: UserConfig = {
  publicDir: "embed",
  build: {
    target: "es2022",
    outDir: "dist/embed",
    minify: "oxc",
    lib: { entry: "src/embed.ts", formats: ["es"], fileName: () => "glgpt.js" },
  },
};

// The dashboard of a federation, which its gateway serves.
const dashboard: UserConfig = {
  base: "./",
  root: "dashboard",
  publicDir: false,
  build: { target: "es2022", outDir: "../dist/dashboard", emptyOutDir: true, modulePreload: false },
};

export default defineConfig(({ mode }) => ({ embed, dashboard })[mode] ?? page);
