// The Device view: the GPU, the recorded programs chosen for it, and a comparison of this browser's results with
// those of the desktop.

import { CircleCheck, CircleX, Cpu } from "lucide";
import type { Parity } from "../../../runtime/engine/parity";
import { bytesOfQueries, queriesOf } from "../../../runtime/engine/model";
import { textureBytes } from "../../../runtime/gl/program";
import { engine, models } from "../../stores/model";
import type { View } from "../../stores/route";
import { thousands } from "../../ui/tools";
import { classes } from "../../ui/classes";
import { Pairs } from "../../ui/pairs";
import { Icon } from "../../ui/icon";
import ui from "../../ui/shared.module.css";
import { device } from "./store";
import style from "./style.module.css";

const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

const OWN = ["state", "input", "scratch"]; // roles of a program's own textures; all programs share the weights
/** Textures that exist only after a feature was used, with their names in the list. */
const FURTHER = [
  ["interventions", "For the changed model"],
  ["several", "For several texts together"],
  ["masked", "For constraints"],
] as const;
const ROWS = { contiguous: "contiguous columns", strided: "strided columns" };

function DeviceView() {
  const info = engine().info();
  const { model } = engine();
  const { generate, capture } = model.programs;
  const probes = Object.entries(info.probeMs ?? {}).sort((a, b) => a[1] - b[1]);
  const passes = (name: string) => generate.entries[name]?.passes.length ?? 0;
  const { borrows, player } = model;
  const [weights, caches, scratch] = (["weight", "state", "scratch"] as const).map(
    (role) => info.textureBytes[role] ?? 0,
  );
  // Bytes that are added if each layer's queries have a separate texture. The Attention and Passes views create these
  // textures. The next generation that runs while neither view is shown releases them.
  const queries = bytesOfQueries(generate, queriesOf(model, generate));
  const now = player.separated ? queries : 0;
  const inspecting = info.textureBytes.capture;
  const all = Object.values(info.textureBytes).reduce((x, y) => x + y, 0);
  return (
    <section class={style.device} data-view="device" aria-label="Device">
      <div class={ui.panel}>
        <h2>This device</h2>
        <p class={ui.dim}>
          What the graphics driver of this browser offers, and which of the page's recorded programs fits it best.
        </p>
        <Pairs
          of={[
            ["GPU", info.renderer],
            [
              "Texture size",
              `${info.limits.maxTextureSize} x ${info.limits.maxTextureSize}, ${info.limits.maxLayers} layers`,
            ],
            ["Draw buffers", `${info.limits.drawBuffers} (${info.drawBuffers} used)`],
            ["Kernel", `${info.kernel} values per fragment; one-row products use ${ROWS[info.rows]}`],
            ["Fetch", info.fetch],
            ["How chosen", chosenBy(info.guessed, info.probeMs !== null)],
            ["Storage", info.storage === "float" ? "RGBA32F" : "RGBA32UI, holding the bits of floats"],
          ]}
        />
        <Measurements of={probes} />
        <p class={style.measurements}>
          <a href="#selftest">Test this device</a>: every operation against exact numbers, in about a minute
        </p>
      </div>
      {models.used.value === "own" && model.manifest.reference !== null && <ParityPanel />}
      <div class={ui.panel}>
        <div class={ui.heading}>
          <h2>Memory</h2>
          <span class={ui.tag}>{mib(all)} of textures</span>
        </div>
        <Shares of={[borrows ? 0 : weights!, caches!, scratch!]} />
        <Pairs
          of={[
            [
              "Weights",
              `${info.stored ? `as stored in a GGUF file (${info.stored.join(", ")})` : info.dtype}, ` +
                (borrows ? "shared with the training, not copied" : mib(weights!)),
            ],
            ["Caches", mib(caches!)],
            ["Scratch", mib(scratch!)],
            ["For generating", mib(weights! + caches! + scratch! - now)],
            ...(queries
              ? [["For Attention and Passes", `${mib(queries)} ${now ? "of the total" : "more"}`] as const]
              : []),
            [
              "For inspecting activations",
              inspecting ? `${mib(inspecting)} of the total` : `${mib(textureBytes(capture, OWN))} more`,
            ],
            ...FURTHER.flatMap(([kind, what]) => {
              const bytes = info.textureBytes[kind];
              return bytes ? [[what, `${mib(bytes)} of the total`] as const] : [];
            }),
          ]}
        />
      </div>
      <div class={ui.panel}>
        <h2>This model</h2>
        <Pairs
          of={[
            ["Layers", `${info.config.n_layer}, each with ${info.config.n_head} heads`],
            ["Width", String(info.config.n_embd)],
            ["Context", `${thousands(info.config.n_positions)} tokens`],
            ["Vocabulary", `${thousands(info.config.vocab_size)} tokens`],
            ["Passes per token", String(passes("decode"))],
            ["Start-up time", `${(info.times.readyMs / 1000).toFixed(2)} s`],
          ]}
        />
      </div>
    </section>
  );
}

