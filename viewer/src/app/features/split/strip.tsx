// The strip above the views of a split model, whose blocks run partly in this page and partly on a server. It shows
// where each block runs, the network traffic, and the time that the page, the network and the server take.

import { untracked, useSignal } from "@preact/signals";
import type { Model } from "../../../runtime/engine/model";
import { split } from "./store";
import { models } from "../../stores/model";
import type { Addition } from "../../stores/route";
import { thousands } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const ms = (x: number) => (x < 10 ? x.toFixed(1) : x.toFixed(0));
const bytes = (n: number) =>
  n < 2048 ? `${Math.round(n)} B` : n < 2 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 2 ** 20).toFixed(1)} MiB`;

function SplitStrip() {
  const model = models.ready;
  const about = model?.manifest.split;
  if (!about || !model.split) return null;
  untracked(() => split.watch(model));
  const blocks = about.stream.length - 1;
  const { here } = model.placement;
  const whole = here === blocks;
  const { tokens, sent, received, reconnects, guessed, accepted } = split.total.value;
  const last = split.last.value;
  const head = about.head === "page" ? ["head"] : [];
  return (
    <section class={style.split} aria-label="Where the blocks run">
      {model.placement.movable && <Slider model={model} here={here} blocks={blocks} />}
      <div class={classes(style.way, whole && style.whole)}>
        <Side
          label="in this page"
          names={["embedding", ...range(0, here), ...(whole ? ["head"] : [])]}
          busy={split.mean.value.here}
          kind="here"
          behind={head}
        />
        {!whole && (
          <>
            <span class={classes(style.wire, style[split.status.value])}>
              <b>{last ? `${bytes(last.sent)} →` : "→"}</b>
              <small>{last ? `← ${bytes(last.received)}` : "←"}</small>
            </span>
            <Side
              label={`on ${host(about.server)}`}
              names={[...range(here, blocks), ...(head.length ? [] : ["head"])]}
              busy={split.mean.value.there}
              kind="there"
              behind={[]}
            />
          </>
        )}
      </div>
      <Bars />
      {model.placement.movable && <Tried blocks={blocks} here={here} />}
      <p class={style.said}>
        {!whole && (
          <span role="status" class={style[split.status.value]}>
            {said()}
          </span>
        )}
        <span>
          {tokens} tokens, {bytes(sent)} sent, {bytes(received)} received
          {reconnects > 0 && `, reconnected ${reconnects === 1 ? "once" : `${reconnects} times`}`}
          {guessed > 0 && `, ${accepted} of ${guessed} guesses accepted`}
        </span>
        {!whole && about.head === "server" && <Guessing model={model} />}
      </p>
      {!whole && split.status.value === "refused" && model.split.wantsToken && <Token model={model} />}
      <p class={ui.dim}>
        {whole
          ? "All blocks run in this page: nothing leaves it."
          : `Hidden states are sent as ${about.wire}. They are not private: ` +
            `the operator of the server can recover the text from them. ${LEAK}`}
      </p>
    </section>
  );
}

/** Returns a text about the state of the connection to the server. */
function said(): string {
  const problem = split.problem.value;
  switch (split.status.value) {
    case "connected":
      return "Connected";
    case "idle":
      return problem ? `${problem} The next token reconnects.` : "Not connected yet: connects with the first token";
    default:
      return problem || "Connecting…";
  }
}

// measured in docs/guide/split.md, "What a hidden state gives away"
const LEAK = "For glgpt's own model, a linear map recovers 95 to 99% of the tokens at any split point.";
const WHEN = { slow: null, always: true, never: false };

/** Shows a menu for when the page guesses several tokens, which the server then checks in one round trip. */
function Guessing({ model }: { model: Model }) {
  const name = Object.entries(WHEN).find(([, how]) => how === split.speculate.value)![0];
  return (
    <label
      class={ui.inline}
      title={
        "Guesses the next tokens from repetitions in the text; the server checks up to seven guesses in one " +
        "round trip. The generated text is the same."
      }
    >
      Guess ahead
      <select value={name} onChange={(e) => split.guess(model, WHEN[e.currentTarget.value as keyof typeof WHEN])}>
        <option value="slow">when latency is high</option>
        <option value="always">always</option>
        <option value="never">never</option>
      </select>
    </label>
  );
}

/** Shows a slider for the number of blocks that run in the page. */
function Slider({ model, here, blocks }: { model: Model; here: number; blocks: number }) {
  const cut = model.interventions.active;
  return (
    <label class={classes(ui.inline, style.slider)}>
      Blocks in this page
      <input
        type="range"
        min={0}
        max={blocks}
        value={here}
        disabled={cut}
        title={cut ? "All blocks run in this page while parts of the model are changed" : undefined}
        aria-valuetext={`${here} in this page, ${blocks - here} on the server`}
        onInput={(e) => split.move(model, Number(e.currentTarget.value))}
      />
      <output>
        <b>{here}</b> here, <b>{blocks - here}</b> on the server
      </output>
    </label>
  );
}

/** Shows the speed, bytes and times of each split point (number of blocks in this page) that was tried. */
function Tried({ blocks, here }: { blocks: number; here: number }) {
  const tried = [...split.tried.value].sort(([a], [b]) => a - b);
  if (!tried.length)
    return <p class={ui.dim}>Generate some text, then move the slider: this table will compare the split points.</p>;
  return (
    <table class={style.tried} aria-label="Time and bytes per token">
      <thead>
        <tr>
          <th scope="col">here / server</th>
          <th scope="col">tokens/s</th>
          <th scope="col">bytes</th>
          <th scope="col">ms here</th>
          <th scope="col">network</th>
          <th scope="col">server</th>
        </tr>
      </thead>
      <tbody>
        {tried.map(([at, way]) => (
          <tr key={at} aria-current={at === here ? "true" : undefined}>
            <th scope="row">
              {at} / {blocks - at}
            </th>
            <td>{(1000 / (way.here + way.wire + way.there)).toFixed(1)}</td>
            <td>{thousands(Math.round(way.bytes))}</td>
            <td>{ms(way.here)}</td>
            <td>{ms(way.wire)}</td>
            <td>{ms(way.there)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const range = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => `${from + i}`);

function host(server: string): string {
  try {
    return new URL(server).host;
  } catch {
    return server;
  }
}

interface SideProps {
  label: string;
  names: string[];
  busy: number;
  kind: "here" | "there";
  /** Names of the parts that run on this side after the blocks of the other side. */
  behind: string[];
}

function Side({ label, names, busy, kind, behind }: SideProps) {
  return (
    <div class={classes(style.side, style[kind])} data-blocks={[...names, ...behind].join()}>
      <span class={style.name}>{label}</span>
      <ol>
        {names.map((name) => (
          <li key={name} title={/^\d/.test(name) ? `block ${name}` : name}>
            {name}
          </li>
        ))}
        {behind.map((name) => (
          <li key={name} class={style.behind} title={`${name}, after the server's blocks`}>
            {name}
          </li>
        ))}
      </ol>
      <small>{busy ? `${ms(busy)} ms per token` : " "}</small>
    </div>
  );
}

