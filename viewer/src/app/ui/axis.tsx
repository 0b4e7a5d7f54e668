// Labels for a matrix's rows and columns: the token, head or vocabulary entry that each row or column stands for.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Model } from "../../runtime/engine/model";
import { generation } from "../stores/generation";
import { classes } from "./classes";
import style from "./plane.module.css";

const EACH = 13; // minimum distance of labels, in pixels

export interface Axes {
  rowName?: (row: number) => string;
  colName?: (col: number) => string;
}

/**
 * Returns the row and column labels of an activation, weight or cache of this size. The first row belongs to token
 * `start` in an activation, and to the first token of the text in a cache.
 */
export function axesOf(
  model: Model,
  name: string,
  { rows, cols }: { rows: number; cols: number },
  start: number,
): Axes {
  const { config } = model.manifest;
  const about = model.names.activations.get(name);
  const token = (t: number) => generation.read.value[t]?.label ?? "";
  const heads = about?.heads ?? 1;
  if (about?.kind === "scores" || about?.kind === "pattern") {
    const head = (row: number) => `head ${row % heads}`;
    const one = rows <= heads; // the rows are the heads of one token: the decoded token
    return {
      rowName: (row) => (one ? head(row) : `${token(start + Math.floor(row / heads))}, ${head(row)}`),
      colName: token,
    };
  }
  const outside = model.names.block(name) < 0; // within a block, a width may equal the vocabulary's size by chance
  const words = outside && cols === config.vocab_size ? { colName: (id: number) => generation.label(id) } : {};
  if (about) {
    if (cols !== heads * about.width) return {}; // the pass wrote partial sums, not the activation
    const rowName = (row: number) => token(about.kind === "cache" ? row : start + row);
    return heads > 1
      ? { rowName, colName: (col) => `head ${Math.floor((col * heads) / cols)}` }
      : { rowName, ...words };
  }
  return outside && rows === config.vocab_size ? { rowName: (id: number) => generation.label(id), ...words } : words;
}

interface Props {
  /** The number of rows or columns. */
  count: number;
  /** Returns the label of a row or column; "" for no label. */
  name: (at: number) => string;
  /** True to label the columns, false to label the rows. */
  across: boolean;
}

/** Shows as many labels as fit along an edge of a picture. Of consecutive equal labels, it shows only the first. */
export function Axis({ count, name, across }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const room = useSignal(0);
  useEffect(() => {
    const self = box.current!;
    const observer = new ResizeObserver(() => (room.value = across ? self.clientWidth : self.clientHeight));
    observer.observe(self);
    return () => observer.disconnect();
  }, [across]);
  const step = room.value ? Math.max(1, Math.ceil((count * EACH) / room.value)) : count;
  const labels: [number, string][] = [];
  for (let at = 0; at < count; at += step) {
    const label = name(at);
    if (label && label !== labels.at(-1)?.[1]) labels.push([at, label]);
  }
  return (
    <div class={classes(style.axis, across ? style.across : style.down)} ref={box} aria-hidden="true">
      {labels.map(([at, label]) => (
        <span key={at} style={{ "--at": `${(100 * (at + 0.5)) / count}%` }}>
          {label}
        </span>
      ))}
    </div>
  );
}
