// Tests the geometry of the machine, which is the page's diagram of the model.

import { describe, expect, it } from "vitest";
import { groupsOf, labelledBlocks, Layout, roleOf, wiresOf, type Role } from "../src/app/drawing/diagram";

const ROLES: Role[] = ["attention", "attention", "attention", "stream", "mlp", "stream"];

describe("the diagram of the model", () => {
  it("labels each of 6 blocks, and every fifth of 30", () => {
    expect(labelledBlocks(6).map(({ block }) => block)).toEqual([0, 1, 2, 3, 4, 5]);
    expect(labelledBlocks(30)).toEqual([0, 5, 10, 15, 20, 25].map((block) => ({ block, span: 5 })));
    expect(labelledBlocks(32).at(-1)).toEqual({ block: 30, span: 2 });
  });

  it("finds by what a stage shows whether it belongs to attention, the MLP or the residual stream", () => {
    const kinds = ["cache", "scores", "heads", "rows", "rows", "rows"] as const;
    const adds = [null, null, "attn", null, "mlp", null];
    const roles = kinds.map((kind, i) => roleOf({ adds: adds[i]! }, kind));
    expect(roles).toEqual(ROLES);
    expect(groupsOf(roles).map(({ role, count }) => [role, count])).toEqual([
      ["attention", 3],
      ["stream", 1],
      ["mlp", 1],
      ["stream", 1],
    ]);
  });

  it("leaves space for labels only in a wide window, and has a gap between columns", () => {
    for (const width of [280, 1100, 1600]) {
      for (const columns of [8, 32]) {
        const layout = new Layout(width, columns);
        expect(layout.labels > 0).toBe(width > 700);
        expect(layout.left(columns)).toBeCloseTo(width, -1);
        for (let i = 0; i + 1 < columns; i++) {
          expect(layout.right(i)).toBeGreaterThan(layout.left(i));
          expect(layout.left(i + 1)).toBeGreaterThan(layout.right(i));
        }
      }
    }
  });

  it("draws lines into each block and one line into the logits; arrowheads only where they fit", () => {
    const lines = (columns: number) => wiresOf(new Layout(1100, columns), 180, ROLES);
    const count = (path: string, letter: string) => path.split(letter).length - 1;
    expect(count(lines(32).lines, "M")).toBe(31); // without space, one line into each block, and one to the logits
    expect(lines(32).heads).toBe("");
    const wide = lines(8);
    // three lines per block (into the block, past its attention, past its MLP), and one line to the logits
    expect(count(wide.lines, "M")).toBe(6 * 3 + 1);
    expect(wide.heads).not.toBe("");
  });
});
