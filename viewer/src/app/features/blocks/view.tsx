// The Blocks view: how each token's residual stream changes over the blocks, and which next token the model would
// predict from each block's output.

import { Layers } from "lucide";
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { AblateButtons } from "../interventions";
import { cell, walkCells } from "../../ui/roving";
import { textures } from "../textures/store";
import { blocks } from "./store";
import { generation, type Tok } from "../../stores/generation";
import { engine } from "../../stores/model";
import { percent, short, useDevice } from "../../ui/tools";
import type { View } from "../../stores/route";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const MIN_COLUMNS = 10; // minimum number of columns; each column is a token
const COLUMN = 78; // width of a column in pixels
const NAMES = 110; // width of the row headers in pixels

type Show = "token" | "norm" | "change";

/** Returns the integers from `first` up to, but not including, `end`. */
const range = (first: number, end: number) => Array.from({ length: Math.max(0, end - first) }, (_, i) => first + i);

/** Returns provisional row names. Until a column is computed, they give the table its final number of rows. */
function expected(): string[] {
  const { model } = engine();
  const of = [...model.names.activations.keys()];
  const last = (block: number) => of.findLast((name) => model.names.block(name) === block) ?? `${block}`;
  return ["", ...Array.from({ length: model.placement.blocks }, (_, block) => last(block))];
}

