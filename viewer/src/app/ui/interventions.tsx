// Interventions: the controls that change parts of the model, the active changes, and the text before and after.

import { useSignal } from "@preact/signals";
import { Scissors, Undo2, X } from "lucide";
import { useEffect } from "preact/hooks";
import { parseIntervention, scales, written } from "../../runtime/engine/interventions";
import { interventionName } from "./names";
import { generation, type Tok } from "../stores/generation";
import { interventions } from "../stores/interventions";
import { engine } from "../stores/model";
import { route } from "../stores/route";
import { percent } from "./tools";
import { classes } from "./classes";
import { Icon } from "./icon";
import ui from "./shared.module.css";
import style from "./interventions.module.css";

const SHOWN = 6; // alternatives listed for each text
const MAX_SHIFT = 3; // change in nats at which a token has its deepest colour
const SOME = 8; // tokens of each text that the bar quotes
const SOON = 300; // ms before the effect of a change is computed, so that the view draws first

const named = (change: string) => interventionName(engine().model.names, change);

export function AblateButton({ part }: { part: string }) {
  const made = interventions.parts.value.find((each) => scales(each) && parseIntervention(each).part === part);
  const is = made !== undefined;
  return (
    <button
      class={style.ablate}
      data-ablate={part}
      aria-pressed={is}
      disabled={Boolean(interventions.status.value) && !is}
      title={
        is ? "Switch it on again" : "Ablate: switch this part off and generate the text again, to see what changes"
      }
      onClick={() => void interventions.toggle(made ?? part)}
    >
      <Icon of={is ? Undo2 : Scissors} /> {is ? "Restore" : "Ablate"} {named(part)}
    </button>
  );
}

/** Returns all active changes except those of this kind to this part, which a new one replaces. */
const others = (part: string, kind: "pattern" | "patch" | "steering") =>
  interventions.parts.value.filter((each) => {
    const change = parseIntervention(each);
    return change.part !== part || !change[kind];
  });

const PATTERN_NAMES: Record<string, string> = {
  uniform: "all earlier tokens equally",
  previous: "the previous token",
  first: "the first token",
};

/** Selects what a head, or all heads of a layer, attend to: unchanged, or a fixed pattern. */
export function LooksAt({ part }: { part: string }) {
  const { patterns = [] } = engine().model.manifest;
  const made = interventions.parts.value
    .map(parseIntervention)
    .find((change) => change.part === part && change.pattern);
  if (!patterns.length) return null;
  return (
    <label class={ui.inline} title="Replaces the attention pattern and generates the text again, to see what changes">
      Attends to
      <select
        value={made?.pattern ?? ""}
        disabled={Boolean(interventions.status.value)}
        onChange={(e) => {
          const pattern = e.currentTarget.value;
          void interventions.set([...others(part, "pattern"), ...(pattern ? [written({ part, pattern })] : [])]);
        }}
      >
        <option value="">(unchanged)</option>
        {patterns.map((name) => (
          <option key={name} value={name}>
            {PATTERN_NAMES[name] ?? name}
          </option>
        ))}
      </select>
    </label>
  );
}

/** The controls for interventions on a block; `token` is the position that a patch applies to. */
export function AblateButtons({ block, token }: { block: number; token: number }) {
  return (
    <div class={classes(ui.buttons, style.parts)}>
      {engine()
        .model.names.partsOf(block)
        .map((part) => (
          <AblateButton key={part} part={part} />
        ))}
      {engine().model.tokenizer && <Patch block={block} token={token} />}
      {engine().model.tokenizer && <Steer block={block} />}
    </div>
  );
}

const STRENGTHS = [-1, 0, 0.5, 2, 4, 8];

