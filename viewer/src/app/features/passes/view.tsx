// The Passes view: lists the passes of the recorded program and plays them one by one. An entry of the program is a
// list of passes for one purpose, such as decoding a token.

import { ListVideo, Pause, Play, SkipBack, StepBack, StepForward, Timer } from "lucide";
import { useSignal } from "@preact/signals";
import { Fragment } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { sizes } from "../../../runtime/engine/chunks";
import type { Model } from "../../../runtime/engine/model";
import { writtenBy } from "../../../runtime/engine/field";
import { unpack } from "../../../runtime/engine/layout";
import { alternatives, type Candidate } from "../../../runtime/engine/sampling";
import { PALETTES } from "../../drawing/palettes";
import { must } from "../../../runtime/gl/errors";
import type { Entry, Pass } from "../../../runtime/gl/program";
import { timePasses, type Timing } from "../../../runtime/engine/timing";
import { axesOf, type Axes } from "../../ui/axis";
import { joined, natural } from "../../../runtime/engine/names";
import { caption } from "../../ui/names";
import { Plane, type Subject } from "../../ui/plane";
import { Source } from "./source";
import { passes } from "./store";
import { textures } from "../textures/store";
import { generation } from "../../stores/generation";
import { engine } from "../../stores/model";
import { drawing } from "../../stores/drawing";
import { percent, useDevice, useQueries } from "../../ui/tools";
import type { View } from "../../stores/route";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const PACES: readonly [string, number][] = [
  ["slow", 700],
  ["normal", 300],
  ["fast", 90],
];
const THUMB = [72, 44] as const;

function PassesView() {
  const { model } = engine();
  const { entries } = model.programs.generate;
  const names = Object.keys(entries)
    .filter((name) => !/^(attention|ahead)_/.test(name))
    .sort(natural);
  const { entry: name, pass: at } = passes;
  const entry = entries[name.value] ?? entries["decode"]!;
  const place = passes.of(entry);
  const pass = entry.passes[place]!;
  const playing = useSignal(false);
  const pace = useSignal(1);
  const timing = useSignal<{ entry: string; timing: Timing } | null>(null);
  const busy = generation.running.value;
  useQueries(model);
  useEffect(() => {
    if (!playing.value) return;
    const timer = setInterval(() => {
      if (at.value + 1 < entry.passes.length) at.value++;
      else playing.value = false;
    }, PACES[pace.value]![1]);
    return () => clearInterval(timer);
  }, [playing.value, pace.value, entry]);
  const move = (to: number) => {
    playing.value = false;
    at.value = Math.min(entry.passes.length - 1, Math.max(0, to));
  };
  const toggle = () => {
    if (!playing.value && place === entry.passes.length - 1) at.value = 0;
    playing.value = !playing.value;
  };
  const t = timing.value?.entry === entry.name ? timing.value.timing : null;
  return (
    <section class={style.passes} data-view="passes" aria-label="Passes">
      <div class={classes(ui.panel, ui.names)}>
        <h2>Passes</h2>
        <div class={style.choice}>
          <label class={ui.inline}>
            Entry
            <select
              value={entry.name}
              onChange={(e) => {
                playing.value = false;
                at.value = Infinity;
                name.value = e.currentTarget.value;
              }}
            >
              {names.map((n) => (
                <option key={n} value={n}>
                  {n} ({entries[n]!.passes.length})
                </option>
              ))}
            </select>
          </label>
          <TimeButton
            entry={entry}
            disabled={busy}
            found={(found) => (timing.value = { entry: entry.name, timing: found })}
          />
        </div>
        {t && <Shares entry={entry} timing={t} />}
        <List entry={entry} at={place} timing={t} choose={move} />
      </div>
      <div class={ui.panel}>
        <div class={classes(ui.buttons, style.transport)} data-part="transport">
          <button onClick={() => move(0)} disabled={place === 0}>
            <Icon of={SkipBack} /> First
          </button>
          <button onClick={() => move(place - 1)} disabled={place === 0}>
            <Icon of={StepBack} /> Back
          </button>
          <button class={ui.primary} onClick={toggle} disabled={busy}>
            <Icon of={playing.value ? Pause : Play} /> {playing.value ? "Pause" : "Play"}
          </button>
          <button onClick={() => move(place + 1)} disabled={place === entry.passes.length - 1}>
            <Icon of={StepForward} /> Step
          </button>
          <input
            type="range"
            class={style.scrub}
            aria-label="Pass"
            min={1}
            max={entry.passes.length}
            value={place + 1}
            onInput={(e) => move(e.currentTarget.valueAsNumber - 1)}
          />
          <span class={ui.dim}>
            pass {place + 1} of {entry.passes.length}
          </span>
          <label class={ui.inline}>
            Speed
            <select value={pace.value} onChange={(e) => (pace.value = Number(e.currentTarget.value))}>
              {PACES.map(([title], i) => (
                <option key={title} value={i}>
                  {title}
                </option>
              ))}
            </select>
          </label>
        </div>
        <p class={classes(ui.dim, ui.explained)}>{describe(entry.name)}</p>
        <Sheet entry={entry} at={place} choose={move} />
        <Details entry={entry} at={place} pass={pass} us={t?.us[place]} move={move} />
      </div>
    </section>
  );
}

