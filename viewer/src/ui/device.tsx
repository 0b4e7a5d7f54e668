// What this device is and chose, and whether it computes what the desktop did.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Parity } from "../engine/parity";
import { textureBytes } from "../gl/program";
import { engine } from "./state";

const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

const OWN = ["state", "input", "scratch"]; // roles of textures beside the weights
const ROWS = { contiguous: "contiguous columns", strided: "strided columns" };

export function DeviceView() {
  const measured = useSignal(engine().own.probe !== null);
  useEffect(() => {
    const timer = setInterval(() => (measured.value = engine().own.probe !== null), 1000);
    return () => clearInterval(timer);
  }, []);
  const info = engine().info();
  const { generate, capture } = engine().model.programs;
  const probes = Object.entries(info.probeMs ?? {}).sort((a, b) => a[1] - b[1]);
  const passes = (name: string) => generate.entries[name]?.passes.length ?? 0;
  const rows: [string, string][] = [
    ["GPU", info.renderer],
    ["Texture size", `${info.limits.maxTextureSize} x ${info.limits.maxTextureSize}, ${info.limits.maxLayers} layers`],
    ["Draw buffers", `${info.limits.drawBuffers}, of which ${info.drawBuffers} are used`],
    ["Kernel", `${info.kernel} values per fragment; products of one row take ${ROWS[info.rows]}`],
    ["Fetch", info.fetch],
    ["Chosen by", chosenBy(info.guessed, measured.value)],
    ["Storage", info.storage === "float" ? "RGBA32F" : "RGBA32UI, floats bit for bit"],
    ["Weights", `${info.dtype}, ${engine().model.borrows ? "in the training's own textures: nothing is copied" : mib(info.textureBytes["weight"] ?? 0)}`],
    ["Caches", mib(info.textureBytes["state"] ?? 0)],
    ["Scratch", mib(info.textureBytes["scratch"] ?? 0)],
    [
      "All textures",
      `${mib(Object.values(info.textureBytes).reduce((x, y) => x + y, 0))} (${mib(textureBytes(generate, engine().model.borrows ? OWN : undefined))} to write, ${mib(textureBytes(capture, OWN))} more once intermediates are looked at)`,
    ],
    ["Passes per token", String(passes("decode"))],
    [
      "Model",
      `${info.config.n_layer} layers, ${info.config.n_head} heads, width ${info.config.n_embd}, context ${info.config.n_positions}, vocabulary ${info.config.vocab_size}`,
    ],
    ["Started in", `${(info.times.readyMs / 1000).toFixed(2)} s`],
  ];
  return (
    <section aria-label="Device" class="device">
      <ParityPanel />
      <div class="panel">
        <h2>This device</h2>
        <table>
          <tbody>
            {rows.map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>{value}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {probes.length > 0 && (
          <details>
            <summary>What was measured</summary>
            <table>
              <tbody>
                {probes.map(([name, ms]) => (
                  <tr key={name}>
                    <th scope="row">{name}</th>
                    <td>{ms.toFixed(2)} ms</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </details>
        )}
      </div>
    </section>
  );
}

/** Why this kernel and this fetch. */
function chosenBy(guessed: boolean, measured: boolean): string {
  if (!guessed) return "what was measured here";
  return `what devices of its kind like${measured ? "; it was measured since, for the next visit" : ""}`;
}

const percent = (share: number) => `${(100 * share).toFixed(1)}%`;

function greedyText({ greedyEqual, tie }: Parity): string {
  if (greedyEqual) return "equal";
  return tie ? "differs where two tokens are equally likely within the tolerance" : "differs";
}

function ParityPanel() {
  const result = useSignal<Parity | null>(null);
  const busy = useSignal(false);
  const problem = useSignal("");
  const run = async () => {
    busy.value = true;
    problem.value = "";
    try {
      result.value = await engine().parity();
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error);
    }
    busy.value = false;
  };
  const r = result.value;
  return (
    <div class="panel parity">
      <h2>Same numbers as the desktop?</h2>
      <p>Runs the reference prompt here and compares logits, every intermediate and the greedy continuation with those that the desktop computed.</p>
      <button class="primary" disabled={busy.value} onClick={() => void run()}>
        {busy.value ? "Comparing…" : "Compare"}
      </button>
      <div role="status" class="verdict">
        {problem.value}
        {r && (
          <>
            <strong class={r.pass ? "pass" : "fail"}>{r.pass ? "PASS" : "FAIL"}</strong>
            <p>
              Greatest logit error {r.maxError.toExponential(2)} ({percent(r.ofTolerance)} of the tolerance, a relative error of{" "}
              {r.tolerance.relative.toExponential(1)}); KL divergence {r.kl.toExponential(1)} nats; greedy text {greedyText(r)};{" "}
              {r.firstApart
                ? `${r.firstApart.name} is the first of ${r.names} intermediates beyond it: ${r.firstApart.here} here, ${r.firstApart.desktop} on the desktop.`
                : `all ${r.names} intermediates within it (${percent(r.greatest)} at most).`}
            </p>
            <p class="dim">Desktop: {r.desktop}</p>
          </>
        )}
      </div>
    </div>
  );
}
