// Grids and lists of buttons with a single tab stop: arrow keys move within a grid or list, and Tab leaves it.

const STEPS: Record<string, readonly [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

/** Returns the attributes of a cell at (column, row). `stop`: true for the cell that the Tab key focuses. */
export function cell(column: number, row: number, stop: boolean): { "data-cell": string; tabIndex: number } {
  return { "data-cell": `${column} ${row}`, tabIndex: stop ? 0 : -1 };
}

/** Handles `keydown` of the element around the cells: an arrow key focuses the nearest cell in its direction. */
export function walkCells(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
  const step = STEPS[event.key];
  const from = (event.target as HTMLElement).closest<HTMLElement>("[data-cell]");
  if (!step || !from) return;
  const [dx, dy] = step;
  const [x, y] = place(from);
  let next: HTMLElement | null = null;
  let least = Infinity;
  for (const other of event.currentTarget.querySelectorAll<HTMLElement>("[data-cell]")) {
    const [ox, oy] = place(other);
    const along = (ox - x) * dx + (oy - y) * dy;
    const across = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
    const distance = along + across / 1000; // along the arrow; of ties, a cell on the arrow's line is nearest
    if (along <= 0 || distance >= least) continue;
    [next, least] = [other, distance];
  }
  if (!next) return;
  event.preventDefault();
  next.focus();
}

function place(of: HTMLElement): [number, number] {
  const [x = 0, y = 0] = (of.dataset["cell"] ?? "").split(" ").map(Number);
  return [x, y];
}