function describe(entry: string): string {
  const label = generation.tokens.value.at(-1)?.label ?? "";
  if (entry === "decode") return `All passes that decode one token: here the last token of the text, “${label}”.`;
  if (entry === "prepare")
    return "Runs once after the weights are loaded: folds each layer norm into the matrix product after it.";
  if (entry === "lens")
    return "Used by the Blocks tab: computes the logits after every block, not only after the last.";
  if (entry === "sample")
    return (
      "Samples the token from the logits that decoding computed: finds the candidates and the threshold of top-k, " +
      "then draws one of the remaining tokens."
    );
  if (entry === "sample_nucleus")
    return "Samples with top-p, which may keep thousands of tokens: narrows down the lowest logit that top-p keeps.";
  return `All passes that prefill ${sizes([entry], "prefill_").join()} tokens of a prompt at once.`;
}

interface ListProps {
  entry: Entry;
  at: number;
  timing: Timing | null;
  choose: (at: number) => void;
}

function List({ entry, at, timing, choose }: ListProps) {
  const list = useRef<HTMLOListElement>(null);
  const most = timing ? Math.max(...timing.us) : 1;
  useEffect(() => showChosen(list.current), [at, entry]);
  return (
    <ol ref={list}>
      {entry.passes.map((p, i) => (
        <li key={i}>
          <button
            class={classes(i === at && style.on)}
            aria-current={i === at ? "step" : undefined}
            onClick={() => choose(i)}
          >
            <span>{i + 1}</span>
            <code>
              {p.label.split(".").map((word, at) => (
                <Fragment key={at}>
                  {at > 0 && "."}
                  {at > 0 && <wbr />}
                  {word}
                </Fragment>
              ))}
            </code>
            <small>{timing ? micro(timing.us[i]!) : stem(p)}</small>
            {timing && <i class={style.bar} style={{ width: `${(100 * timing.us[i]!) / most}%` }} aria-hidden="true" />}
          </button>
        </li>
      ))}
    </ol>
  );
}

/** Scrolls a list until its selected pass is visible. */
function showChosen(box: HTMLElement | null): void {
  const on = box?.querySelector<HTMLElement>("[aria-current]");
  if (!box || !on) return;
  const [frame, chosen] = [box.getBoundingClientRect(), on.getBoundingClientRect()];
  if (chosen.top >= frame.top && chosen.bottom <= frame.bottom) return;
  box.scrollTop += chosen.top - frame.top - box.clientHeight / 3;
}

const stem = (p: Pass) => p.shader.replace(/-[0-9a-f]+$/, "");
const micro = (us: number) =>
  us === 0 ? "≈ 0" : us >= 1000 ? `${(us / 1000).toFixed(2)} ms` : `${us.toFixed(us < 10 ? 1 : 0)} µs`;

interface TimeProps {
  entry: Entry;
  disabled: boolean;
  found: (timing: Timing) => void;
}

function TimeButton({ entry, disabled, found }: TimeProps) {
  const done = useSignal(-1);
  const run = async () => {
    done.value = 0;
    try {
      await engine().borrow(async (model) => {
        const ids = generation.readIds.value;
        found(await timePasses(model, ids, entry, (n, of) => (done.value = n / of)));
      });
    } finally {
      done.value = -1;
    }
  };
  return (
    <button disabled={disabled || done.value >= 0} onClick={() => void run()}>
      <Icon of={Timer} /> {done.value < 0 ? "Measure times" : `${(100 * done.value).toFixed(0)}%`}
    </button>
  );
}