/** Selects the factor of a change: 0 switches a part off, 2 doubles what it adds. */
function Strength({ of }: { of: string }) {
  const change = parseIntervention(of);
  const known = [...new Set([...STRENGTHS, change.factor])].sort((a, b) => a - b);
  return (
    <select
      aria-label={`Strength of ${named(of)}`}
      title="Multiplies what this part adds to the stream; 0 switches it off"
      value={change.factor}
      disabled={Boolean(interventions.status.value)}
      onChange={(e) => {
        const other = written({ ...change, factor: Number(e.currentTarget.value) });
        void interventions.set(interventions.parts.value.map((each) => (each === of ? other : each)));
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

/** Activation patching: at one token, a part of a block outputs what it outputs there in another text. */
function Patch({ block, token }: { block: number; token: number }) {
  const text = useSignal("");
  const of = useSignal(""); // part of the block, such as "attn"; "": the whole block
  const { names } = engine().model;
  const [whole, ...parts] = names.partsOf(block) as [string, ...string[]];
  const part = of.value ? `${whole}.${of.value}` : whole;
  const patch = () =>
    void interventions.set([...others(part, "patch"), written({ part, patch: { position: token, text: text.value } })]);
  return (
    <details class={style.changing} data-part="patch">
      <summary>
        Patch token {token} in block {block}
      </summary>
      <p class={ui.dim}>
        Replaces the block's output at token {token} with its output at that token of another text. If the model then
        predicts what it predicts for the other text, the difference between the texts is stored here.
      </p>
      <label class={ui.field}>
        <span>Other text</span>
        <input
          value={text.value}
          placeholder="the same text with one word changed"
          onInput={(e) => (text.value = e.currentTarget.value)}
        />
      </label>
      <label class={ui.field}>
        <span>What to patch</span>
        <select value={of.value} onChange={(e) => (of.value = e.currentTarget.value)}>
          <option value="">the stream after the block</option>
          {parts.map((each) => (
            <option key={each} value={each.slice(whole.length + 1)}>
              what {names.title(each)} adds
            </option>
          ))}
        </select>
      </label>
      <button disabled={!text.value || Boolean(interventions.status.value)} onClick={patch}>
        Patch
      </button>
    </details>
  );
}

/** Steering: adds to a block's output the difference between the stream at the ends of two texts. */
function Steer({ block }: { block: number }) {
  const towards = useSignal("");
  const away = useSignal("");
  const part = engine().model.names.partsOf(block)[0]!;
  const steer = () => {
    void interventions.set([
      ...others(part, "steering"),
      written({ part, factor: 2, steering: { towards: towards.value, away: away.value } }),
    ]);
  };
  const field = (title: string, of: typeof towards, hint: string) => (
    <label class={ui.field}>
      <span>{title}</span>
      <input value={of.value} placeholder={hint} onInput={(e) => (of.value = e.currentTarget.value)} />
    </label>
  );
  return (
    <details class={style.changing} data-part="steer">
      <summary>Steer block {block}</summary>
      <p class={ui.dim}>
        Adds a direction to the stream at every token: the difference between the stream at the end of two texts.
      </p>
      {field("Towards", towards, "I love")}
      {field("Away from", away, "I hate")}
      <button disabled={!towards.value || Boolean(interventions.status.value)} onClick={steer}>
        Steer
      </button>
    </details>
  );
}

/** True if both texts, before and after the change, are complete. */
const bothWritten = () => !generation.running.value && !interventions.status.value;

/** Starts computing a change's effect when both texts are complete. Used in the bar of all views, so it runs once. */
function useWeighed(whole: readonly Tok[] | null): void {
  const still = bothWritten();
  useEffect(() => {
    if (!still || !whole || !interventions.applied.value || interventions.shifts.value) return;
    const timer = setTimeout(() => void interventions.weighShifts(), SOON);
    return () => clearTimeout(timer);
  }, [still, whole, interventions.applied.value, route.view.value]);
}

/** Quotes the first difference between the texts before and after the change, on views that do not show the texts. */
function Parting() {
  const [whole, now] = [interventions.before.value, generation.tokens.value];
  useWeighed(whole);
  if (!whole || !interventions.applied.value || route.view.value === "text") return null;
  const differsAt = parting(whole, now);
  let word = differsAt; // first token of the word that contains the first difference
  const inside = (at: number) => [whole[at]!, now[at]!].some(({ text, given }) => !given && !/^\s/.test(text));
  while (word > 0 && inside(word)) word--;
  const after = (list: readonly Tok[]) =>
    list
      .slice(word, differsAt + SOME)
      .map((tok) => tok.text)
      .join("")
      .replace(/\s+/g, " ")
      .trim();
  return (
    <>
      {differsAt >= 0 && (
        <span class={style.parting}>
          the text was “{after(whole)} …” and is now “{after(now)} …”.
        </span>
      )}
      {differsAt < 0 && !generation.running.value && <span>the text is the same.</span>}
      {interventions.shifts.value && <Verdict whole={whole} differs={false} />}
      <button onClick={() => route.showAt("text", "[data-part=compared]")}>Compare the texts</button>
    </>
  );
}

/** Returns the position of the first generated token that differs in the changed model's text; -1: none. */
const parting = (whole: readonly Tok[], now: readonly Tok[]) =>
  whole.findIndex((tok, i) => !tok.given && now[i] && now[i].id !== tok.id);

/** A bar over the bottom of every view that lists the active changes. */
export function InterventionBar() {
  const parts = interventions.parts.value;
  if (!parts.length && !interventions.status.value) return null;
  return (
    <div class={style.bar} data-interventions="" role="status">
      <span>{interventions.status.value || "Changed model:"}</span>
      {parts.map((part) => (
        <span key={part} class={style.change}>
          <button class={ui.quiet} title="Undo this change" onClick={() => void interventions.toggle(part)}>
            {scales(part) && parseIntervention(part).factor === 0 && <Icon of={Scissors} />} {named(part)}{" "}
            <Icon of={X} />
          </button>
          {!parseIntervention(part).patch && !parseIntervention(part).pattern && <Strength of={part} />}
        </span>
      ))}
      {parts.length > 1 && (
        <button class={ui.quiet} onClick={() => void interventions.set([])}>
          Undo all
        </button>
      )}
      <Parting />
    </div>
  );
}

/** The texts of the original and the changed model side by side, and the alternatives at their first difference. */
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

/** Returns the attributes of a token that the change made less or more likely. */
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

/** Returns the mean change of log-probability over the original text, in nats per token; null: not computed yet. */
function meanShift(whole: readonly Tok[]): number | null {
  const all = [...(interventions.shifts.value ?? [])].filter((by, i) => !whole[i]?.given && Number.isFinite(by));
  return all.length ? all.reduce((a, b) => a + b, 0) / all.length : null;
}

const LITTLE = 0.05; // nats per token: too little for a reader to notice
const MUCH = 0.5;

/** Rates a change by its mean shift, because even a tiny change alters some random draw and with it the text. */
function Verdict({ whole, differs }: { whole: readonly Tok[]; differs: boolean }) {
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

/** Describes how much the change moved the log-probability of the original model's token. */
function changed(whole: Tok | undefined, now: Tok | undefined): string {
  const p = now?.top?.find((c) => c.id === whole?.id)?.p;
  if (!whole?.p || !p) return "";
  const by = Math.log(p / whole.p);
  return `The change moved the log-probability of ${whole.label} by ${signed(by)} nats.`;
}
