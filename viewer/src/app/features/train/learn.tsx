// The Train step: controls for the model's size and the schedule, and the samples, curves and textures of the training.

import { Facts } from "../../ui/facts";
import { useComputed, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { NGRAMS } from "../../../training/ngrams";
import type { Figures } from "../../../training/predictions";
import { baselinesAhead } from "../../../training/score";
import type { Offer } from "../../../runtime/engine/manifest";
import { Curves } from "../../ui/curves";
import { NumberField } from "../../ui/number";
import { engine } from "../../stores/model";
import { countInWords, thousands } from "../../ui/tools";
import { inside } from "./inside";
import { duration, train } from "./store";
import { HELD } from "./text-store";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const COUNTED = 2_000_000; // maximum characters of a text whose n-grams are counted before the training starts
const LOOK_MS = 700; // minimum ms between two drawings of the same texture while the training runs

const swatch = (color: string) => ({ background: `var(${color})` });

export function LearnStage() {
  return (
    <div class={style.learn}>
      <Controls />
      <div class={style.learning}>
        {train.session.value || engine().training.earlier ? (
          <>
            <Samples />
            <Progress />
            <Inside />
          </>
        ) : (
          <>
            <Ahead />
            <Samples />
          </>
        )}
      </div>
    </div>
  );
}

function Controls() {
  const sizes = train.index.value!.sizes;
  const names = [...new Set(sizes.map((s) => s.name))];
  const offer = train.offer();
  const fixed = train.fixed.value;
  return (
    // the changed setting may have been the cause of the last error
    <div class={classes(ui.panel, style.settings)} onChangeCapture={() => (train.problem.value = "")}>
      <h2>Size and schedule</h2>
      <div class={classes(ui.fields, style.fields)}>
        <label class={ui.field} title="The number of parameters that the model learns, in millions">
          <span>Size</span>
          <select
            disabled={fixed}
            value={train.preset.value}
            onChange={(e) => train.choose(sizes.find((s) => s.name === e.currentTarget.value)!)}
          >
            {names.map((name) => (
              <option key={name} value={name}>
                {name}, {(sizes.find((s) => s.name === name)!.count / 1e6).toFixed(1)} M
              </option>
            ))}
          </select>
        </label>
        <label
          class={ui.field}
          title="What a token is: a byte, or a piece of text from a vocabulary learnt from this text"
        >
          <span>Tokens</span>
          <select
            disabled={fixed}
            value={train.tokenizer.value}
            onChange={(e) => (train.tokenizer.value = e.currentTarget.value)}
          >
            {sizes
              .filter((s) => s.name === train.preset.value)
              .map((s) => (
                <option key={s.tokenizer} value={s.tokenizer}>
                  {s.tokenizer === "bytes" ? "bytes" : `${s.tokenizer.slice(4)}, learnt`}
                </option>
              ))}
          </select>
        </label>
      </div>
      {offer && (
        <p class={ui.dim}>
          {offer.config.n_layer} layers with {offer.config.n_head} heads, width {offer.config.n_embd}, context{" "}
          {offer.config.n_positions}; each step trains on {offer.recipe.batch} x {offer.recipe.context} tokens;{" "}
          {(offer.bytes / 2 ** 20).toFixed(0)} MiB of textures
        </p>
      )}
      {offer && <Costs offer={offer} />}
      <Schedule fixed={fixed} />
    </div>
  );
}

/**
 * Shows the time that each size would take on this device. Until the speed is measured, shows the table without times,
 * so that its height does not change later.
 */
function Costs({ offer }: { offer: Offer }) {
  const rate = train.deviceRate.value;
  const listed = train.index.value!.sizes.filter((s) => s.tokenizer === offer.tokenizer);
  if (listed.length < 2) return <p class={ui.dim}>{cost(offer, rate, " steps", ", about")}</p>;
  return (
    <table class={style.costs} aria-label="Training time of each size on this device">
      <thead>
        <tr>
          <th scope="col">Size</th>
          <th scope="col">per step</th>
          <th scope="col">steps in total</th>
        </tr>
      </thead>
      <tbody>
        {listed.map((each) => (
          <tr key={each.name} aria-current={each.name === offer.name ? "true" : undefined}>
            <th scope="row">{each.name}</th>
            <td>{rate ? seconds(each.flops / rate) : "…"}</td>
            <td>{cost(each, rate, "", " in")}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/**
 * Returns the number of steps of a size and, if the speed is known, the time that they take. The selected size has the
 * number of steps in the schedule's field; another size has its default number.
 */
function cost(offer: Offer, rate: number, unit: string, relation: string): string {
  const steps = offer.name === train.preset.value ? train.schedule.steps.value : offer.settings.steps;
  const count = `${thousands(steps)}${unit}`;
  return rate ? `${count}${relation} ${duration((steps * offer.flops) / rate)}` : count;
}

const seconds = (s: number) =>
  s < 1 ? `${(1000 * s).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(s < 10 ? 1 : 0)} s`;

function Schedule({ fixed }: { fixed: boolean }) {
  const s = train.schedule;
  const found = train.shown.value;
  const ended = found?.status === "done";
  return (
    <details>
      <summary>Schedule</summary>
      <div class={classes(ui.fields, style.fields)}>
        <NumberField
          label="Steps"
          of={s.steps}
          min={1}
          step={1}
          hint="Number of training steps"
          fixed={fixed && !ended}
        />
        <NumberField
          label="Learning rate"
          of={s.lr}
          min={0}
          step="any"
          hint="The peak learning rate; it can be changed while the training is paused"
          fixed={found?.status === "running" || train.preparing.value !== null}
          onSet={() => void train.rate()}
        />
        <NumberField
          label="Final rate"
          of={s.min_lr}
          min={0}
          step="any"
          hint="The learning rate at the last step"
          fixed={fixed}
        />
        <NumberField
          label="Warmup"
          of={s.warmup}
          min={0}
          step={1}
          hint="Steps over which the learning rate rises"
          fixed={fixed}
        />
        <label class={ui.field}>
          <span>Shape</span>
          <select
            disabled={fixed}
            value={train.shape.value}
            onChange={(e) => (train.shape.value = e.currentTarget.value as typeof train.shape.value)}
          >
            <option>cosine</option>
            <option>linear</option>
            <option>constant</option>
          </select>
        </label>
        <NumberField
          label="Seed"
          of={s.seed}
          min={0}
          step={1}
          hint="The same seed, text and settings give the same model"
          fixed={fixed}
        />
        <NumberField
          label="Validate every"
          of={s.evalEvery}
          min={0}
          step={1}
          hint="Steps between two measurements of the validation loss; 0: never"
          fixed={fixed}
        />
        <NumberField
          label="Sample every"
          of={s.sampleEvery}
          min={0}
          step={1}
          hint="Steps between two samples; 0: never"
          fixed={fixed}
        />
      </div>
    </details>
  );
}

/** The sketch's dashed lines, one for each baseline: percent from the top, what the baseline does, and its name. */
const LEVELS: readonly [number, string, string][] = [
  [9, "knows nothing: every token is equally likely", "chance"],
  [37, "counts how often each token occurs", "unigram"],
  [58, "counts pairs of tokens", "bigram"],
  [72, "counts triples of tokens", "trigram"],
];
/** The numbered points on the sketch's curve: percent from the left, percent from the top, title, explanation. */
const PHASES: readonly [number, number, string, string][] = [
  [2, 9, "It knows nothing", "Its weights are random, so it writes noise."],
  [13, 37, "It counts", "Within about ten steps it writes frequent letters and spaces."],
  [36, 61, "It uses context", "It learns what follows what, and attention patterns appear."],
  [82, 82, "It writes", "Words come first, then lines, then speakers."],
];
const CURVE = "M2 9C7 11 8 30 13 37S26 54 36 61S62 79 82 82L99 83.5";

/** Shows, before the first step, what the training will do and which baselines (dashed lines) the model has to beat. */
function Ahead() {
  const offer = train.offer();
  const text = train.text.value;
  const counted = useSignal<readonly Figures[]>([]);
  useEffect(() => {
    counted.value = [];
    if (offer?.tokenizer !== "bytes" || !text || text.length > COUNTED) return;
    let current = true;
    const show = (found: readonly Figures[]) => {
      if (current) counted.value = found;
    };
    // if this fails, the sketch is shown without the losses of the n-gram models
    void baselinesAhead(text, HELD, offer).then(show, () => {});
    return () => {
      current = false;
    };
  }, [offer, text]);
  if (!offer) return null;
  const known = new Map(counted.value.map(({ name, nats_per_token }) => [name, nats_per_token]));
  if (!known.size) known.set("chance", Math.log(offer.config.vocab_size));
  return (
    <div class={classes(ui.panel, style.ahead)}>
      <h2>Can it beat the dashed lines?</h2>
      <p>
        Start makes a new model of {countInWords(offer.count)} random weights and trains it on your text in{" "}
        {cost(offer, train.deviceRate.value, " steps", ", about")}. The curve is the loss: how unsure the model is of
        the next token. Each dashed line is a simpler way to guess, without any attention.
      </p>
      <div
        class={style.sketch}
        role="img"
        aria-label="Sketch: the loss falls from chance, below the lines of models that count tokens, pairs and triples"
      >
        <svg viewBox="0 0 100 100" preserveAspectRatio="none">
          {LEVELS.map(([at]) => (
            <path key={at} class={style.level} d={`M0 ${at}H100`} />
          ))}
          <path class={style.curve} d={CURVE} />
        </svg>
        {LEVELS.map(([at, what, name]) => (
          <span key={name} class={style.levelName} style={{ top: `${at}%` }}>
            <b>{name}</b>
            {known.has(name) && ` ${known.get(name)!.toFixed(2)}`} <small>{what}</small>
          </span>
        ))}
        {PHASES.map(([x, y], i) => (
          <i key={i} style={{ left: `${x}%`, top: `${y}%` }}>
            {i + 1}
          </i>
        ))}
        <small class={style.axisName}>steps →</small>
      </div>
      <ol>
        {PHASES.map(([, , title, text]) => (
          <li key={title}>
            <b>{title}.</b> {text}
          </li>
        ))}
      </ol>
      <p class={ui.dim}>
        {known.size > 1
          ? "The curve is a sketch; the numbers of the lines are those of your text, in nats per token on text " +
            "that is held out. The real curve appears here after Start."
          : "A sketch: the real curve and lines, measured in nats per token on text that is held out, appear " +
            "here after Start."}
      </p>
    </div>
  );
}

function Progress() {
  const log = useSignal(false);
  const found = train.shown.value;
  const points = found?.points ?? [];
  const last = points.findLast((p) => p.step > 0);
  const at = last?.step ?? found?.checkpoint?.step ?? 0;
  const judged = points.findLast((p) => p.validation !== undefined);
  const rates = found?.plan.rates;
  const perStep =
    found && found.tokensPerS
      ? (found.plan.offer.recipe.batch * found.plan.offer.recipe.context) / found.tokensPerS
      : 0;
  const earlier = engine().training.earlier;
  const overlaid =
    earlier && earlier.tokenizer === (found?.plan.offer.tokenizer ?? train.tokenizer.value) ? earlier : null;
  const steps = [...new Set([...points, ...(overlaid?.points ?? [])].map((p) => p.step))].sort((a, b) => a - b);
  const over = (of: readonly { step: number; loss: number; validation?: number }[], key: "loss" | "validation") => {
    const values = new Map(of.map((p) => [p.step, p[key]]));
    return steps.map((step) => values.get(step));
  };
  const baselines = found?.baselines ?? [];
  const beaten =
    judged &&
    [...NGRAMS]
      .reverse()
      .find((name) => baselines.some((b) => b.name === name && judged.validation! < b.nats_per_token));
  const some = (values: (number | undefined)[]) =>
    values.map((v) => (v !== undefined && Number.isFinite(v) ? v : null));
  const facts: [string, string][] = [
    ["Step", at && rates ? `${at} of ${rates.steps}` : "–"],
    ["Loss", last ? last.loss.toFixed(3) : "–"],
    [
      "Validation",
      judged
        ? `${judged.validation!.toFixed(3)} (${judged.bits!.toFixed(2)} bits/byte)` +
          (judged.step === at ? "" : `, step ${judged.step}`)
        : "–",
    ],
    ["Gradient norm", last ? last.gradNorm.toFixed(2) : "–"],
    ["Learning rate", last ? last.lr.toPrecision(3) : "–"],
    ["Speed", perStep ? `${found!.tokensPerS.toFixed(0)} tokens/s` : "–"],
    ["Work", perStep ? `${(found!.plan.offer.flops / perStep / 1e9).toFixed(1)} GFLOP/s` : "–"],
  ];
  return (
    <div class={ui.panel} data-part="progress" data-step={at}>
      <div class={classes(ui.title, style.title)}>
        <h2>How it learns</h2>
        <label class={ui.inline}>
          <input type="checkbox" checked={log.value} onChange={(e) => (log.value = e.currentTarget.checked)} />
          logarithmic
        </label>
      </div>
      <Facts of={facts} />
      <p class={style.key}>
        <i style={swatch("--accent")} /> loss of each step <i style={swatch("--held-out")} /> loss on held-out text, in
        nats per token
      </p>
      {baselines.length > 0 && (
        <p class={ui.dim}>
          Dashed: chance, and models that only count tokens (unigram), pairs (bigram) or triples (trigram).
          {beaten && <b> The model is better than a {beaten} model.</b>}
        </p>
      )}
      <Curves
        label={`Loss over the steps, now ${last?.loss.toFixed(3) ?? "none"}`}
        steps={steps}
        measure="loss, nats per token"
        log={log.value}
        height={250}
        lines={baselines.map(({ name, nats_per_token: at }) => ({ name, at }))}
        curves={[
          { name: "loss", color: "--accent", values: some(over(points, "loss")) },
          { name: "validation", color: "--held-out", values: some(over(points, "validation")), sparse: true },
          ...(overlaid
            ? [
                {
                  name: "previous validation",
                  color: "--dim",
                  values: some(over(overlaid.points, "validation")),
                  sparse: true,
                  dashed: true,
                },
              ]
            : []),
        ]}
      />
      {earlier && (
        <p class={ui.dim} data-part="earlier">
          {overlaid
            ? `Grey: validation loss of the previous run (${earlier.name}). `
            : `The previous run (${earlier.name}) used another tokenizer, so its losses are not comparable. `}
          <button class={ui.link} onClick={() => void engine().training.forgetEarlier()}>
            Remove it
          </button>
        </p>
      )}
      <p class={style.key}>
        <i style={swatch("--good")} /> norm of the gradient
      </p>
      <Curves
        label="Norm of the gradient over the steps"
        steps={points.map((p) => p.step)}
        measure="norm"
        log={log.value}
        height={130}
        curves={[{ name: "gradient", color: "--good", values: some(points.map((p) => p.gradNorm)) }]}
      />
      <p class={ui.dim} role={engine().training.unkept ? "status" : undefined}>
        {engine().training.unkept
          ? `This browser stores no checkpoint: ${engine().training.unkept}.`
          : "A checkpoint is stored in this browser every 20 s: you can close the page and continue another day."}
      </p>
    </div>
  );
}

/** Shows all samples so far, scrolled to the latest one. */
function Samples() {
  const film = useRef<HTMLOListElement>(null);
  const found = train.shown.value;
  const samples = found?.samples ?? [];
  const last = samples.at(-1)?.step;
  useEffect(() => {
    if (film.current) film.current.scrollLeft = film.current.scrollWidth;
  }, [last]);
  return (
    <div class={ui.panel} data-part="samples">
      <h2>What it writes as it learns</h2>
      {samples.length ? (
        <ol class={style.film} ref={film} tabIndex={0} aria-label="Samples by step">
          {samples.map(({ step, text }, i) => (
            <li key={i}>
              <b>step {step}</b>
              <pre>{text}</pre>
            </li>
          ))}
        </ol>
      ) : (
        <p class={ui.dim}>
          Press Start to see a sample every {train.schedule.sampleEvery.value} steps. The first ones are noise.
        </p>
      )}
    </div>
  );
}

const KINDS = {
  "": "weights",
  "d.": "gradient",
  ".moment": "running mean of gradients",
  ".squares": "running mean of squared gradients",
};

function Inside() {
  const grid = useRef<HTMLCanvasElement>(null);
  const plane = useRef<HTMLCanvasElement>(null);
  const drawn = useRef({ at: 0, texture: "" });
  const chosen = useSignal("");
  const kind = useSignal<keyof typeof KINDS>("");
  const offer = useComputed(() => train.shown.value?.plan.offer ?? train.offer());
  const matrices = useComputed(
    () => offer.value?.parameters.filter(({ shape }) => shape.length > 1).map(({ name }) => name) ?? [],
  );
  const name = useComputed(() => (matrices.value.includes(chosen.value) ? chosen.value : (matrices.value[0] ?? "")));
  const texture = useComputed(() => (kind.value === "d." ? `d.${name.value}` : name.value + kind.value));
  useSignalEffect(() => {
    const [found, session, wanted] = [train.shown.value, train.session.value, texture.value];
    if (!found || !session || document.hidden) return;
    const at = performance.now();
    const soon = wanted === drawn.current.texture && at - drawn.current.at < LOOK_MS;
    if (soon && found.status === "running") return;
    drawn.current = { at, texture: wanted };
    inside
      .draw(session, grid.current!, plane.current!, wanted)
      .catch((error: unknown) => console.warn("drawing:", error));
  });
  const config = offer.value?.config;
  return (
    <div class={classes(ui.panel, style.inside)}>
      <h2>Inside the model as it learns</h2>
      <figure>
        <figcaption class={ui.dim}>
          Attention on the start of the held-out text: {config?.n_layer} layers (down) with {config?.n_head} heads
          (across)
        </figcaption>
        <canvas ref={grid} data-part="heads" role="img" aria-label="Attention of every layer and head" />
      </figure>
      <figure>
        <figcaption class={ui.dim}>
          <select aria-label="Parameter" value={name.value} onChange={(e) => (chosen.value = e.currentTarget.value)}>
            {matrices.value.map((matrix) => (
              <option key={matrix}>{matrix}</option>
            ))}
          </select>{" "}
          <select
            aria-label="Weights, gradient or optimizer state"
            value={kind.value}
            onChange={(e) => (kind.value = e.currentTarget.value as keyof typeof KINDS)}
          >
            {Object.entries(KINDS).map(([key, title]) => (
              <option key={key} value={key}>
                {title}
              </option>
            ))}
          </select>
        </figcaption>
        <canvas ref={plane} class={style.matrix} role="img" aria-label={`${KINDS[kind.value]} of ${name.value}`} />
      </figure>
    </div>
  );
}