/** Shows the total time of an entry and the four shaders that take most of it. */
function Shares({ entry, timing }: { entry: Entry; timing: Timing }) {
  const sums = new Map<string, number>();
  entry.passes.forEach((p, i) => sums.set(stem(p), (sums.get(stem(p)) ?? 0) + timing.us[i]!));
  const total = timing.us.reduce((a, b) => a + b, 0) || 1;
  const first = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 4);
  return (
    <p class={ui.dim}>
      {micro(total)} in total, measured by {timing.how}:{" "}
      {first.map(([name, us]) => `${name} ${((100 * us) / total).toFixed(0)}%`).join(", ")}
    </p>
  );
}

interface SheetProps {
  entry: Entry;
  at: number;
  choose: (at: number) => void;
}

/** Shows a thumbnail of each pass's output. Plays the passes up to `at` and draws their thumbnails. */
function Sheet({ entry, at, choose }: SheetProps) {
  const sheet = useRef<HTMLDivElement>(null);
  const painted = useRef({ key: "", upTo: -1 });
  const word = useSignal(""); // the chosen token, shown as text instead of a thumbnail
  const busy = generation.running.value;
  const ids = busy ? "" : generation.ids.value.join();
  useDevice(
    async (model) => {
      const canvases = sheet.current?.querySelectorAll("canvas");
      const text = generation.readIds.value;
      if (busy || !canvases || !text.length) return;
      const key = `${entry.name} ${ids}`;
      if (painted.current.key !== key) painted.current = { key, upTo: -1 };
      const from = painted.current.upTo + 1;
      if (from > at) return;
      const { painter } = await drawing.ready(model);
      await passes.playTo(model, entry, from - 1);
      for (let i = from; i <= at; i++) {
        const [texture] = entry.passes[i]!.outputs[0]!;
        if (texture === TOKEN) {
          model.player.play(entry.name, i, i + 1);
          word.value = generation.label((await model.player.read(TOKEN))[0] ?? 0);
          continue;
        }
        model.player.play(entry.name, i, i + 1);
        const { view, firstColumn } = writtenBy(model.player, texture, entry.passes[i], text.length);
        // only a pass that writes a cache has `row`; the cache's rows after the text are not in use yet
        const written = entry.passes[i]!.row ? text.length : Infinity;
        const height = Math.min(view.rows / view.tiles[0], written);
        const rows = height * view.tiles[0];
        const shown = { rows, first: 0, height, firstColumn, range: null, palette: PALETTES[0] };
        painter.matrix(canvases[i]!, model.player.texture(texture), view, shown, ...THUMB);
      }
      painted.current.upTo = at;
    },
    [entry, at, busy, ids],
  );
  useEffect(() => showChosen(sheet.current), [at, entry]);
  const { names } = engine().model;
  const blockOf = (i: number) => names.block(entry.passes[i]!.label);
  const groups: number[][] = [];
  entry.passes.forEach((_, i) => {
    if (i && blockOf(i - 1) === blockOf(i)) groups.at(-1)!.push(i);
    else groups.push([i]);
  });
  const blocks = groups.filter((group) => blockOf(group[0]!) >= 0);
  const stagesOf = (group: readonly number[]) => group.map((i) => caption(names, entry.passes[i]!.label));
  const heads = blocks[0] ? stagesOf(blocks[0]) : [];
  const alike = blocks.every((group) => stagesOf(group).join() === heads.join());
  const outside = (first: number) => (blocks[0] ? (first < blocks[0][0]! ? "embed" : "logits") : "");
  return (
    <div class={style.sheet} ref={sheet} role="group" aria-label="What each pass wrote">
      {groups.map((group) => {
        const block = blockOf(group[0]!);
        return (
          <Fragment key={group[0]}>
            {alike && group === blocks[0] && (
              <div class={classes(style.row, style.stageHeads)} aria-hidden="true">
                <span />
                {heads.map((name, i) => (
                  <small key={i}>{name}</small>
                ))}
              </div>
            )}
            <div class={classes(style.row, block < 0 && style.outside)}>
              <span class={ui.dim}>{block < 0 ? outside(group[0]!) : `block ${block}`}</span>
              {group.map((i) => {
                const { label } = entry.passes[i]!;
                const written = writesToken(entry.passes[i]!) && i <= at ? `: ${word.value}` : "";
                return (
                  <button
                    key={i}
                    class={classes(i === at ? style.on : i > at && style.later)}
                    title={`${i + 1}: ${label}${names.about(label) && `, ${names.about(label)}`}`}
                    aria-label={`Pass ${i + 1}, ${label}${written}`}
                    aria-current={i === at ? "step" : undefined}
                    onClick={() => choose(i)}
                  >
                    <canvas width={THUMB[0]} height={THUMB[1]} />
                    {writesToken(entry.passes[i]!) && i <= at && <code class={style.word}>{word.value}</code>}
                  </button>
                );
              })}
            </div>
          </Fragment>
        );
      })}
    </div>
  );
}

