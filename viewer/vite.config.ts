import { defineConfig } from "vite";

// Relative addresses, so that the page works under any path; one script and one style, so that a single file can hold them.
export default defineConfig({
  base: "./",
  build: { target: "es2022", assetsInlineLimit: 1 << 20, chunkSizeWarningLimit: 600, modulePreload: false },
});
