// Shows, while the model loads, the attention patterns of the generation that was recorded when the page was exported.

import { useLayoutEffect, useRef } from "preact/hooks";
import { fromBase64 } from "../../../runtime/engine/base64";
import { BLUE } from "../../drawing/palettes";
import { generation } from "../../stores/generation";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

export function RecordedAttention() {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { attention, layers, heads } = generation.recorded.value!;
  const n = attention.tokens;
  useLayoutEffect(() => {
    const flat = canvas.current?.getContext("2d");
    if (!flat) return;
    const bytes = fromBase64(attention.data);
    const square = new ImageData(n, n);
    flat.clearRect(0, 0, heads * n, layers * n);
    for (let at = 0, i = 0; i < layers * heads; i++) {
      square.data.fill(0);
      for (let row = 0; row < n; row++) {
        for (let column = 0; column <= row; column++)
          square.data.set([...BLUE, bytes[at++] ?? 0], 4 * (row * n + column));
      }
      flat.putImageData(square, (i % heads) * n, Math.floor(i / heads) * n);
    }
  }, [attention]);
  return (
    <section class={ui.panel} data-view="attention" aria-label="Attention">
      <h2>Every layer and head</h2>
      <p class={ui.dim}>
        Each row is a layer; each square is a head. A square shows how much each of the first {n} tokens (down) attends
        to earlier tokens (across).
      </p>
      <div class={classes(style.squares, style.still)} style={{ "--layers": layers, "--heads": heads }}>
        <canvas
          ref={canvas}
          width={heads * n}
          height={layers * n}
          role="img"
          aria-label={`Attention of ${layers} layers with ${heads} heads over ${n} recorded tokens`}
        />
      </div>
    </section>
  );
}