/** The token that an entry's last pass chose, with its probability `p`, and the likeliest tokens. */
interface Outcome {
  id: number;
  p: number;
  top: readonly Candidate[];
}

const TOKEN = "token"; // the texture whose first number is the id of the chosen token
const LIKELIEST = 5;

const writesToken = (pass: Pass) => pass.outputs.some(([texture]) => texture === TOKEN);

/** Shows the token that the last pass chose: the one with the greatest logit. Earlier passes computed the logits. */
function Chosen({ entry, at }: { entry: Entry; at: number }) {
  const found = useSignal<Outcome | null>(null);
  const busy = generation.running.value;
  useDevice(
    async (model) => {
      if (busy || !generation.ids.value.length) return;
      await passes.playTo(model, entry, at);
      const view = must(entry.outputs["logits"], "output logits");
      const [token, texels] = await Promise.all([model.player.read(TOKEN), model.player.read(view.texture)]);
      const id = token[0] ?? 0;
      found.value = { id, ...alternatives(unpack(view, texels), LIKELIEST, id) };
    },
    [entry, at, busy, busy ? "" : generation.ids.value.join()],
  );
  const o = found.value;
  return (
    <div class={style.outcome} data-part="outcome" role="status">
      {o && (
        <>
          <p>
            The output token is <code>{generation.label(o.id)}</code>, with probability <b>{percent(o.p)}</b>: the
            likeliest token after <code>{generation.tokens.value.at(-1)?.label}</code>.
          </p>
          <ul class={classes(ui.bars, style.bars)}>
            {o.top.map((c) => (
              <li key={c.id}>
                <span class={classes(ui.bar, style.bar)} style={{ width: `${(100 * c.p) / o.top[0]!.p}%` }} />
                <code>{generation.label(c.id)}</code> <span>{percent(c.p)}</span>
              </li>
            ))}
          </ul>
          <p class={ui.dim}>
            This pass picks the greatest logit. With a temperature above 0, the page samples from the same logits
            instead.
          </p>
        </>
      )}
    </div>
  );
}

interface DetailsProps {
  entry: Entry;
  at: number;
  pass: Pass;
  us: number | undefined;
  move: (at: number) => void;
}

