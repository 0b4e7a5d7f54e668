// Cutting parts of the model: the buttons, what is cut at present, and the text before and after.

import { useSignal } from "@preact/signals";
import { parseChange, written } from "../engine/cuts";
import { cutName, inBlock } from "./names";
import * as state from "./state";
import { percent } from "./tools";

const SHOWN = 6; // alternatives side by side
const SOME = 8; // tokens of each text that the bar shows

export function CutButton({ part }: { part: string }) {
  const made = state.cuts.value.find((cut) => !cut.includes("~") && parseChange(cut).part === part);
  const is = made !== undefined;
  return (
    <button
      aria-pressed={is}
      disabled={Boolean(state.cutting.value) && !is}
      title={is ? "Switch it on again" : "Switch it off and write the text again: what changes?"}
      onClick={() => void state.toggleCut(made ?? part)}
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
      {state.engine().model.tokenizer && <Steer block={block} />}
    </div>
  );
}

const STRENGTHS = [-1, 0, 0.5, 2, 4, 8];

/** How strong a change is: 0 switches a part off, 2 doubles what it adds. */
function Strength({ of }: { of: string }) {
  const change = parseChange(of);
  const known = [...new Set([...STRENGTHS, change.factor])].sort((a, b) => a - b);
  return (
    <select
      aria-label={`Strength of ${cutName(of)}`}
      title="What it adds is multiplied by this; 0 switches it off"
      value={change.factor}
      disabled={Boolean(state.cutting.value)}
      onChange={(e) => {
        const other = written({ ...change, factor: Number(e.currentTarget.value) });
        void state.setCuts(state.cuts.value.map((cut) => (cut === of ? other : cut)));
      }}
    >
      {known.map((factor) => (
        <option key={factor} value={factor}>
          × {factor}
        </option>
      ))}
    </select>
  );
}

/** Steering a block: from what the stream is at the end of one text towards what it is at the end of another. */
function Steer({ block }: { block: number }) {
  const towards = useSignal("");
  const away = useSignal("");
  const part = `h.${block}`;
  const steer = () => {
    const kept = state.cuts.value.filter((cut) => !(cut.includes("~") && parseChange(cut).part === part));
    void state.setCuts([...kept, written({ part, factor: 2, steering: { towards: towards.value, away: away.value } })]);
  };
  const field = (title: string, of: typeof towards, hint: string) => (
    <label class="field">
      <span>{title}</span>
      <input value={of.value} placeholder={hint} onInput={(e) => (of.value = e.currentTarget.value)} />
    </label>
  );
  return (
    <details class="steer">
      <summary>Steer block {block}</summary>
      <p class="dim">Adds to the stream, at every token, what sets the end of one text apart from the end of another.</p>
      {field("Towards", towards, "I love")}
      {field("Away from", away, "I hate")}
      <button disabled={!towards.value || Boolean(state.cutting.value)} onClick={steer}>
        Steer
      </button>
    </details>
  );
}

/** Where the texts of the whole and of the cut model part, in words, on the views that do not show them. */
function Parting() {
  const [whole, now] = [state.before.value, state.tokens.value];
  if (!whole || !state.applied.value || state.view.value === "text") return null;
  const apart = parting(whole, now);
  const after = (list: readonly state.Tok[]) => list.slice(apart, apart + SOME).map((tok) => tok.text).join("").replace(/\s+/g, " ").trim();
  return (
    <>
      {apart >= 0 && (
        <span class="parting">
          the text was “{after(whole)} …” and is “{after(now)} …” now.
        </span>
      )}
      {apart < 0 && !state.running.value && <span>the text stays the same.</span>}
      <button onClick={() => state.showAt("text", ".compared")}>Compare the texts</button>
    </>
  );
}

/** The first token that is another in the cut model's text; -1: none. */
const parting = (whole: readonly state.Tok[], now: readonly state.Tok[]) => whole.findIndex((tok, i) => !tok.given && now[i] && now[i].id !== tok.id);

/** What is cut, over every view. */
export function CutBar() {
  const parts = state.cuts.value;
  if (!parts.length && !state.cutting.value) return null;
  return (
    <div class="cut-bar" role="status">
      <span>{state.cutting.value || "This is not the whole model:"}</span>
      {parts.map((part) => (
        <span key={part} class="change">
          <button class="quiet" title="Restore it" onClick={() => void state.toggleCut(part)}>
            ✂ {cutName(part)} <span aria-hidden="true">✕</span>
          </button>
          <Strength of={part} />
        </span>
      ))}
      {parts.length > 1 && (
        <button class="quiet" onClick={() => void state.setCuts([])}>
          Restore all
        </button>
      )}
      <Parting />
    </div>
  );
}

/** The whole model's text, and where the cut one first says something else. */
export function Compared() {
  const whole = state.before.value;
  if (!whole || !state.applied.value) return null;
  const now = state.tokens.value;
  const apart = parting(whole, now);
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
