// How a token is drawn: the distribution of one of them under the settings as they are set now, and the draw.

import { useSignal, type Signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { Sampler, type Candidate } from "../engine/sampling";
import * as state from "./state";
import { percent, useDevice } from "./tools";

const BARS = 10;
const FALLS = 1500; // ms in which a draw is shown as it falls (see `.falls`)

/** What the model said of the tokens that may stand at a place: all of them, likeliest first. */
interface Distribution {
  at: number;
  key: string;
  all: Candidate[];
  /** What the logarithms of their probabilities are below their logits. */
  level: number;
}

/** How bold a draw is, among which tokens, and how much those are worth that the text has already. */
export function Sliders() {
  const { settings } = state;
  const remote = state.engine().model.split !== null; // which takes no penalty
  return (
    <>
      <Slider label="Temperature" of={settings.temperature} min={0} max={2} step={0.05} hint="Below 1 the likely grows likelier, above 1 the unlikely does; 0 always takes the likeliest" />
      <Slider label="Top-k" of={settings.topK} min={0} max={50} step={1} hint="Draw among the k likeliest; 0: among all" none={0} />
      <Slider label="Top-p" of={settings.topP} min={0.05} max={1} step={0.01} hint="Draw among the likeliest that make up p; 1: among all" none={1} />
      <Slider label="Min-p" of={settings.minP} min={0} max={1} step={0.01} hint="Draw among tokens at least so many times as likely as the likeliest; 0: among all" none={0} />
      {!remote && (
        <Slider label="Repetition" of={settings.repetitionPenalty} min={1} max={2} step={0.05} hint="Repetition penalty: tokens that the text has already grow less likely; 1: they do not. The page then draws each token from all logits, which takes longer" none={1} />
      )}
    </>
  );
}

/** The next word: its distribution under the settings as they are set now, and the one that was drawn. */
export function Sampling() {
  const { tokens, chosen, running } = state;
  const found = useSignal<Distribution | null>(null);
  const shown = useRef({ key: "", until: 0 }); // the draw that was shown last, as it fell
  const busy = running.value;
  const { vocab_size } = state.engine().model.manifest.config;
  const at = chosen.value || tokens.value.length - 1; // nothing is weighed for the first
  const key = busy ? "" : state.ids.value.slice(0, at + 1).join();
  const tok = tokens.value[at];
  useDevice(
    async (model) => {
      if (model.split) return; // the server gives the likeliest with each token, and is asked for no more
      if (busy || at < 1 || state.ids.value.length <= at || found.value?.key === key) return;
      const { top, level } = await model.weighed(state.ids.value.slice(0, at + 1), at, vocab_size);
      found.value = { at, key, all: top ?? [], level };
    },
    [busy, at, key],
  );
  const newest = !busy && at === tokens.value.length - 1 && !tok?.given;
  if (newest && shown.current.key !== key) shown.current = { key, until: performance.now() + FALLS };
  const falls = newest && performance.now() < shown.current.until;
  const live = !busy && found.value?.key === key ? found.value : null;
  return (
    <fieldset class="sampling">
      <legend>How the next word is drawn</legend>
      {tok && <Bars draw={shown.current.key} tok={tok} falls={falls} of={live ? redistributed(live, tok.id) : (tok.top ?? [])} left={live ? live.all.length - BARS : 0} />}
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
  /** The value that means no limit. */
  none?: number;
}

function Slider({ label, of, min, max, step, hint, none }: SliderProps) {
  return (
    <label class="slider" title={hint}>
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

/** The likeliest tokens, and `id` among them, with the probability that each would be drawn with now. */
function redistributed({ all, at, level }: Distribution, id: number): Candidate[] {
  const logits = Float32Array.from(all, ({ p }) => Math.log(Math.max(p, 1e-38)) + level);
  const sampler = new Sampler({ ...state.sampling(), seed: 0 });
  const text = new Set(state.engine().model.window(state.ids.value.slice(0, at)));
  const there = [...all.keys()].filter((i) => text.has(all[i]!.id)); // ids are places in the list here
  const { sampled } = sampler.draw(sampler.adjusted(logits, there), 0);
  const shown = all.map((c, i) => [c, i] as const).filter(([c, i]) => i < BARS || c.id === id);
  return shown.map(([c, i]) => ({ ...c, sampled: sampled(i) }));
}

interface BarsProps {
  /** Another one for each draw, whose light begins anew. */
  draw: string;
  tok: state.Tok;
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
      <p class="dim" role="status">
        {tok.given ? "" : "Where "}
        <code>{tok.label}</code>
        {tok.given ? " was part of the prompt. The model would have expected:" : tok.p !== undefined && <> was drawn: the model gave it {percent(tok.p)}</>}
        {!tok.given && drawn?.sampled !== undefined && <>, these settings {drawn.sampled ? percent(drawn.sampled) : "cut it off"}</>}
      </p>
      <ol key={draw} class={`chances${falls ? " falls" : ""}${state.running.value ? " coming" : ""}`}>
        {shown.map((c, i) => (
          <li key={c.id} style={{ "--at": i }} class={`${c.sampled === 0 ? "cut" : ""}${c.id === tok.id ? " taken" : ""}`}>
            <code>{state.label(c.id)}</code>
            <span class="two">
              <i class="plain" style={{ width: `${(100 * c.p) / most}%` }} />
              <i class="drawn" style={{ width: `${(100 * (c.sampled ?? 0)) / most}%` }} />
            </span>
            <span>{c.sampled === 0 ? "cut" : percent(c.sampled ?? c.p)}</span>
          </li>
        ))}
      </ol>
      <p class="dim key-line">
        <i class="plain" /> model <i class="drawn" /> with these settings{left > 0 && `; ${left} more are not shown`}
      </p>
    </>
  );
}