/**
 * Lists the times measured on this device, the shortest first. Each kernel, and each layout of one-row products
 * (contiguous or strided columns), was measured with each way to fetch texels.
 */
function Measurements({ of }: { of: readonly (readonly [string, number])[] }) {
  if (!of.length) return <p class={classes(ui.dim, style.measurements)}>Not measured yet on this device</p>;
  const longest = Math.max(...of.map(([, ms]) => ms));
  return (
    <details class={style.measurements}>
      <summary>Measurements</summary>
      <table>
        <tbody>
          {of.map(([name, ms]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>
                <i style={{ width: `${(100 * ms) / longest}%` }} aria-hidden="true" />
              </td>
              <td>{ms.toFixed(2)} ms</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

/** Draws a bar with three segments, in proportion to the bytes of weights, caches and scratch textures. */
function Shares({ of }: { of: readonly number[] }) {
  return (
    <div class={style.shares} aria-hidden="true">
      {of.map((bytes, i) => (
        <i key={i} style={{ flexGrow: bytes }} />
      ))}
    </div>
  );
}

/** Returns how the kernel in use and the way to fetch texels were chosen. */
function chosenBy(guessed: boolean, measured: boolean): string {
  if (!guessed) return "Measured on this device";
  const next = measured ? "measured since, applied on your next visit" : "to be measured for your next visit";
  return `Default for this kind of GPU; ${next}`;
}

const percent = (share: number) => `${(100 * share).toFixed(1)}%`;

function greedyText({ greedyEqual, tie }: Parity): string {
  if (greedyEqual) return "equal";
  return tie ? "differs only where two tokens are equally likely within the tolerance" : "differs";
}

function ParityPanel() {
  const busy = device.comparing.value;
  const problem = device.problem.value;
  const r = device.parity.value;
  return (
    <div class={ui.panel} data-part="parity">
      <h2>Does this browser compute the same as the desktop?</h2>
      <p class={ui.dim}>
        Runs the reference prompt here and compares the logits, all activations and the greedy continuation with the
        desktop's.
      </p>
      <button class={ui.primary} disabled={busy} onClick={() => void device.compare()}>
        {busy ? "Comparing…" : "Compare"}
      </button>
      <div role="status" class={classes(style.verdict, !r && ui.empty)}>
        {problem ? (
          <p class={ui.problem}>{problem}</p>
        ) : (
          !r && <p>{busy ? "Running the reference prompt…" : "Not compared yet. It takes a few seconds."}</p>
        )}
        {r && (
          <>
            <strong class={r.pass ? ui.pass : ui.fail}>
              <Icon of={r.pass ? CircleCheck : CircleX} /> {r.pass ? "PASS" : "FAIL"}
            </strong>
            <p>
              Largest logit error {r.maxError.toExponential(2)} ({percent(r.ofTolerance)} of the tolerance, which is a
              relative error of {r.tolerance.relative.toExponential(1)}); KL divergence {r.kl.toExponential(1)} nats;
              greedy text {greedyText(r)};{" "}
              {r.firstApart
                ? `of ${r.names} activations, ${r.firstApart.name} is the first outside the tolerance: ` +
                  `${r.firstApart.here} here, ${r.firstApart.desktop} on the desktop.`
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