function BlocksView() {
  const busy = generation.running.value;
  const kept = useRef<Tok[]>([]);
  const box = useRef<HTMLDivElement>(null);
  if (!busy || !kept.current.length) kept.current = generation.read.value;
  const tokens = kept.current;
  const total = tokens.length;
  // The position after the last column's token. Null: the last column is the text's last token, even if the text grows.
  const end = useSignal<number | null>(null);
  const chosen = useSignal<[number, number] | null>(null); // a cell: (token, row); row 0 is the embedding
  const show = useSignal<Show>("token");
  const shown = useSignal(MIN_COLUMNS);
  const problem = useSignal("");
  const last = Math.min(Math.max(end.value ?? total, 1), total);
  const first = Math.max(0, last - shown.value);
  const ids = tokens.map((tok) => tok.id);
  const columns = tokens
    .slice(first, last)
    .map((tok, i) => ({ tok, t: first + i, blocks: blocks.column(ids, first + i) }));
  useDevice(
    async (model) => {
      if (busy) return;
      blocks.follow(model);
      const chosenFirst = chosen.value?.[0] ?? last - 1;
      for (const t of [chosenFirst, ...range(first, last).reverse()]) {
        if (t < first || t >= last || blocks.column(ids, t)) continue;
        await blocks.compute(model, ids, t);
        if (generation.running.value) return;
      }
    },
    [busy, first, last, total ? blocks.key(ids, total - 1) : ""],
    (why) => (problem.value = why),
  );
  const known = columns.filter((c) => c.blocks).length;
  const missing = busy ? 0 : columns.length - known;
  const blockOf = (name: string) => engine().model.names.block(name);
  const names = columns.find((c) => c.blocks)?.blocks?.map((b) => b.name) ?? expected();
  const most = (of: "norm" | "change") => Math.max(1e-9, ...columns.flatMap((c) => c.blocks?.map((b) => b[of]) ?? []));
  useLayoutEffect(() => {
    const fit = () =>
      (shown.value = Math.max(MIN_COLUMNS, Math.floor(((box.current?.clientWidth ?? 0) - NAMES) / COLUMN)));
    fit();
    const observer = new ResizeObserver(fit);
    if (box.current) observer.observe(box.current);
    return () => {
      observer.disconnect();
      blocks.row.value = null;
    };
  }, []);
  useLayoutEffect(() => {
    // scrolls to the last column, which the detail panel describes unless a cell is chosen
    if (box.current) box.current.scrollLeft = box.current.scrollWidth;
  }, [last, names.length]);
  const peak = show.value === "token" ? 1 : most(show.value);
  const [ct, cb] = chosen.value ?? [last - 1, Math.min(blocks.row.value ?? Infinity, names.length - 1)];
  const detail = columns.find((c) => c.t === ct)?.blocks?.[cb];
  const added = detail?.change ? `; the norm of what the block added is ${short(detail.change)}` : "";
  return (
    <section class={style.blocks} data-view="blocks" aria-label="Blocks" data-columns={known}>
      <div class={ui.panel}>
        <h2>What the model would predict after each block</h2>
        <p class={classes(ui.dim, ui.explained)}>
          Each column is a token; each row is a block. A cell shows the next token that the model would predict if that
          block were its last. The deeper the colour, the more confident the model.{" "}
          <span class={style.more}>
            Every block adds to the residual stream, a vector for each token. This table decodes the stream after every
            block (the “logit lens”). Straight after the embedding, the prediction is simply the token itself; it
            changes from block to block on the way down.
          </span>
        </p>
        <div class={ui.buttons}>
          <button disabled={first === 0} onClick={() => (end.value = Math.max(shown.value, last - shown.value))}>
            Earlier
          </button>
          <button
            disabled={last >= total}
            onClick={() => (end.value = last + shown.value < total ? last + shown.value : null)}
          >
            Later
          </button>
          <label class={ui.inline}>
            Show
            <select value={show.value} onChange={(e) => (show.value = e.currentTarget.value as Show)}>
              <option value="token">next token</option>
              <option value="norm">norm of the stream</option>
              <option value="change">norm of what the block added</option>
            </select>
          </label>
          <span class={ui.dim}>
            tokens {first + 1} to {last} of {total}
          </span>
          <span class={ui.dim} data-part="waiting" role="status">
            {missing > 0 && !problem.value && (
              <>
                <progress value={known} max={columns.length} aria-label="Columns computed" /> computing {known} of{" "}
                {columns.length}
              </>
            )}
          </span>
        </div>
        {problem.value && (
          <p class={ui.problem} role="alert">
            {problem.value}
          </p>
        )}
        <div class={style.lens} ref={box}>
          <table style={{ "--lines": names.length + 2 }} onKeyDown={walkCells}>
            <thead>
              <tr>
                <th scope="col">after</th>
                {columns.map(({ tok, t }) => (
                  <th key={t} scope="col">
                    <code>{tok.label}</code>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {names.map((name, b) => (
                <tr key={name}>
                  <th scope="row">{blockOf(name) < 0 ? "embedding" : `block ${blockOf(name)}`}</th>
                  {columns.map(({ t, blocks }) => {
                    const block = blocks?.[b];
                    const best = block?.top[0];
                    const amount = !block ? 0 : show.value === "token" ? (best?.p ?? 0) : block[show.value] / peak;
                    const text = !block
                      ? ""
                      : show.value === "token"
                        ? generation.label(best!.id)
                        : short(block[show.value]);
                    const right = show.value === "token" && best && best.id === tokens[t + 1]?.id;
                    return (
                      <td key={t}>
                        <button
                          {...cell(t, b, t === ct && b === cb)}
                          class={classes(right && style.right, t === ct && b === cb && style.on)}
                          style={{ "--amount": amount.toFixed(3) }}
                          title={best ? `${generation.label(best.id)} ${percent(best.p)}` : ""}
                          onClick={() => (chosen.value = [t, b])}
                          onMouseEnter={() => (chosen.value = [t, b])}
                          onFocus={() => (chosen.value = [t, b])}
                        >
                          {text || "…"}
                        </button>
                      </td>
                    );
                  })}
                </tr>
              ))}
              <tr class={style.next}>
                <th scope="row">what actually came next</th>
                {columns.map(({ t }) => (
                  <td key={t}>
                    <code>{tokens[t + 1]?.label ?? ""}</code>
                  </td>
                ))}
              </tr>
            </tbody>
          </table>
        </div>
        <p class={ui.dim}>
          A frame marks a correct prediction: the likeliest token is the one that actually came next.
        </p>
      </div>
      <div class={ui.panel}>
        <h2>
          {detail
            ? `${blockOf(detail.name) < 0 ? "After the embedding" : `After block ${blockOf(detail.name)}`}, at `
            : "…"}
          <code>{tokens[ct]?.label}</code>
        </h2>
        {detail && (
          <>
            <ol class={ui.bars}>
              {detail.top.map((c) => (
                <li key={c.id}>
                  <span class={ui.bar} style={{ width: `${100 * c.p}%` }} />
                  <code>{generation.label(c.id)}</code>
                  <span data-part="percent">{percent(c.p)}</span>
                </li>
              ))}
            </ol>
            {blockOf(detail.name) >= 0 && !engine().model.placement.isRemote(blockOf(detail.name)) && (
              <AblateButtons block={blockOf(detail.name)} token={ct} />
            )}
            <p class={classes(ui.dim, style.norms)}>
              The norm of the stream is {short(detail.norm)} here{added}. See its values:{" "}
              <button class={ui.link} onClick={() => textures.show(detail.name)}>
                {detail.name}
              </button>
            </p>
          </>
        )}
      </div>
    </section>
  );
}

declare module "../../stores/route" {
  interface ViewNames {
    blocks: true;
  }
}

export const view: View<"blocks"> = {
  name: "blocks",
  title: "Blocks",
  group: "use",
  icon: Layers,
  params: [],
  component: BlocksView,
};
