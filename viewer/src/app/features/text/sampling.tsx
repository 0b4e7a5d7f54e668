// Shows how a token is chosen: its distribution under the current sampling settings, and the token that was drawn.

import { useSignal, type Signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { probabilities } from "../../../runtime/engine/probabilities";
import { Sampler, type Candidate } from "../../../runtime/engine/sampling";
import { generation, type Tok } from "../../stores/generation";
import { engine } from "../../stores/model";
import { settings } from "../../stores/settings";
import { percent, thousands, useDevice } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./sampling.module.css";

const BARS = 10;
const FALLS = 1500; // duration in ms of the animation of a draw (CSS class `.falls`)

/** The model's probabilities at one position: those of all tokens, likeliest first. */
interface Distribution {
  at: number;
  key: string;
  all: Candidate[];
  /** A token's logit minus its log-probability. This difference is the same for all tokens. */
  level: number;
}

export function Sliders() {
  const remote = engine().model.split !== null; // the server of a split model supports no repetition penalty
  return (
    <>
      <Slider
        label="Temperature"
        of={settings.temperature}
        min={0}
        max={2}
        step={0.05}
        hint="Below 1, likely tokens become likelier; above 1, unlikely tokens do; 0: always take the likeliest token"
      />
      <Slider
        label="Top-k"
        of={settings.topK}
        min={0}
        max={50}
        step={1}
        hint="Sample from the k likeliest tokens; 0: from all"
        none={0}
      />
      <Slider
        label="Top-p"
        of={settings.topP}
        min={0.05}
        max={1}
        step={0.01}
        hint="Sample from the smallest set of likeliest tokens whose probabilities add up to p; 1: from all"
        none={1}
      />
      <Slider
        label="Min-p"
        of={settings.minP}
        min={0}
        max={1}
        step={0.01}
        hint="Exclude tokens less likely than this fraction of the likeliest token's probability; 0: exclude none"
        none={0}
      />
      {!remote && (
        <Slider
          label="Repetition"
          of={settings.repetitionPenalty}
          min={1}
          max={2}
          step={0.05}
          hint={
            "Repetition penalty: penalizes tokens already in the text (higher is stronger; 1: off). " +
            "Slower, because the page then reads all logits of each token"
          }
          none={1}
        />
      )}
    </>
  );
}

/** Shows the distribution at one position under the current settings, and the token that was drawn. */
export function Sampling() {
  const { tokens, chosen, running } = generation;
  const found = useSignal<Distribution | null>(null);
  const shown = useRef({ key: "", until: 0 }); // the last draw that was animated, and when its animation ends
  const busy = running.value;
  const { vocab_size } = engine().model.manifest.config;
  // The chosen token; the last token if none is chosen, or if the first one is chosen, which the model did not predict.
  const at = chosen.value || tokens.value.length - 1;
  const key = busy ? "" : generation.ids.value.slice(0, at + 1).join();
  const tok = tokens.value[at];
  useDevice(
    async (model) => {
      if (model.split) return; // a server that computes the logits sends only the likeliest tokens
      if (busy || at < 1 || generation.ids.value.length <= at || found.value?.key === key) return;
      const { top, level } = await probabilities(model, generation.ids.value.slice(0, at + 1), at, vocab_size);
      found.value = { at, key, all: top ?? [], level };
    },
    [busy, at, key],
  );
  const newest = !busy && at === tokens.value.length - 1 && !tok?.given;
  if (newest && shown.current.key !== key) shown.current = { key, until: performance.now() + FALLS };
  const falls = newest && performance.now() < shown.current.until;
  const live = !busy && found.value?.key === key ? found.value : null;
  return (
    <fieldset class={style.sampling} data-part="sampling">
      <legend>How the next token is chosen</legend>
      {tok && (
        <Bars
          draw={shown.current.key}
          tok={tok}
          falls={falls}
          of={live ? redistributed(live, tok.id) : (tok.top ?? [])}
          left={live ? live.all.length - BARS : 0}
        />
      )}
    </fieldset>
  );
}

interface SliderProps {
  label: string;
  of: Signal<number>;
  min: number;
  max: number;
  step: number;
  hint: string;
  /** The value that switches the setting off. */
  none?: number;
}

function Slider({ label, of, min, max, step, hint, none }: SliderProps) {
  return (
    <label class={style.slider} title={hint}>
      <span>{label}</span>
      <input
        type="range"
        min={min}
        max={Math.max(max, of.value)}
        step={step}
        value={of.value}
        aria-valuetext={of.value === none ? "off" : String(of.value)}
        onInput={(e) => (of.value = e.currentTarget.valueAsNumber)}
      />
      <output>{of.value === none ? "off" : of.value}</output>
    </label>
  );
}

/** Returns the likeliest tokens and the token `id`, each with its sampling probability under the current settings. */
function redistributed({ all, at, level }: Distribution, id: number): Candidate[] {
  const logits = Float32Array.from(all, ({ p }) => Math.log(Math.max(p, 1e-38)) + level);
  const sampler = new Sampler({ ...settings.sampling(), seed: 0 });
  const text = new Set(engine().model.context.window(generation.ids.value.slice(0, at)));
  // To this sampler, a token's id is its index in `all`. `there` holds the tokens that the text contains.
  const there = [...all.keys()].filter((i) => text.has(all[i]!.id));
  const { sampled } = sampler.draw(sampler.adjusted(logits, there), 0);
  const shown = all.map((c, i) => [c, i] as const).filter(([c, i]) => i < BARS || c.id === id);
  return shown.map(([c, i]) => ({ ...c, sampled: sampled(i) }));
}

interface BarsProps {
  /** A key of the draw. A new key restarts the animation. */
  draw: string;
  tok: Tok;
  of: readonly Candidate[];
  left: number;
  falls: boolean;
}

function Bars({ draw, tok, of, left, falls }: BarsProps) {
  const shown = of.filter((c, i) => i < BARS || c.id === tok.id);
  const drawn = shown.find((c) => c.id === tok.id);
  const most = Math.max(1e-9, ...shown.map((c) => Math.max(c.p, c.sampled ?? 0)));
  return (
    <>
      <p class={ui.dim} role="status">
        <code>{tok.label}</code>
        {tok.given
          ? " is part of the prompt. The model predicted:"
          : tok.p !== undefined && <>: {percent(tok.p)} from the model</>}
        {!tok.given && drawn?.sampled !== undefined && (
          <>, {drawn.sampled ? `${percent(drawn.sampled)} after your settings` : "excluded by your settings"}</>
        )}
      </p>
      <ol key={draw} class={classes(style.chances, falls && style.falls, generation.running.value && style.coming)}>
        {shown.map((c, i) => (
          <li
            key={c.id}
            style={{ "--at": i }}
            class={classes(c.sampled === 0 && style.cut, c.id === tok.id && style.taken)}
          >
            <code>{generation.label(c.id)}</code>
            <span class={style.two}>
              <i class={style.plain} style={{ width: `${(100 * c.p) / most}%` }} />
              <i class={style.drawn} style={{ width: `${(100 * (c.sampled ?? 0)) / most}%` }} />
            </span>
            <span title={c.sampled === 0 ? "excluded by your settings" : undefined}>
              {c.sampled === 0 ? "–" : percent(c.sampled ?? c.p)}
            </span>
          </li>
        ))}
      </ol>
      <p class={classes(ui.dim, style.keyLine)}>
        <i class={style.plain} /> model <i class={style.drawn} /> after your settings
        {left > 0 && `; ${thousands(left)} less likely tokens not shown`}
      </p>
    </>
  );
}
