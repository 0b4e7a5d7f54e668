// The page's frame: what is loading or wrong, and the views.

import { AttentionView } from "./attention";
import { DeviceView } from "./device";
import { PassesView } from "./passes";
import { TexturesView } from "./textures";
import { Write } from "./write";
import * as state from "./state";

const TITLES = { write: "Write", attention: "Attention", textures: "Textures", passes: "Passes", device: "Device" };

export function App() {
  const ready = state.phase.value === "ready";
  return (
    <>
      <header>
        <h1>
          glgpt <small>{ready ? state.engine().model.manifest.model : ""}</small>
        </h1>
        <p>A language model drawn by fragment shaders, here in this browser. Nothing you type leaves it.</p>
      </header>
      <nav aria-label="Views">
        {state.VIEWS.map((name) => (
          <button
            key={name}
            aria-current={state.view.value === name ? "page" : undefined}
            onClick={() => state.show(name)}
          >
            {TITLES[name]}
          </button>
        ))}
      </nav>
      <main>{state.phase.value === "failed" ? <Failed /> : ready ? <View /> : <Loading />}</main>
    </>
  );
}

function View() {
  switch (state.view.value) {
    case "write":
      return <Write />;
    case "attention":
      return <AttentionView />;
    case "textures":
      return <TexturesView />;
    case "passes":
      return <PassesView />;
    case "device":
      return <DeviceView />;
  }
}

const mib = (bytes: number) => (bytes / 2 ** 20).toFixed(1);

function Loading() {
  const { done, total, cached, speed } = state.progress.value;
  return (
    <section class="panel loading" aria-label="Loading">
      <h2>{total && done >= total ? "Preparing the shaders" : "Fetching the model"}</h2>
      <progress value={done} max={total || 1} aria-label="Weights loaded" />
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
