// The machine: a live picture of the whole model. Each column is a block, each cell a stage, drawn from the texture that its pass wrote.

import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { fromBase64 } from "../../../runtime/engine/base64";
import { BLUE, ORANGE } from "../../drawing/palettes";
import { Strip, stages, type Stage } from "../../drawing/strip";
import { headIn, parseIntervention } from "../../../runtime/engine/interventions";
import { Names } from "../../../runtime/engine/names";
import { cell, walkCells } from "../../ui/roving";
import * as split from "../split/store";
import { machine } from "./store";
import * as passes from "../passes/store";
import { generation } from "../../stores/generation";
import { interventions } from "../../stores/interventions";
import { engine } from "../../stores/model";
import { route } from "../../stores/route";
import { drawing, percent, useDevice } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./machine.module.css";

const ENTRY = "decode";
const COARSE = 3; // page pixels per picture pixel in each direction, to draw fewer
const WORDS = 4; // alternatives below the generated token
const LABELLED = 12; // up to this many blocks, each one is labelled
const EVERY = 5; // with more blocks, every fifth one is

export function Machine() {
  const open = machine;
  return (
    <section
      class={classes(style.machine, !open.value && style.folded)}
      data-folded={open.value ? undefined : ""}
      aria-label="The machine"
    >
      <button
        class={classes(ui.quiet, style.fold)}
        aria-expanded={open.value}
        title="The passes of the model as they run, from the input token to the output token"
        onClick={() => (open.value = !open.value)}
      >
        {open.value ? "Hide the machine" : "Show the machine"}
      </button>
      {open.value && <Cells key={interventions.applied.value} />}
    </section>
  );
}

function Cells() {
  const { model } = engine();
  const entry = model.programs.generate.entries[ENTRY]!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const there = () => canvas.current;
  const strip = useRef<Strip | null>(null);
  const width = useSignal(0);
  const drawn = useSignal(false); // true once a picture was drawn
  const shown = useSignal(0); // counts the pictures, to restart the cells' animation
  const list = useRef(stages(model, entry)).current;
  const columns = 2 + model.manifest.config.n_layer;
  const stop = useSignal(0); // the cell that Tab reaches
  const { stages: all } = model.names;
  const lines = all.length;
  const busy = generation.running.value;
  useEffect(() => {
    const frame = canvas.current!;
    const fit = () => (width.value = Math.round(frame.clientWidth / columns / COARSE) * columns);
    fit();
    const observer = new ResizeObserver(fit);
    observer.observe(frame);
    const ignore = generation.upcoming.subscribe((update) => {
      if (update) strip.current?.see(update.read);
    });
    return () => {
      observer.disconnect();
      ignore();
      if (model.cache.watcher === strip.current) model.cache.watcher = null;
    };
  }, []);
  useDevice(
    async (m) => {
      if (!width.value || !canvas.current) return;
      const { painter } = await drawing(m);
      const target = there();
      if (!target || m.programs.generate.entries[ENTRY] !== entry) return; // the view is gone, or an intervention changed the program
      const height = Math.round(target.clientHeight / lines / COARSE) * lines;
      const made = new Strip(m, painter, list, target, [width.value, height]);
      made.live = () => generation.running.value;
      made.onDrawn = () => {
        drawn.value = true;
        if (!generation.running.value) shown.value++; // no animation during generation
      };
      m.cache.watcher = strip.current = made;
      await still(made);
    },
    [width.value],
  );
  useDevice(async () => {
    if (!busy && strip.current && model.programs.generate.entries[ENTRY] === entry) await still(strip.current);
  }, [busy, busy ? "" : generation.ids.value.join()]);
  return (
    <div class={style.stripFrame} style={{ "--columns": columns, "--lines": lines }}>
      <StageNames stages={all} />
      <div class={style.cells} data-drawn={shown.value}>
        {!drawn.value && generation.recorded.value && <RecordedPicture at={Infinity} />}
        <canvas ref={canvas} aria-hidden="true" />
        <div
          class={classes(style.over, busy && style.busy)}
          key={busy ? -1 : shown.value}
          role="toolbar"
          aria-label="Stages of the model; arrow keys move between them"
          onKeyDown={walkCells}
        >
          {list.map((s, i) => (
            <CellButton key={i} stage={s} at={i} stop={stop} />
          ))}
        </div>
        <BlockNames columns={columns} />
      </div>
      <Word />
    </div>
  );
}

/** The machine of the recorded generation: its recorded cells and, one after the other, its tokens. */
export function RecordedMachine({ at }: { at: Signal<number> }) {
  const [width] = useMemo(recordedSize, []);
  const columns = width / generation.recorded.value!.machine.cell[0]; // includes the remote blocks of a split model
  const all = recordedStages();
  return (
    <section class={style.machine} aria-label="The machine">
      <button class={classes(ui.quiet, style.fold)} disabled>
        Hide the machine
      </button>
      <div class={style.stripFrame} style={{ "--columns": columns, "--lines": all.length }}>
        <StageNames stages={all} />
        <div class={style.cells} aria-hidden="true">
          <RecordedPicture at={at.value} />
          <div class={classes(style.over, style.busy)}>
            {Array.from({ length: columns }, (_, column) =>
              (column % (columns - 1) ? all : [null]).map((_, line) => (
                <span
                  key={`${column} ${line}`}
                  class={style.stage}
                  style={{ "--column": column + 1, "--line": column % (columns - 1) ? line + 1 : "1 / -1" }}
                />
              )),
            )}
          </div>
          <BlockNames columns={columns} />
        </div>
        <Word at={at.value} />
      </div>
    </section>
  );
}

