// The page's frame: what is loading or wrong, and the views.

import { useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { AttentionView } from "./attention";
import { BlocksView } from "./blocks";
import { DeviceView } from "./device";
import { PassesView } from "./passes";
import { TextView } from "./text";
import { TrainView } from "./train";
import { TexturesView } from "./textures";
import * as state from "./state";

/** The tabs, in the order of `state.VIEWS`. */
const TABS: Record<state.ViewName, { title: string; View: ComponentType }> = {
  text: { title: "Text", View: TextView },
  attention: { title: "Attention", View: AttentionView },
  blocks: { title: "Blocks", View: BlocksView },
  textures: { title: "Textures", View: TexturesView },
  passes: { title: "Passes", View: PassesView },
  train: { title: "Train", View: TrainView },
  device: { title: "Device", View: DeviceView },
};

export function App() {
  const phase = state.phase.value;
  const trains = phase === "ready" && Boolean(state.engine().model.manifest.training);
  const view = state.view.value === "train" && phase === "ready" && !trains ? "text" : state.view.value;
  const { View } = TABS[view];
  return (
    <>
      <header>
        <h1>
          glgpt <small>{phase === "ready" ? state.engine().model.manifest.model : ""}</small>
        </h1>
        <p>A language model drawn by fragment shaders, here in this browser. Nothing you type leaves it.</p>
        {phase === "ready" && <CopyLink />}
      </header>
      <nav aria-label="Views">
        {state.VIEWS.filter((name) => name !== "train" || trains).map((name) => (
          <button
            key={name}
            aria-current={view === name ? "page" : undefined}
            onClick={() => state.show(name)}
          >
            {TABS[name].title}
          </button>
        ))}
      </nav>
      <p class="lost" role="status" hidden={!state.lost.value}>
        The browser took the graphics card away. What was under way goes on when it is back.
      </p>
      <main>{phase === "failed" ? <Failed /> : phase === "ready" ? <View /> : <Loading />}</main>
    </>
  );
}

function CopyLink() {
  const said = useSignal("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      said.value = "Copied";
    } catch {
      said.value = "Copy the address above"; // a page that is not served securely has no clipboard
    }
    setTimeout(() => (said.value = ""), 2000);
  };
  return (
    <button class="quiet" onClick={() => void copy()} title="Prompt, settings and view are in the address">
      <span role="status">{said.value || "Copy link"}</span>
    </button>
  );
}

const mib = (bytes: number) => (bytes / 2 ** 20).toFixed(1);

function Loading() {
  const { done, total, cached, speed } = state.progress.value;
  const fetched = total > 0 && done >= total;
  return (
    <section class="panel loading" aria-label="Loading">
      <h2>{fetched ? "Preparing the shaders" : "Fetching the model"}</h2>
      <progress value={fetched ? undefined : done} max={total || 1} aria-label="Weights loaded" />
      <p>
        {total ? `${mib(done)} of ${mib(total)} MiB` : "Reading the manifest"}
        {cached > 0 ? `, ${mib(cached)} MiB from this browser's cache` : ""}
        {speed > 0 && done > cached ? `, ${mib(speed)} MiB/s` : ""}
      </p>
    </section>
  );
}

function Failed() {
  return (
    <section class="panel failed" role="alert">
      <h2>The model cannot run here</h2>
      <p>{state.failure.value}</p>
      <button class="primary" onClick={() => location.reload()}>
        Try again
      </button>
    </section>
  );
}
