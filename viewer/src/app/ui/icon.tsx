// Icons of the Lucide set, as large as the text next to them.

import type { IconNode } from "lucide";
import { createElement } from "preact";
import style from "./icon.module.css";

/** Shows a decorative icon, hidden from screen readers: a control with an icon needs a text or a label as well. */
export const Icon = ({ of }: { of: IconNode }) => (
  <svg class={style.icon} viewBox="0 0 24 24" aria-hidden="true">
    {of.map(([shape, attributes], i) => createElement(shape, { key: i, ...attributes }))}
  </svg>
);
