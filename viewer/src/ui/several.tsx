// Several continuations of the prompt side by side.

import { useLayoutEffect, useRef } from "preact/hooks";
import * as state from "./state";

const NUMBERS = ["", "", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight"];

/** The button that asks for them. */
export function SeveralButton() {
  const count = state.textsAtOnce.value;
  if (!count) return null;
  const same = state.settings.temperature.value === 0;
  return (
    <button
      class="wide"
      disabled={state.running.value || same}
      title={same ? "At temperature 0 all would be the same" : "From the prompt, with this seed and those that follow it; the weights are read once for all"}
      onClick={() => void state.writeSeveral()}
    >
      {NUMBERS[count] ?? count} continuations side by side
    </button>
  );
}

/** What each of them has come to. One of them takes the place of the text above, written again with its seed. */
export function Several() {
  const texts = state.several.value;
  const panel = useRef<HTMLElement>(null);
  const shown = texts !== null;
  useLayoutEffect(() => panel.current?.scrollIntoView({ block: "nearest" }), [shown]);
  if (!texts || !state.textsAtOnce.value) return null;
  const running = state.running.value;
  const count = texts.length || state.textsAtOnce.value;
  const rate = state.severalRate.value;
  return (
    <section class="panel several" ref={panel} aria-label="Continuations side by side">
      <header>
        <h2>{NUMBERS[count] ?? count} continuations</h2>
        <span class="dim" role="status">
          {state.severalNote.value || (rate ? `${rate.toFixed(0)} tokens/s together` : "")}
        </span>
        <button class="quiet" disabled={running} onClick={() => (state.several.value = null)}>
          Close
        </button>
      </header>
      <ol>
        {texts.map((text) => (
          <li key={text.seed}>
            <p class="stream still" tabIndex={0}>
              {text.text}
            </p>
            <footer>
              <small>
                seed {text.seed}
                {text.stopped === "eos" && ", ended by the model"}
                {text.stopped === "text" && ", at the stop text"}
              </small>
              <button
                disabled={running}
                aria-label={`Read this one, of seed ${text.seed}`}
                title="Writes it above with its seed, with what the model weighed for each token"
                onClick={() => {
                  state.settings.seed.value = text.seed;
                  void state.write();
                }}
              >
                Read this one
              </button>
            </footer>
          </li>
        ))}
      </ol>
    </section>
  );
}
