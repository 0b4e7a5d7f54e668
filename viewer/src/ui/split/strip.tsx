// Above the views of a split page: where each block runs, what crosses, and how long each side takes.

import { useSignal } from "@preact/signals";
import type { Model } from "../../engine/model";
import * as split from "./state";
import "./strip.css";

const ms = (x: number) => (x < 10 ? x.toFixed(1) : x.toFixed(0));
const bytes = (n: number) => (n < 2048 ? `${n} B` : n < 2 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 2 ** 20).toFixed(1)} MiB`);

export function SplitStrip({ model }: { model: Model }) {
  const about = model.manifest.split;
  if (!about || !model.split) return null;
  split.watch(model.split);
  const here = model.manifest.config.n_layer;
  const { tokens, sent, received, reconnects } = split.total.value;
  const last = split.last.value;
  return (
    <section class="split" aria-label="Where the blocks run">
      <div class="way">
        <Side label="in this page" names={["embedding", ...range(0, here)]} busy={split.mean.value.here} kind="here" />
        <span class={`wire ${split.status.value}`}>
          <b>{last ? `${bytes(last.sent)} →` : "→"}</b>
          <small>{last ? `← ${bytes(last.received)}` : "←"}</small>
        </span>
        <Side label={`on ${host(about.server)}`} names={[...range(here, about.stream.length - 1), "head"]} busy={split.mean.value.there} kind="there" />
      </div>
      <Bars />
      <p class="said">
        <span role="status" class={split.status.value}>
          {split.status.value === "connected" ? "Connected" : split.problem.value || "Connecting…"}
        </span>
        <span>
          {tokens} tokens, {bytes(sent)} sent, {bytes(received)} received
          {reconnects > 0 && `, connected again ${reconnects === 1 ? "once" : `${reconnects} times`}`}
        </span>
      </p>
      {split.status.value === "refused" && <Token model={model} />}
      <p class="dim">
        Hidden states travel as {about.wire}. They hide nothing: whoever runs the server can read the text from them.
      </p>
    </section>
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
}

function Side({ label, names, busy, kind }: SideProps) {
  return (
    <div class={`side ${kind}`} data-blocks={names.join()}>
      <span class="name">{label}</span>
      <ol>
        {names.map((name) => (
          <li key={name} title={/^\d/.test(name) ? `block ${name}` : name}>
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
