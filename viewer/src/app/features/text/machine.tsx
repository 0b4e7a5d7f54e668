// The machine: a live picture of the whole model. Each column is a block, except the first (the embedding) and the last
// (the logits). Each cell belongs to a stage, which is a pass, and shows the texture that the pass wrote. Lines show
// how the residual stream runs through the blocks.

import type { ComponentChildren } from "preact";
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { fromBase64 } from "../../../runtime/engine/base64";
import { BLUE, ORANGE } from "../../drawing/palettes";
import { groupsOf, labelledBlocks, Layout, marginsOf, roleOf, wiresOf, type Role } from "../../drawing/diagram";
import { Strip, stages, type Stage } from "../../drawing/strip";
import { headIn, parseIntervention } from "../../../runtime/engine/interventions";
import { Names } from "../../../runtime/engine/names";
import { cell, walkCells } from "../../ui/roving";
import { selection } from "../attention/store";
import { blocks } from "../blocks/store";
import { textures } from "../textures/store";
import { text } from "./store";
import { generation } from "../../stores/generation";
import { interventions } from "../../stores/interventions";
import { engine } from "../../stores/model";
import { route } from "../../stores/route";
import { drawing } from "../../stores/drawing";
import { percent, useDevice } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./machine.module.css";

const ENTRY = "decode";
const COARSE = 3; // page pixels per picture pixel in each direction, so that fewer pixels are drawn
const WORDS = 4; // number of alternatives below the generated token
const TIP = 320; // width in pixels of the description of a stage
const TINY = 20; // maximum width in pixels of a column that is too narrow for a label

/** The title and the description of each role of a row, shown next to the names of the rows with this role. */
const DOES: Record<Role, readonly [string, string]> = {
  attention: ["Attention", "reads earlier tokens"],
  mlp: ["MLP", "works on one token"],
  stream: ["", "added to the stream"],
};

export function Machine() {
  const open = text.machine;
  return (
    <section
      class={classes(style.machine, !open.value && style.folded)}
      data-folded={open.value ? undefined : ""}
      data-part="machine"
      aria-label="The machine"
    >
      <Explained blocks={engine().model.placement.blocks}>
        <button
          class={classes(ui.quiet, style.fold)}
          aria-expanded={open.value}
          title="The passes of the model as they run, from the input token to the output token"
          onClick={() => (open.value = !open.value)}
        >
          {open.value ? "Hide the machine" : "Show the machine"}
        </button>
      </Explained>
      {open.value && <Cells key={interventions.applied.value} />}
    </section>
  );
}

/** Shows in one line how a token passes through the model. */
function Explained({ blocks, children }: { blocks: number; children: ComponentChildren }) {
  const steps = ["token", "embedding", `${blocks} blocks`, "logits", "next token"];
  return (
    <div class={style.told}>
      <p>
        <b class={style.path}>
          {steps.map((step, i) => (
            <span key={step}>
              {i > 0 && <i aria-hidden="true">→</i>}
              {step}
            </span>
          ))}
        </b>{" "}
        <span class={style.more}>
          Each block adds to the residual stream what attention read from earlier tokens, then the output of its MLP.
        </span>
      </p>
      {children}
    </div>
  );
}

