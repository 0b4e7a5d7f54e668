// Shows several continuations of the prompt side by side.

import { useLayoutEffect, useRef } from "preact/hooks";
import type { Continuation } from "../../../api";
import { continuations } from "../../stores/continuations";
import { generation } from "../../stores/generation";
import { settings } from "../../stores/settings";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const NUMBERS = ["", "", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight"];

export function SeveralButton() {
  const count = continuations.atOnce.value;
  if (!count) return null;
  const same = settings.temperature.value === 0 || settings.topK.value === 1;
  return (
    <button
      class={style.wide}
      data-part="several"
      disabled={generation.running.value || same}
      title={
        same
          ? "With temperature 0 or top-k 1, all continuations would be the same"
          : "Continues the prompt with this seed and the following ones at the same time"
      }
      onClick={() => void continuations.write()}
    >
      {NUMBERS[count] ?? count} continuations side by side
    </button>
  );
}

const ENDS: Record<Continuation["stopped"], string> = {
  tokens: "",
  aborted: "",
  eos: ", ended by the model",
  text: ", at the stop text",
  context: ", at the end of the context",
};

/** Shows the continuations. The one that a reader chooses is generated again, with its seed, in the panel below. */
export function Several() {
  const texts = continuations.texts.value;
  const panel = useRef<HTMLElement>(null);
  const shown = texts !== null;
  useLayoutEffect(() => {
    panel.current?.scrollIntoView({ block: "nearest" });
    panel.current?.focus({ preventScroll: true });
  }, [shown]);
  const close = () => {
    continuations.close();
    document.querySelector<HTMLElement>("[data-part=several]")?.focus();
  };
  if (!texts || !continuations.atOnce.value) return null;
  const running = generation.running.value;
  const count = texts.length || continuations.atOnce.value;
  const rate = continuations.rate.value;
  return (
    <section class={classes(ui.panel, style.several)} ref={panel} tabIndex={-1} aria-label="Continuations side by side">
      <header>
        <h2>{NUMBERS[count] ?? count} continuations</h2>
        <span class={ui.dim} role="status">
          {continuations.note.value || (rate ? `${rate.toFixed(0)} tokens/s in total` : "")}
        </span>
        <button class={ui.quiet} disabled={running} onClick={close}>
          Close
        </button>
      </header>
      <ol>
        {texts.map((text) => (
          <li key={text.seed}>
            <p class={classes(ui.stream, style.stream)} tabIndex={0}>
              {text.text}
            </p>
            <footer>
              <small>
                seed {text.seed}
                {ENDS[text.stopped]}
              </small>
              <button
                disabled={running}
                aria-label={`Inspect this one, seed ${text.seed}`}
                title="Generates this text again below, with the alternatives of each token"
                onClick={() => {
                  void continuations.read(text.seed);
                  document.querySelector("[data-part=written]")?.scrollIntoView({ block: "nearest" });
                }}
              >
                Inspect this one
              </button>
            </footer>
          </li>
        ))}
      </ol>
    </section>
  );
}
