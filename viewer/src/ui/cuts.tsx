// Cutting parts of the model: the buttons, what is cut at present, and the text before and after.

import { cutName, inBlock } from "./names";
import * as state from "./state";
import { percent } from "./tools";

const SHOWN = 6; // alternatives side by side

export function CutButton({ part }: { part: string }) {
  const is = state.cuts.value.includes(part);
  return (
    <button
      aria-pressed={is}
      disabled={Boolean(state.cutting.value) && !is}
      title={is ? "Switch it on again" : "Switch it off and write the text again: what changes?"}
      onClick={() => void state.toggleCut(part)}
    >
      ✂ {is ? "Restore" : "Cut"} {cutName(part)}
    </button>
  );
}

/** Everything of a block that can be cut. */
export function CutButtons({ block }: { block: number }) {
  return (
    <div class="buttons cut-buttons">
      {[`h.${block}`, inBlock(block, "attn"), inBlock(block, "mlp")].map((part) => (
        <CutButton key={part} part={part} />
      ))}
    </div>
  );
}

/** What is cut, over every view. */
export function CutBar() {
  const parts = state.cuts.value;
  if (!parts.length && !state.cutting.value) return null;
  return (
    <div class="cut-bar" role="status">
      <span>{state.cutting.value || "This is not the whole model:"}</span>
      {parts.map((part) => (
        <button key={part} class="quiet" title="Switch it on again" onClick={() => void state.toggleCut(part)}>
          ✂ {cutName(part)} <span aria-hidden="true">✕</span>
        </button>
      ))}
      {parts.length > 1 && (
        <button class="quiet" onClick={() => void state.setCuts([])}>
          Restore all
        </button>
      )}
    </div>
  );
}

/** The whole model's text, and where the cut one first says something else. */
export function Compared() {
  const whole = state.before.value;
  if (!whole || !state.applied.value) return null;
  const now = state.tokens.value;
  const apart = whole.findIndex((tok, i) => !tok.given && now[i] && now[i].id !== tok.id);
  const at = apart >= 0 ? apart : whole.findIndex((tok, i) => !tok.given && now[i]?.top);
  const sides = [
    { title: "Whole", tok: whole[at] },
    { title: "Cut", tok: now[at] },
  ];
  return (
    <section class="panel compared" aria-label="Before and after the cut">
      <div>
        <h2>Without the cut</h2>
        <p class="stream still">
          {whole.map((tok, i) => (
            <span key={i} class={`${tok.given ? "given" : ""}${i === apart ? " apart" : ""}`}>
              {tok.text}
            </span>
          ))}
        </p>
      </div>
      <div>
        <h2>{apart >= 0 ? `The first word that differs, token ${apart}` : "The first word"}</h2>
        <div class="sides">
          {sides.map(({ title, tok }) => (
            <div key={title}>
              <h3>{title}</h3>
              <ol class="bars">
                {tok?.top?.slice(0, SHOWN).map((c) => (
                  <li key={c.id} class={c.id === tok.id ? "taken" : ""}>
                    <span class="bar" style={{ width: `${100 * c.p}%` }} />
                    <code>{state.label(c.id)}</code> <span>{percent(c.p)}</span>
                  </li>
                ))}
              </ol>
            </div>
          ))}
        </div>
        <p class="dim">{changed(sides[0]!.tok, sides[1]!.tok)}</p>
      </div>
    </section>
  );
}

/** How much less or more likely the cut made the whole model's word: the logit difference, but for a constant. */
function changed(whole: state.Tok | undefined, now: state.Tok | undefined): string {
  const p = now?.top?.find((c) => c.id === whole?.id)?.p;
  if (!whole?.p || !p) return "";
  const by = Math.log(p / whole.p);
  return `The cut changed the log-probability of ${whole.label} by ${by >= 0 ? "+" : "−"}${Math.abs(by).toFixed(2)} nats.`;
}