/** Returns a signal with the current width of an element in pixels. */
function useWidth(of: { current: HTMLElement | null }): Signal<number> {
  const width = useSignal(0);
  useLayoutEffect(() => {
    const element = of.current!;
    const fit = () => (width.value = element.clientWidth);
    fit();
    const observer = new ResizeObserver(fit);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return width;
}

const rolesOf = (names: Names) =>
  names.stages.map((stage) => roleOf(stage, names.activations.get(names.inBlock(0, stage.shows[0]!))?.kind));

/** Shows the picture (`children`), the lines between its cells, and the labels of its rows and columns. */
function Diagram({ names, layout, children }: { names: Names; layout: Layout; children: ComponentChildren }) {
  const roles = rolesOf(names);
  return (
    <>
      {children}
      {layout.width > 0 && <Lines layout={layout} roles={roles} />}
      {layout.labels > 0 && <StageNames names={names} roles={roles} />}
      <BlockNames layout={layout} />
    </>
  );
}

/** Draws the lines of the residual stream. */
function Lines({ layout, roles }: { layout: Layout; roles: readonly Role[] }) {
  const self = useRef<SVGSVGElement>(null);
  const height = useSignal(0);
  useLayoutEffect(() => {
    height.value = self.current!.clientHeight;
  }, [layout.width]);
  const { lines, heads, gaps } = wiresOf(layout, height.value, roles);
  return (
    <svg class={style.wires} ref={self} aria-hidden="true">
      {height.value > 0 && (
        <>
          {gaps.map((gap, i) => (
            <rect key={i} {...gap} />
          ))}
          <path class={style.line} d={lines} />
          <path class={style.tip} d={heads} />
        </>
      )}
    </svg>
  );
}

/** Restarts the animations of the cells without rendering the cells again, so that the focused cell keeps the focus. */
function restartAnimations(cells: HTMLElement | null): void {
  for (const each of cells?.getAnimations({ subtree: true }) ?? []) {
    each.cancel();
    each.play();
  }
}

function Cells() {
  const { model } = engine();
  const entry = model.programs.generate.entries[ENTRY]!;
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLDivElement>(null);
  const there = () => canvas.current;
  const strip = useRef<Strip | null>(null);
  const width = useWidth(frame);
  const drawn = useSignal(false); // true once a picture was drawn
  const list = useRef(stages(model, entry)).current;
  const columns = 2 + model.manifest.config.n_layer;
  const layout = useMemo(() => new Layout(width.value, columns), [width.value]);
  const stop = useSignal(0); // the cell that the Tab key focuses
  const pointed = useSignal<number | null>(null); // the cell that the tooltip describes; null: no tooltip
  const margins = marginsOf(rolesOf(model.names));
  const lines = model.names.stages.length;
  const busy = generation.running.value;
  useEffect(() => {
    const ignore = generation.upcoming.subscribe((update) => {
      if (update) strip.current?.see(update.read);
    });
    return () => {
      ignore();
      if (model.cache.watcher === strip.current) model.cache.watcher = null;
    };
  }, []);
  useDevice(
    async (m) => {
      if (!layout.width || !canvas.current) return;
      const { painter } = await drawing.ready(m);
      const target = there();
      // the view was closed, or an intervention changed the program
      if (!target || m.programs.generate.entries[ENTRY] !== entry) return;
      const cell = (pixels: number) => Math.max(1, Math.round(pixels / COARSE));
      const unit = [cell(layout.unit), cell(target.clientHeight / lines)] as const;
      const made = new Strip(m, painter, list, target, layout, unit);
      made.live = () => generation.running.value;
      made.onDrawn = () => {
        drawn.value = true;
        if (!generation.running.value) restartAnimations(over.current);
      };
      await made.prepare(); // compiles shaders now, so that no token of a generation waits for them
      if (there() !== target) return; // the view was closed
      m.cache.watcher = strip.current = made;
      await still(made);
    },
    [layout],
  );
  useDevice(async () => {
    if (!busy && strip.current && model.programs.generate.entries[ENTRY] === entry) await still(strip.current);
  }, [busy, busy ? "" : generation.ids.value.join()]);
  return (
    <div class={style.stripFrame} style={{ "--columns": columns, "--lines": lines, "--labels": `${layout.labels}fr` }}>
      <Word input />
      <div class={style.cells} data-drawn={Number(drawn.value)} ref={frame}>
        <Diagram names={model.names} layout={layout}>
          {!drawn.value && generation.recorded.value && <RecordedPicture at={Infinity} layout={layout} />}
          <canvas ref={canvas} aria-hidden="true" />
        </Diagram>
        <div
          class={classes(style.over, busy && style.busy)}
          style={{ "--cells": list.length }}
          ref={over}
          role="toolbar"
          aria-label="Stages of the model; arrow keys move between them"
          onKeyDown={walkCells}
          onMouseLeave={() => (pointed.value = null)}
          onFocusOut={() => (pointed.value = null)}
        >
          {list.map((s, i) => (
            <CellButton
              key={i}
              stage={s}
              at={i}
              stop={stop}
              pointed={pointed}
              margin={marginOf(s.line < 0 ? undefined : margins[s.line], layout.gap)}
            />
          ))}
        </div>
        {pointed.value !== null && <Tip stage={list[pointed.value]!} layout={layout} />}
      </div>
      <Word />
    </div>
  );
}

const marginOf = ([above, below]: readonly [number, number] = [0, 0], gap: number) =>
  `${above}px ${gap}px ${below}px 0`;

/** Shows the machine for the recorded generation: the picture and the tokens at the time of token `at`. */
export function RecordedMachine({ at }: { at: Signal<number> }) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const { about, machine } = generation.recorded.value!;
  const names = Names.of(about);
  const columns = useMemo(recordedSize, [])[0] / machine.cell[0]; // includes the remote blocks of a split model
  const layout = useMemo(() => new Layout(width.value, columns), [width.value]);
  return (
    <section class={style.machine} data-part="machine" aria-label="The machine">
      <Explained blocks={columns - 2}>
        <button class={classes(ui.quiet, style.fold)} disabled>
          Hide the machine
        </button>
      </Explained>
      <div
        class={style.stripFrame}
        style={{ "--columns": columns, "--lines": names.stages.length, "--labels": `${layout.labels}fr` }}
      >
        <Word at={at.value} input />
        <div class={style.cells} ref={frame} aria-hidden="true">
          <Diagram names={names} layout={layout}>
            <RecordedPicture at={at.value} layout={layout} />
          </Diagram>
        </div>
        <Word at={at.value} />
      </div>
    </section>
  );
}

/** Shows the recorded picture of all cells at token `at`, or at the last earlier token with a picture. */
function RecordedPicture({ at, layout }: { at: number; layout: Layout }) {
  const { machine } = generation.recorded.value!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const newest = Math.max(
    0,
    machine.at.findLastIndex((t) => t <= at),
  );
  const [width, height] = useMemo(recordedSize, []);
  const [cell] = machine.cell;
  const labels = layout.left(1, cell) - cell; // width of the label column, which the picture lacks
  useLayoutEffect(() => {
    const flat = canvas.current?.getContext("2d");
    if (!flat) return;
    const picture = recordedPicture(fromBase64(machine.pictures[newest]!), width, height);
    flat.clearRect(0, 0, width + labels, height);
    flat.putImageData(picture, 0, 0, 0, 0, cell, height);
    flat.putImageData(picture, labels, 0, cell, 0, width - cell, height);
  }, [newest, labels]);
  return <canvas class={style.was} ref={canvas} width={width + labels} height={height} aria-hidden="true" />;
}

/** Returns the width and height of a recorded picture in pixels. */
function recordedSize(): [number, number] {
  const { machine, about } = generation.recorded.value!;
  const height = Names.of(about).stages.length * machine.cell[1];
  return [fromBase64(machine.pictures[0]!).length / height, height];
}

/** Decodes a recorded picture of the machine, which has a byte per pixel. Byte 127 stands for zero. */
function recordedPicture(bytes: Uint8Array, width: number, height: number): ImageData {
  const picture = new ImageData(width, height);
  bytes.forEach((byte, i) => {
    const value = byte - 127;
    picture.data.set([...(value < 0 ? ORANGE : BLUE), 2 * Math.abs(value)], 4 * i);
  });
  return picture;
}

/** Shows labels to the left of the first block: what each group of rows does, and the name of each row. */
function StageNames({ names, roles }: { names: Names; roles: readonly Role[] }) {
  return (
    <div class={style.rowNames} aria-hidden="true">
      {groupsOf(roles).map(({ role, first, count }) => (
        <span key={first} class={style.does} data-role={role} style={{ gridRow: `${first + 1} / span ${count}` }}>
          {count > 1 && <b>{DOES[role][0]}</b>} {DOES[role][1]}
        </span>
      ))}
      <div class={style.stageNames}>
        {names.stages.map(({ title }, i) => (
          <span key={i}>{title}</span>
        ))}
      </div>
    </div>
  );
}

/**
 * Shows labels below the columns. With many blocks, only every fifth block has a label. In a narrow diagram, a block's
 * label is only its number.
 */
function BlockNames({ layout: { columns, labels, unit } }: { layout: Layout }) {
  const narrow = labels === 0;
  const ends = unit > TINY;
  return (
    <div class={classes(style.blockNames, narrow && style.narrow)} aria-hidden="true">
      <span class={style.first}>{!narrow ? "embedding" : ends ? "in" : ""}</span>
      {labelledBlocks(columns - 2).map(({ block, span }) => (
        <span key={block} style={{ "--column": block + 2, "--span": span }}>
          {narrow ? block : `block ${block}`}
        </span>
      ))}
      <span style={{ "--column": columns, "--span": 1 }}>{!narrow ? "logits" : ends ? "out" : ""}</span>
    </div>
  );
}

/** The title of the view that a click on a stage opens, and the function that opens it. */
interface Target {
  view: string;
  open: () => void;
}

/** Returns the view that shows a stage best, and a function that opens the view at the stage's block. */
function targetOf(stage: Stage): Target {
  const { names } = engine().model;
  const block = names.block(stage.of);
  const role = stage.line < 0 ? null : rolesOf(names)[stage.line];
  if (names.activations.get(stage.of)?.kind === "scores") {
    return {
      view: "Attention",
      open: () => {
        selection.chooseHead(block, Math.max(0, selection.head.value));
        route.show("attention");
      },
    };
  }
  if (role === "stream") return { view: "Blocks", open: () => blocks.open(block) };
  return { view: "Textures", open: () => textures.show(stage.of) };
}

/** Returns the name of a stage with its block. */
function whereOf(stage: Stage): string {
  const block = engine().model.names.block(stage.of);
  return block < 0 ? stage.name : `${stage.name} of block ${block}`;
}

interface CellProps {
  stage: Stage;
  at: number;
  stop: Signal<number>;
  pointed: Signal<number | null>;
  margin: string;
}

function CellButton({ stage, at, stop, pointed, margin }: CellProps) {
  const { view, open } = targetOf(stage);
  const there = isThere(stage);
  return (
    <button
      class={classes(style.stage, isIntervened(stage) && style.cut, there && style.there)}
      {...cell(stage.column, stage.line, at === stop.value)}
      style={{
        margin,
        "--column": stage.column + 1,
        "--skip": stage.column ? 1 : 0,
        "--line": stage.line < 0 ? "1 / -1" : stage.line + 1,
        "--at": at,
      }}
      onFocus={() => (stop.value = pointed.value = at)}
      onMouseEnter={() => (pointed.value = at)}
      aria-label={`${whereOf(stage)}: open in ${view}`}
      aria-describedby={pointed.value === at ? TIP_ID : undefined}
      onClick={open}
    />
  );
}

const TIP_ID = "stage-tip";

/** Describes a stage: its name, its meaning, and the texture that holds its values. */
function Tip({ stage, layout }: { stage: Stage; layout: Layout }) {
  const { names } = engine().model;
  const { rows, cols } = stage.view;
  const left = Math.max(0, Math.min(layout.left(stage.column), layout.width - TIP));
  return (
    <div class={style.tipBox} id={TIP_ID} role="tooltip" style={{ left: `${left}px`, width: `${TIP}px` }}>
      <b>{whereOf(stage)}</b>
      <p>{names.about(stage.of) || names.about(stage.label)}</p>
      <p class={style.texture}>
        {stage.products && "products for "}
        <code>{stage.of}</code>
        {stage.texture !== stage.of && (
          <>
            {" "}
            in texture <code>{stage.texture}</code>
          </>
        )}
        , {rows} × {cols} as stored
      </p>
      <p class={style.texture}>
        {isThere(stage)
          ? "This stage runs on the server now; its picture is from an earlier token."
          : `Blue is above zero, orange below. Click to open ${targetOf(stage).view}.`}
      </p>
    </div>
  );
}

/** True if the visitor has moved this stage, of a block or the logits, to the server with the split slider. */
function isThere({ column }: Stage): boolean {
  const { placement, manifest } = engine().model;
  return placement.movable && placement.here < manifest.config.n_layer && column > placement.here;
}

/** True if this stage ends a part of a block, and an intervention changes the block, the part or a head of the part. */
function isIntervened({ label, part }: Stage): boolean {
  const { names } = engine().model;
  if (!part) return false;
  return interventions.parts.value
    .map((cut) => parseIntervention(cut).part)
    .some((cut) => cut === part || names.whole(cut) === names.block(label) || headIn(names, cut)?.of === part);
}

/**
 * Shows the last generated token among tokens 0 to `at`, and its likeliest alternatives. With `input`, shows the token
 * that the model read to generate it.
 */
function Word({ at = generation.tokens.value.length - 1, input = false }: { at?: number; input?: boolean }) {
  const all = generation.tokens.value.slice(0, at + 1);
  const last = all.findLastIndex((t) => !t.given);
  if (input) {
    const tok = last < 0 ? all.at(-1) : all[last - 1];
    return (
      <div class={style.wordIn}>
        <small>token in</small>
        {tok && (
          <p>
            <b>{tok.label}</b>
            <span class={style.arrow} aria-hidden="true">
              →
            </span>
          </p>
        )}
      </div>
    );
  }
  const tok = all[last];
  const top = tok?.top?.slice(0, WORDS) ?? [];
  if (tok?.p !== undefined && top.length && !top.some((c) => c.id === tok.id)) top.push({ ...tok, p: tok.p });
  return (
    <div class={style.wordOut} aria-live="off">
      <small>next token</small>
      {tok ? (
        <>
          <p>
            <span class={style.arrow} aria-hidden="true">
              →
            </span>
            <b>{tok.label}</b>
            {tok.p !== undefined && <span class={style.share}>{percent(tok.p)}</span>}
          </p>
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
  await strip.prepare(); // again, because another view may have resized the shared drawing canvas
  await model.player.prepare(ENTRY);
  await model.cache.rewind(given, ENTRY);
  strip.see(given.length);
  await model.player.passed(); // without this, drawing would block the page until the passes issued so far have run
  model.cache.watched(ENTRY, strip);
  await model.player.passed();
  strip.done();
}