function Details({ entry, at, pass, us, move }: DetailsProps) {
  const { names, programs } = engine().model;
  const { generate } = programs;
  const about = names.about(pass.label);
  const out = useSignal(0);
  const written = [...new Set(pass.outputs.map(([texture]) => texture))];
  const labels = joined(pass.label);
  const texture = written[out.value] ?? written[0]!;
  const busy = generation.running.value;
  const play = async (model: Model): Promise<Subject | null> => {
    if (generation.running.value || !generation.ids.value.length) return null;
    await passes.playTo(model, entry, at);
    return outcome(model, entry, pass, texture);
  };
  return (
    <>
      <div class={classes(ui.heading, style.selected)}>
        <h2>
          <code>{pass.label}</code>
        </h2>
        <span class={ui.tag}>shader {stem(pass)}</span>
      </div>
      {about && <p class={classes(ui.dim, ui.explained)}>{about}</p>}
      {written.length > 1 && (
        <div class={ui.buttons}>
          {written.map((name, i) => (
            <button key={name} aria-pressed={name === texture} onClick={() => (out.value = i)}>
              {labels.length === written.length ? labels[i] : name}
            </button>
          ))}
        </div>
      )}
      {texture === TOKEN && "logits" in entry.outputs ? (
        <Chosen entry={entry} at={at} />
      ) : (
        <Plane
          label={`${texture} after ${pass.label}`}
          play={play}
          inputs={[entry, at, texture, busy, busy ? "" : generation.ids.value.join()]}
          axes={axesIn(entry, pass, texture)}
        />
      )}
      <dl class={style.facts}>
        <dt>Reads</dt>
        <dd>
          {pass.inputs.map(([sampler, name]) => (
            <Link key={sampler} entry={entry} at={at} name={name} move={move} />
          ))}
        </dd>
        <dt>Writes</dt>
        <dd>
          {written.map((name) => {
            const layers = pass.outputs.filter(([other]) => other === name).map(([, layer]) => layer);
            return (
              <span key={name} class={style.io}>
                <button class={ui.link} onClick={() => textures.show(name)}>
                  {name}
                </button>
                {layers.length > 1 ? `layers ${layers[0]} to ${layers.at(-1)}` : ""}
              </span>
            );
          })}
        </dd>
        <dt>Size</dt>
        <dd>
          {pass.viewport.join(" x ")} fragments{pass.row ? `, starting at row ${pass.row}` : ""}
          {pass.flops ? `, ${(pass.flops / 1e6).toFixed(1)} MFLOP` : ""}
          {pass.nbytes ? `, ${(pass.nbytes / 2 ** 20).toFixed(2)} MiB of weights` : ""}
        </dd>
        <dt>Time</dt>
        <dd>{us === undefined ? "not measured yet; press “Measure times”" : micro(us)}</dd>
      </dl>
      <Source name={pass.shader} text={generate.shaders[pass.shader] ?? ""} />
    </>
  );
}

/** Shows an input of pass `at`: a link to the texture, and a link to the last earlier pass that wrote it, if any. */
function Link({ entry, at, name, move }: { entry: Entry; at: number; name: string; move: (at: number) => void }) {
  const writer = entry.passes.findLastIndex((p, i) => i < at && p.outputs.some(([texture]) => texture === name));
  return (
    <span class={style.io}>
      <button class={ui.link} title="Show it in the Textures view" onClick={() => textures.show(name)}>
        {name}
      </button>
      {writer >= 0 && (
        <button class={ui.link} title="Show the pass that wrote it" onClick={() => move(writer)}>
          from {entry.passes[writer]!.label}
        </button>
      )}
    </span>
  );
}

/**
 * Returns the row and column labels of a pass's output. Activations and caches have labels. A matrix outside the blocks
 * has labels if it has a row or column for each token of the vocabulary.
 */
function axesIn(entry: Entry, pass: Pass, texture: string): Axes {
  const { model } = engine();
  const { view, rows } = outcome(model, entry, pass, texture);
  // the output is shown in its memory layout, in which a row is not a token
  if (view.tiles[0] * view.tiles[1] === 1 && model.player.spec(texture).layers > 1) return {};
  const size = sizes(entry.inputs, "ids.")[0] ?? 1; // tokens that the entry processes at once
  const name = model.names.activations.has(texture) ? texture : pass.label;
  return axesOf(model, name, { rows, cols: view.cols }, Math.max(0, generation.read.value.length - size));
}

/** Returns a pass's output: as a matrix if its shape is known, otherwise in its memory layout. */
export function outcome(model: Model, entry: Entry, pass: Pass, texture: string): Subject {
  const { player, programs } = model;
  const named = Object.entries(entry.outputs).find(
    ([name, view]) => joined(pass.label).includes(name) && view.texture === texture,
  );
  const view = programs.generate.views[texture] ?? named?.[1];
  const found = view
    ? { player, view, rows: view.rows }
    : writtenBy(player, texture, pass, generation.read.value.length);
  return pass.row ? { ...found, rows: Math.min(found.rows, generation.read.value.length) } : found;
}

declare module "../../stores/route" {
  interface ViewNames {
    passes: true;
  }
}

export const view: View<"passes"> = {
  name: "passes",
  title: "Passes",
  group: "inspect",
  icon: ListVideo,
  params: passes.params,
  component: PassesView,
};
