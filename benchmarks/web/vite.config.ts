export default { base: "./", build: { target: "es2022", chunkSizeWarningLimit: 2000, modulePreload: false } };
