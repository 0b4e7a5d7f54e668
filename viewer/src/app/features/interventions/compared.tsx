// The texts of the original and the changed model, and how much the change matters.

import { generation, type Tok } from "../../stores/generation";
import { interventions } from "../../stores/interventions";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import { percent } from "../../ui/tools";
import style from "./style.module.css";

const SHOWN = 6; // alternatives listed for each text
const MAX_SHIFT = 3; // nats: a token has its deepest colour if its log-probability changes by this much or more

/** True if the texts of the original and of the changed model are complete. */
export const bothWritten = () => !generation.running.value && !interventions.busy.value;

/** Returns the position of the first generated token in which the changed model's text differs, or -1. */
export const parting = (whole: readonly Tok[], now: readonly Tok[]) =>
  whole.findIndex((tok, i) => !tok.given && now[i] && now[i].id !== tok.id);

/** Shows the texts of the original and the changed model side by side, and the alternatives at the first difference. */
export function Compared() {
  const whole = interventions.before.value;
  const still = bothWritten();
  if (!whole || !interventions.applied.value) return null;
  const now = generation.tokens.value;
  const differsAt = parting(whole, now);
  const at = differsAt >= 0 ? differsAt : whole.findIndex((tok, i) => !tok.given && now[i]?.top);
  const sides = [
    { title: "Original", tok: whole[at] },
    { title: "Changed", tok: now[at] },
  ];
  return (
    <section class={classes(ui.panel, style.compared)} data-part="compared" aria-label="Before and after the change">
      {interventions.shifts.value && (
        <p class={style.words}>
          <Verdict whole={whole} differs={differsAt >= 0} />
        </p>
      )}
      <div>
        <h2>Original</h2>
        <p class={classes(ui.stream, style.still)}>
          {whole.map((tok, i) => {
            const shift = shiftOf(tok, i);
            return (
              <span
                key={i}
                {...shift}
                class={classes(tok.given && style.given, i === differsAt && style.apart, shift.class)}
              >
                {tok.text}
              </span>
            );
          })}
        </p>
        <p class={ui.dim}>
          <span class={style.less} style={{ "--shift": 1 }}>
            less likely
          </span>{" "}
          and{" "}
          <span class={style.more} style={{ "--shift": 1 }}>
            more likely
          </span>{" "}
          in the changed model, after the same words (deepest colour: {MAX_SHIFT} nats or more).{" "}
          {!interventions.shifts.value && "Computing…"}
        </p>
      </div>
      <div>
        <h2>Changed</h2>
        <p class={classes(ui.stream, style.changed)} tabIndex={0}>
          {still
            ? now.map((tok, i) => (
                <span key={i} class={classes(tok.given && style.given, i === differsAt && style.apart)}>
                  {tok.text}
                </span>
              ))
            : "Generating…"}
        </p>
        <p class={ui.dim}>
          {differsAt >= 0
            ? "Framed: the first token that differs. From there on, the texts diverge."
            : still && "The change alters no token of this text."}
        </p>
      </div>
      <div class={style.words}>
        <h2>
          {differsAt >= 0 ? `The first token that differs, at position ${differsAt}` : "The first generated token"}
        </h2>
        <div class={style.sides}>
          {sides.map(({ title, tok }) => (
            <div key={title}>
              <h3>{title}</h3>
              <ol class={classes(ui.bars, style.bars)}>
                {tok?.top?.slice(0, SHOWN).map((c) => (
                  <li key={c.id} class={classes(c.id === tok.id && style.taken)}>
                    <span class={ui.bar} style={{ width: `${100 * c.p}%` }} />
                    <code>{generation.label(c.id)}</code> <span>{percent(c.p)}</span>
                  </li>
                ))}
              </ol>
            </div>
          ))}
        </div>
        <p class={ui.dim}>{changed(sides[0]!.tok, sides[1]!.tok)}</p>
      </div>
    </section>
  );
}

/** Returns the attributes that colour a token by how much less or more likely the change made it. */
function shiftOf(tok: Tok, i: number) {
  const by = interventions.shifts.value?.[i] ?? NaN;
  if (tok.given || !Number.isFinite(by)) return { class: "" };
  const amount = Math.min(1, Math.abs(by) / MAX_SHIFT);
  return {
    class: by < 0 ? style.less : style.more,
    style: { "--shift": amount.toFixed(2) },
    title: `${tok.label}: ${signed(by)} nats, from ${percent(tok.p ?? 0)} to ${percent((tok.p ?? 0) * Math.exp(by))}`,
  };
}

const signed = (by: number) => (Math.abs(by) < 0.005 ? "0.00" : `${by > 0 ? "+" : "−"}${Math.abs(by).toFixed(2)}`);

/** Returns the mean of `interventions.shifts` over the generated tokens, in nats per token; null: not computed yet. */
function meanShift(whole: readonly Tok[]): number | null {
  const all = [...(interventions.shifts.value ?? [])].filter((by, i) => !whole[i]?.given && Number.isFinite(by));
  return all.length ? all.reduce((a, b) => a + b, 0) / all.length : null;
}

const LITTLE = 0.05; // nats per token; readers do not notice a smaller effect
const MUCH = 0.5; // nats per token from which on an effect is called large

/**
 * Rates a change of the model by how much it changes the log-probability of the original text (`meanShift`). It
 * does not matter whether the texts differ: even a tiny change alters some random draw, and then the text differs.
 */
export function Verdict({ whole, differs }: { whole: readonly Tok[]; differs: boolean }) {
  const by = meanShift(whole);
  if (by === null) return null;
  const size = Math.abs(by);
  const how = size < LITTLE ? "Almost no effect" : size < MUCH ? "Small effect" : "Large effect";
  const why = by < 0 ? "less" : "more";
  return (
    <span data-part="verdict">
      <b>{how}:</b>{" "}
      {size < LITTLE
        ? `the original text is as likely as before (${signed(by)} nats per token).` +
          (differs ? " The texts differ only because a random draw came out differently." : "")
        : `the original text is ${why} likely, by ${size.toFixed(2)} nats per token.`}
    </span>
  );
}

/**
 * Describes by how much the change of the model moved the log-probability of `whole`, the original text's token.
 * Returns "" if this token is not among the alternatives to `now`, the changed text's token.
 */
function changed(whole: Tok | undefined, now: Tok | undefined): string {
  const p = now?.top?.find((c) => c.id === whole?.id)?.p;
  if (!whole?.p || !p) return "";
  const by = Math.log(p / whole.p);
  return `The change moved the log-probability of ${whole.label} by ${signed(by)} nats.`;
}
