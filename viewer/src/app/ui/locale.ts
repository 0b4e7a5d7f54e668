// Replaces a browser language that is not a language tag, such as "en-US@posix" of some headless browsers: formatters
// of numbers refuse it, so that uPlot cannot be loaded.

try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
