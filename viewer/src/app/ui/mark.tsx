// The logo.

import style from "./mark.module.css";
/** Shows a square of nine cells in the accent colour, like texels of a texture. */
export function Mark() {
  const cells = [0.9, 0.4, 0.2, 0.7, 0.55, 0.25, 0.3, 0.5, 1];
  return (
    <svg class={style.mark} viewBox="0 0 33 33" aria-hidden="true">
      {cells.map((value, i) => (
        <rect
          key={i}
          x={(i % 3) * 11 + 0.5}
          y={Math.floor(i / 3) * 11 + 0.5}
          width={10}
          height={10}
          rx={2}
          fill-opacity={value}
        />
      ))}
    </svg>
  );
}
