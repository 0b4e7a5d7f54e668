// Above the views of a page with a server: where each block runs, what crosses, and how long each side takes.

import { useSignal } from "@preact/signals";
import type { Model } from "../../engine/model";
import * as split from "./state";
import "./strip.css";

const ms = (x: number) => (x < 10 ? x.toFixed(1) : x.toFixed(0));
const bytes = (n: number) => (n < 2048 ? `${Math.round(n)} B` : n < 2 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 2 ** 20).toFixed(1)} MiB`);

export function SplitStrip({ model }: { model: Model }) {
  const about = model.manifest.split;
  if (!about || !model.split) return null;
  split.watch(model);
  const blocks = about.stream.length - 1;
  const here = model.movable ? split.here.value : model.manifest.config.n_layer;
  const whole = here === blocks;
  const { tokens, sent, received, reconnects, guessed, accepted } = split.total.value;
  const last = split.last.value;
  const head = about.head === "page" ? ["head"] : [];
  return (
    <section class="split" aria-label="Where the blocks run">
      {model.movable && <Slider model={model} here={here} blocks={blocks} />}
      <div class={whole ? "way whole" : "way"}>
        <Side
          label="in this page"
          names={["embedding", ...range(0, here), ...(whole ? ["head"] : [])]}
          busy={split.mean.value.here}
          kind="here"
          behind={head}
        />
        {!whole && (
          <>
            <span class={`wire ${split.status.value}`}>
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
      {model.movable && <Tried blocks={blocks} here={here} />}
      <p class="said">
        {!whole && (
          <span role="status" class={split.status.value}>
            {said()}
          </span>
        )}
        <span>
          {tokens} tokens, {bytes(sent)} sent, {bytes(received)} received
          {reconnects > 0 && `, connected again ${reconnects === 1 ? "once" : `${reconnects} times`}`}
          {guessed > 0 && `, ${accepted} of ${guessed} guesses right`}
        </span>
        {!whole && about.head === "server" && <Guessing model={model} />}
      </p>
      {!whole && split.status.value === "refused" && model.split.wantsToken && <Token model={model} />}
      <p class="dim">
        {whole
          ? "Nothing leaves this page while all blocks run in it."
          : `Hidden states travel as ${about.wire}. They hide nothing: whoever runs the server can read the text from them. ${LEAK}`}
      </p>
    </section>
  );
}

/** How the connection is. */
function said(): string {
  const problem = split.problem.value;
  switch (split.status.value) {
    case "connected":
      return "Connected";
    case "idle":
      return problem ? `${problem} The next token tries again.` : "Connects when it is needed";
    default:
      return problem || "Connecting…";
  }
}

// docs/guide/split.md, "What a hidden state gives away"
const LEAK = "In the model that glgpt comes with, a linear map recovers 95 to 99% of the tokens, wherever the cut is.";
const WHEN = { slow: null, always: true, never: false };

/** Whether several tokens are guessed from the text and checked in one round trip. */
function Guessing({ model }: { model: Model }) {
  const name = Object.entries(WHEN).find(([, how]) => how === split.speculate.value)![0];
  return (
    <label class="inline" title="Guesses what follows from the text itself; the server checks up to seven guesses in one round trip. The draws are the same.">
      Guess ahead
      <select value={name} onChange={(e) => split.guess(model, WHEN[e.currentTarget.value as keyof typeof WHEN])}>
        <option value="slow">when latency is high</option>
        <option value="always">always</option>
        <option value="never">never</option>
      </select>
    </label>
  );
}

/** How many blocks run in the page. */
function Slider({ model, here, blocks }: { model: Model; here: number; blocks: number }) {
  const cut = model.interventions.length > 0;
  return (
    <label class="inline slider">
      Blocks in this page
      <input
        type="range"
        min={0}
        max={blocks}
        value={here}
        disabled={cut}
        title={cut ? "All blocks run here while parts are switched off" : undefined}
        aria-valuetext={`${here} here, ${blocks - here} on the server`}
        onInput={(e) => split.move(model, Number(e.currentTarget.value))}
      />
      <output>
        <b>{here}</b> here, <b>{blocks - here}</b> there
      </output>
    </label>
  );
}

/** What each position of the slider that was tried costs. */
function Tried({ blocks, here }: { blocks: number; here: number }) {
  const tried = [...split.tried.value].sort(([a], [b]) => a - b);
  if (!tried.length) return <p class="dim">Generate some text, then move the slider: what each choice costs stands here.</p>;
  return (
    <table class="tried" aria-label="What a token takes">
      <thead>
        <tr>
          <th scope="col">here / there</th>
          <th scope="col">tokens/s</th>
          <th scope="col">bytes</th>
          <th scope="col">ms here</th>
          <th scope="col">wire</th>
          <th scope="col">there</th>
        </tr>
      </thead>
      <tbody>
        {tried.map(([at, way]) => (
          <tr key={at} aria-current={at === here ? "true" : undefined}>
            <th scope="row">
              {at} / {blocks - at}
            </th>
            <td>{(1000 / (way.here + way.wire + way.there)).toFixed(1)}</td>
            <td>{Math.round(way.bytes).toLocaleString("en")}</td>
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
  /** What comes here again, behind the other side. */
  behind: string[];
}

function Side({ label, names, busy, kind, behind }: SideProps) {
  return (
    <div class={`side ${kind}`} data-blocks={[...names, ...behind].join()}>
      <span class="name">{label}</span>
      <ol>
        {names.map((name) => (
          <li key={name} title={/^\d/.test(name) ? `block ${name}` : name}>
            {name}
          </li>
        ))}
        {behind.map((name) => (
          <li key={name} class="behind" title={`${name}, behind the server's blocks`}>
            {name}
          </li>
        ))}
      </ol>
      <small>{busy ? `${ms(busy)} ms a token` : " "}</small>
    </div>
  );
}

/** The shares of a token's time: here, on the wire, there. */
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
    <div class="shares" role="img" aria-label={`A token takes ${ms(here)} ms here, ${ms(wire)} on the wire, ${ms(there)} there`}>
      {parts.map(([name, time]) => (
        <span key={name} class={name} style={{ flexGrow: time / sum }}>
          {ms(time)} ms {name === "wire" ? "on the wire" : name}
        </span>
      ))}
    </div>
  );
}

/** Where the server wants a token: a field for it. */
function Token({ model }: { model: Model }) {
  const token = useSignal("");
  const send = (event: Event) => {
    event.preventDefault();
    model.split?.retry(token.value).catch(() => {}); // the strip says why
  };
  return (
    <form onSubmit={send}>
      <label class="inline">
        Token
        <input type="password" value={token.value} onInput={(e) => (token.value = e.currentTarget.value)} />
      </label>
      <button>Connect</button>
    </form>
  );
}