/** The recorded picture of all cells at token `at`, or at the last earlier token that has one. */
function RecordedPicture({ at }: { at: number }) {
  const { machine } = generation.recorded.value!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const newest = Math.max(
    0,
    machine.at.findLastIndex((t) => t <= at),
  );
  const [width, height] = useMemo(recordedSize, []);
  useLayoutEffect(() => {
    const bytes = fromBase64(machine.pictures[newest]!);
    canvas.current?.getContext("2d")?.putImageData(recordedPicture(bytes, width, height), 0, 0);
  }, [newest]);
  return <canvas class={style.was} ref={canvas} width={width} height={height} aria-hidden="true" />;
}

/** Returns the stages of the recorded model's blocks. */
const recordedStages = () => Names.of(generation.recorded.value!.about).stages;

/** Returns the width and height of a recorded picture in pixels. */
function recordedSize(): [number, number] {
  const { machine } = generation.recorded.value!;
  const height = recordedStages().length * machine.cell[1];
  return [fromBase64(machine.pictures[0]!).length / height, height];
}

/** Decodes a recorded picture of the machine: a byte per pixel, 127 is zero. */
function recordedPicture(bytes: Uint8Array, width: number, height: number): ImageData {
  const picture = new ImageData(width, height);
  bytes.forEach((byte, i) => {
    const value = byte - 127;
    picture.data.set([...(value < 0 ? ORANGE : BLUE), 2 * Math.abs(value)], 4 * i);
  });
  return picture;
}

function StageNames({ stages }: { stages: Names["stages"] }) {
  return (
    <div class={style.stageNames} aria-hidden="true">
      {stages.map(({ title }, i) => (
        <span key={i}>{title}</span>
      ))}
    </div>
  );
}

/** Labels below the columns; with many blocks, only for every fifth. */
function BlockNames({ columns }: { columns: number }) {
  const blocks = columns - 2;
  const every = blocks > LABELLED ? EVERY : 1;
  const shown = Array.from({ length: blocks }, (_, block) => block).filter((block) => block % every === 0);
  const wide = every > 1 ? 2 : 1; // columns that the first and the last label span
  const name = (text: string, column: number, span: number) => (
    <span key={column} style={{ "--column": column + 1, "--span": span }}>
      {text}
    </span>
  );
  return (
    <div class={style.blockNames} aria-hidden="true">
      {name("embed", 0, wide)}
      {shown.filter((block) => block + 1 >= wide).map((block) => name(`block ${block}`, block + 1, every))}
      {name("logits", columns - wide, wide)}
    </div>
  );
}

function CellButton({ stage, at, stop }: { stage: Stage; at: number; stop: Signal<number> }) {
  const { names } = engine().model;
  const block = names.block(stage.label);
  const where = block < 0 ? stage.name : `${stage.name} of block ${block}`;
  const there = isThere(stage);
  return (
    <button
      class={classes(style.stage, isIntervened(stage) && style.cut, there && style.there)}
      {...cell(stage.column, stage.line, at === stop.value)}
      style={{ "--column": stage.column + 1, "--line": stage.line < 0 ? "1 / -1" : stage.line + 1, "--at": at }}
      onFocus={() => (stop.value = at)}
      title={`${where}: ${names.about(stage.label) || stage.label}. ${there ? "It runs on the server now; this picture is an earlier one. " : ""}Click to see its pass, texture and shader.`}
      aria-label={`${where}: open its pass`}
      onClick={() => {
        passes.entry.value = ENTRY;
        passes.pass.value = stage.pass;
        route.show("passes");
      }}
    />
  );
}

/** True if the slider has moved this stage's block to the server. */
function isThere({ column }: Stage): boolean {
  const { model } = engine();
  return model.placement.movable && split.here.value < model.manifest.config.n_layer && column > split.here.value;
}

/** True if an intervention changes this stage: all of it or one of its heads. */
function isIntervened({ label, part }: Stage): boolean {
  const { names } = engine().model;
  if (!part) return false;
  return interventions.parts.value
    .map((cut) => parseIntervention(cut).part)
    .some((cut) => cut === part || names.whole(cut) === names.block(label) || headIn(names, cut)?.of === part);
}

/** The generated token and its likeliest alternatives. */
function Word({ at = generation.tokens.value.length - 1 }: { at?: number }) {
  const tok = generation.tokens.value.slice(0, at + 1).findLast((t) => !t.given);
  const top = tok?.top?.slice(0, WORDS) ?? [];
  if (tok?.p !== undefined && top.length && !top.some((c) => c.id === tok.id)) top.push({ ...tok, p: tok.p });
  return (
    <div class={style.wordOut} aria-live="off">
      {tok ? (
        <>
          <span class={style.arrow} aria-hidden="true">
            →
          </span>
          <b>{tok.label}</b>
          {tok.p !== undefined && <span>{percent(tok.p)}</span>}
          <ol aria-hidden="true">
            {top.map((c, i) => (
              <li key={i} class={classes(c.id === tok.id && style.taken)}>
                <i style={{ width: `${(100 * c.p) / top[0]!.p}%` }} />
                <span>{generation.label(c.id)}</span> <small>{percent(c.p)}</small>
              </li>
            ))}
          </ol>
        </>
      ) : null}
    </div>
  );
}

/** Draws the computation of the text's last token, unless a generation is running. */
async function still(strip: Strip): Promise<void> {
  const { model } = engine();
  const ids = generation.readIds.value;
  if (generation.running.value || !ids.length) return;
  const given = ids.length > 1 ? ids.slice(0, -1) : ids; // the input that produced the last token
  await strip.prepare();
  await model.player.prepare(ENTRY);
  model.cache.rewind(given, ENTRY);
  strip.see(given.length);
  await model.player.passed(); // otherwise showing the picture would block the page until all this is done
  model.cache.watched(ENTRY, strip);
  await model.player.passed();
  strip.done();
}
