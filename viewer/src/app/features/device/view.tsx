// The Device view: the GPU, the recording chosen for it, and the comparison with the desktop.

import { Cpu } from "lucide";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Parity } from "../../../runtime/engine/parity";
import { textureBytes } from "../../../runtime/gl/program";
import { engine } from "../../stores/model";
import type { View } from "../../stores/route";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

const OWN = ["state", "input", "scratch"]; // roles of textures other than weights
const ROWS = { contiguous: "contiguous columns", strided: "strided columns" };

function DeviceView() {
  const measured = useSignal(engine().own.kernels.probe !== null);
  useEffect(() => {
    const timer = setInterval(() => (measured.value = engine().own.kernels.probe !== null), 1000);
    return () => clearInterval(timer);
  }, []);
  const info = engine().info();
  const { generate, capture } = engine().model.programs;
  const probes = Object.entries(info.probeMs ?? {}).sort((a, b) => a[1] - b[1]);
  const passes = (name: string) => generate.entries[name]?.passes.length ?? 0;
  const rows: [string, string][] = [
    ["GPU", info.renderer],
    ["Texture size", `${info.limits.maxTextureSize} x ${info.limits.maxTextureSize}, ${info.limits.maxLayers} layers`],
    ["Draw buffers", `${info.limits.drawBuffers} (${info.drawBuffers} used)`],
    ["Kernel", `${info.kernel} values per fragment; one-row products use ${ROWS[info.rows]}`],
    ["Fetch", info.fetch],
    ["How chosen", chosenBy(info.guessed, measured.value)],
    ["Storage", info.storage === "float" ? "RGBA32F" : "RGBA32UI, holding the bits of floats"],
    [
      "Weights",
      `${info.dtype}, ${engine().model.borrows ? "shared with the training, not copied" : mib(info.textureBytes["weight"] ?? 0)}`,
    ],
    ["Caches", mib(info.textureBytes["state"] ?? 0)],
    ["Scratch", mib(info.textureBytes["scratch"] ?? 0)],
    [
      "All textures",
      `${mib(Object.values(info.textureBytes).reduce((x, y) => x + y, 0))} (${mib(textureBytes(generate, engine().model.borrows ? OWN : undefined))} for generating, ${mib(textureBytes(capture, OWN))} more for inspecting activations)`,
    ],
    ["Passes per token", String(passes("decode"))],
    [
      "Model",
      `${info.config.n_layer} layers, ${info.config.n_head} heads, width ${info.config.n_embd}, context ${info.config.n_positions}, vocabulary ${info.config.vocab_size}`,
    ],
    ["Start-up time", `${(info.times.readyMs / 1000).toFixed(2)} s`],
  ];
  return (
    <section class={style.device} data-view="device" aria-label="Device">
      <ParityPanel />
      <div class={ui.panel}>
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
            <summary>Measurements</summary>
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

/** Returns why this kernel and this way to fetch texels are in use. */
function chosenBy(guessed: boolean, measured: boolean): string {
  if (!guessed) return "Measured on this device";
  return `Default for this kind of GPU${measured ? "; measured since, applied on your next visit" : ""}`;
}

const percent = (share: number) => `${(100 * share).toFixed(1)}%`;

function greedyText({ greedyEqual, tie }: Parity): string {
  if (greedyEqual) return "equal";
  return tie ? "differs only where two tokens are equally likely within the tolerance" : "differs";
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
    <div class={ui.panel} data-part="parity">
      <h2>Does this browser compute the same as the desktop?</h2>
      <p>
        Runs the reference prompt here and compares the logits, all activations and the greedy continuation with the
        desktop's.
      </p>
      <button class={ui.primary} disabled={busy.value} onClick={() => void run()}>
        {busy.value ? "Comparing…" : "Compare"}
      </button>
      <div role="status" class={style.verdict}>
        {problem.value}
        {r && (
          <>
            <strong class={r.pass ? style.pass : style.fail}>{r.pass ? "PASS" : "FAIL"}</strong>
            <p>
              Largest logit error {r.maxError.toExponential(2)} ({percent(r.ofTolerance)} of the tolerance, which is a
              relative error of {r.tolerance.relative.toExponential(1)}); KL divergence {r.kl.toExponential(1)} nats;
              greedy text {greedyText(r)};{" "}
              {r.firstApart
                ? `${r.firstApart.name} is the first of ${r.names} activations outside the tolerance: ${r.firstApart.here} here, ${r.firstApart.desktop} on the desktop.`
                : `all ${r.names} activations are within the tolerance (at most ${percent(r.greatest)} of it).`}
            </p>
            <p class={ui.dim}>Desktop: {r.desktop}</p>
          </>
        )}
      </div>
    </div>
  );
}

declare module "../../stores/route" {
  interface ViewNames {
    device: true;
  }
}

export const view: View<"device"> = {
  name: "device",
  title: "Device",
  group: "inspect",
  icon: Cpu,
  params: [],
  component: DeviceView,
};
