// Implements a priority queue as a binary heap.

/** A priority queue: `pop` returns the item that comes `before` all others. */
export class Heap<T> {
  private readonly list: T[] = [];

  constructor(private readonly before: (a: T, b: T) => boolean) {}

  push(item: T): void {
    const { list } = this;
    let at = list.push(item) - 1;
    while (at > 0) {
      const up = (at - 1) >> 1;
      if (!this.before(item, list[up]!)) break;
      list[at] = list[up]!;
      at = up;
    }
    list[at] = item;
  }

  pop(): T | undefined {
    const { list } = this;
    const top = list[0];
    const last = list.pop();
    if (top === undefined || last === undefined || !list.length) return top;
    let at = 0;
    for (;;) {
      let down = 2 * at + 1;
      if (down >= list.length) break;
      if (down + 1 < list.length && this.before(list[down + 1]!, list[down]!)) down++;
      if (!this.before(list[down]!, last)) break;
      list[at] = list[down]!;
      at = down;
    }
    list[at] = last;
    return top;
  }
}