const PLACES: Record<string, string> = { here: "here", wire: "on the network", there: "on the server" };

/** Shows a bar that divides the time of a token into the times in this page, on the network and on the server. */
function Bars() {
  const { here, wire, there } = split.mean.value;
  const sum = here + wire + there;
  if (!sum) return null;
  const parts: [string, number][] = [
    ["here", here],
    ["wire", wire],
    ["there", there],
  ];
  return (
    <div
      class={style.shares}
      role="img"
      aria-label={`A token takes ${ms(here)} ms here, ${ms(wire)} on the network, ${ms(there)} on the server`}
    >
      {parts.map(([name, time]) => (
        <span key={name} class={style[name]} style={{ flexGrow: time / sum }}>
          {ms(time)} ms {PLACES[name]}
        </span>
      ))}
    </div>
  );
}

/** Shows a field for the access token that the server requires. */
function Token({ model }: { model: Model }) {
  const token = useSignal("");
  const send = (event: Event) => {
    event.preventDefault();
    model.split?.retry(token.value).catch(() => {}); // the strip shows the error
  };
  return (
    <form onSubmit={send}>
      <label class={ui.inline}>
        Access token
        <input type="password" value={token.value} onInput={(e) => (token.value = e.currentTarget.value)} />
      </label>
      <button>Connect</button>
    </form>
  );
}

export const addition: Addition = { strip: SplitStrip };
