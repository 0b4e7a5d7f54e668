// Checks the CSS: components and modules have the same classes, colours are in tokens.css, and no line is too long.

import { expect, test } from "vitest";

const sheets = import.meta.glob<string>("../src/**/*.css", { query: "?raw", import: "default", eager: true });
const scripts = import.meta.glob<string>("../src/**/*.tsx", { query: "?raw", import: "default", eager: true });

const camelCase = (name: string) => name.replace(/-([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** Returns the classes that a module defines, as components name them. */
function defined(css: string): Set<string> {
  const selectors = css.replace(/\/\*[^]*?\*\/|:global\([^)]*\)|\{[^{}]*\}/g, " ");
  return new Set([...selectors.matchAll(/\.([a-z][\w-]*)/g)].map(([, name]) => camelCase(name!)));
}

/** Returns the classes that the components take from a module, and whether they also compute names. */
function used(module: string): { names: Set<string>; computed: boolean } {
  const names = new Set<string>();
  let computed = false;
  for (const [path, text] of Object.entries(scripts)) {
    const code = text.replace(/^import .*$/gm, "");
    for (const [, as, from] of text.matchAll(/^import (\w+) from "(\.[^"]+\.module\.css)";$/gm)) {
      if (new URL(from!, `file:///${path}`).pathname !== new URL(module, "file:///").pathname) continue;
      for (const [, name] of code.matchAll(new RegExp(`(?<![.\\w])${as!}\\.(\\w+)`, "g"))) names.add(name!);
      computed ||= code.includes(`${as!}[`);
    }
  }
  return { names, computed };
}

test.each(Object.keys(sheets).filter((path) => path.endsWith(".module.css")))("%s fits its components", (path) => {
  const classes = defined(sheets[path]!);
  const { names, computed } = used(path);
  expect([...names].filter((name) => !classes.has(name))).toEqual([]);
  if (!computed) expect([...classes].filter((name) => !names.has(name))).toEqual([]);
});

test("only tokens.css defines colours", () => {
  const found = Object.entries(sheets)
    .filter(([path]) => !path.endsWith("/tokens.css"))
    .flatMap(([path, css]) =>
      [...css.matchAll(/#[0-9a-f]{3,8}\b|\brgb\(|light-dark\(/g)].map(([color]) => [path, color]),
    );
  expect(found).toEqual([]);
});

test("the accent colour and the colours that have a meaning are different", () => {
  const tokens = Object.entries(sheets).find(([path]) => path.endsWith("/tokens.css"))![1];
  const block = /--accent:[^]*?--on-bad/.exec(tokens)![0];
  const found = [...block.matchAll(/--([a-z-]+): light-dark\((#\w+), (#\w+)\)/g)].map(([, ...parts]) => parts);
  expect(found.length).toBeGreaterThan(8);
  for (const at of [1, 2]) expect(new Set(found.map((parts) => parts[at])).size).toBe(found.length);
});

test("text has the sizes of tokens.css", () => {
  const found = Object.values(sheets).flatMap((css) => [...css.matchAll(/\bfont(?:-size)?: ([^;]+);/g)]);
  const others = found.map(([, value]) => value!).filter((value) => !/var\(--size-|^inherit$/.test(value));
  expect(others).toEqual(["16px/1.5 var(--sans)"]); // the root's size, which defines a rem
});

test("only devices with a pointer have styles for hovering", () => {
  const found = Object.entries(sheets).flatMap(([path, css]) => {
    const others = css
      .replace(/@media \(hover: hover\) \{(?:[^{}]*\{[^{}]*\})*[^{}]*\}/g, "")
      .replaceAll(":not(:hover)", "");
    return others.includes(":hover") ? [path] : [];
  });
  expect(found).toEqual([]);
});

test.each(Object.keys(sheets))("%s has lines of at most 120 characters", (path) => {
  expect(sheets[path]!.split("\n").filter((line) => line.length > 120)).toEqual([]);
});
