// Replaces a browser language that is not a language tag, such as "en-US@posix" of some headless browsers. Number
// formatters reject such a language, and uPlot then fails to load.

try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
