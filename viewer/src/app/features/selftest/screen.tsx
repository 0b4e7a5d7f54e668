// The self-test of this device: the page that `#selftest` shows instead of a model.

import { CircleCheck, CircleX, Copy, Download, RotateCw } from "lucide";
import { useEffect } from "preact/hooks";
import type { FormatResult, Report } from "../../../runtime/selftest/report";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import { Mark } from "../../ui/mark";
import { Pairs } from "../../ui/pairs";
import { offerFile, useCopy } from "../../ui/tools";
import frame from "../../ui/band.module.css";
import ui from "../../ui/shared.module.css";
import { selftest } from "./store";
import style from "./style.module.css";

export function SelfTest() {
  useEffect(() => void selftest.run(), []);
  const report = selftest.report.value;
  return (
    <>
      <div class={frame.band}>
        <header>
          <Mark />
          <h1>glgpt</h1>
          <p class={frame.about}>
            Runs on this device every operation that models use, and compares the results with exact numbers. The test
            needs no model, and nothing is sent.
          </p>
          <a class={style.back} href="#">
            Open the page
          </a>
        </header>
      </div>
      <main tabIndex={-1}>
        <section class={style.selftest} data-view="selftest" aria-label="Self-test">
          <Verdict report={report} />
          {report && report.failures.length > 0 && <Failures report={report} />}
          {report && <Formats of={report.formats} />}
          {report && <Facts report={report} />}
          {report && <Copied report={report} />}
        </section>
      </main>
    </>
  );
}

function Verdict({ report }: { report: Report | null }) {
  const doing = selftest.doing.value;
  const problem = selftest.problem.value;
  return (
    <div class={classes(ui.panel, style.whole)} data-part="verdict">
      <h2>Does this device compute correctly?</h2>
      <div role="status">
        {problem && <p class={ui.problem}>{problem}</p>}
        {doing && (
          <>
            <p class={ui.dim}>
              {doing.what}
              {doing.total > 0 && `: ${doing.done} of ${doing.total}`}…
            </p>
            <progress class={style.progress} max={doing.total || 1} value={doing.total ? doing.done : undefined} />
          </>
        )}
        {report && (
          <>
            <strong class={report.failed ? ui.fail : ui.pass}>
              <Icon of={report.failed ? CircleX : CircleCheck} /> {report.failed ? "FAIL" : "PASS"}
            </strong>
            <p>{sentence(report)}</p>
            <p class={ui.dim}>{report.device}</p>
          </>
        )}
      </div>
      {!doing && (
        <button class={classes(ui.quiet, style.again)} onClick={() => void selftest.run()}>
          <Icon of={RotateCw} /> Run again
        </button>
      )}
    </div>
  );
}

function sentence({ passed, failed, skipped, seconds }: Report): string {
  const counts = failed
    ? `${failed} of ${passed + failed} checks failed: models would not run here, or would compute wrong numbers`
    : `All ${passed} checks passed`;
  return `${counts}${skipped ? `; ${skipped} were skipped` : ""}. The test took ${seconds} s.`;
}

function Failures({ report }: { report: Report }) {
  return (
    <div class={classes(ui.panel, style.whole)} data-part="failures">
      <h2>What failed</h2>
      <ul class={style.failures}>
        {report.failures.map((each, i) => (
          <li key={i}>
            <b>{each.op}</b> in {each.format} <small>{each.shape}</small>
            <p>{each.problem}</p>
          </li>
        ))}
      </ul>
      {report.failed > report.failures.length && (
        <p class={ui.dim}>{report.failed - report.failures.length} more are not listed.</p>
      )}
    </div>
  );
}

/** Lists the number formats, each with the operation whose error is largest in relation to the allowed error. */
function Formats({ of }: { of: Report["formats"] }) {
  return (
    <div class={ui.panel} data-part="formats">
      <h2>Formats of numbers</h2>
      <p class={ui.dim}>
        The bar shows the greatest error as a share of the error that rounding may cause. The operation with this error
        is named next to the bar.
      </p>
      <table class={style.formats}>
        <tbody>
          {Object.entries(of).map(([name, found]) => (
            <Format key={name} name={name} of={found} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Format({ name, of: { passed, of, nearest } }: { name: string; of: FormatResult }) {
  const share = nearest?.share ?? 0;
  return (
    <tr>
      <th scope="row">{name}</th>
      <td>
        {passed} / {of}
      </td>
      <td title={nearest ? `${nearest.op}: ${(100 * share).toFixed(0)}% of the allowed error` : "not drawn"}>
        <i class={share > 1 ? style.over : undefined} style={{ width: `${Math.min(100, 100 * share)}%` }} />
      </td>
      <td>{nearest ? nearest.op : "not drawn"}</td>
    </tr>
  );
}

function Facts({ report }: { report: Report }) {
  const { limits, options, first_draw, speed } = report;
  const { slowest } = first_draw;
  return (
    <div class={ui.panel} data-part="facts">
      <h2>This device</h2>
      <Pairs
        of={[
          ["Driver", report.driver],
          ["Textures", `${limits.max_texture_size} x ${limits.max_texture_size}, ${limits.max_layers} layers`],
          ["Targets of a pass", String(limits.max_draw_buffers)],
          ["Storage", options.storage === "float" ? "RGBA32F" : "RGBA32UI, holding the bits of floats"],
          ["Same draw twice", report.deterministic ? "equal bits" : "different bits"],
          ["Numbers below 2⁻¹²⁶", report.properties.denormals === "kept" ? "kept" : "replaced by zero"],
          ["Lost context", report.context_loss],
          [
            "Compiling",
            `${seconds(first_draw.ms)} with the first draws of ${first_draw.shaders} shaders` +
              (slowest ? `; slowest ${slowest.op}, ${seconds(slowest.ms)}` : ""),
          ],
          ...Object.entries(speed).map(([name, value]) => [SPEEDS[name] ?? name, `${value} ${unit(name)}`] as const),
        ]}
      />
    </div>
  );
}

const SPEEDS: Readonly<Record<string, string>> = {
  "product GFLOP/s": "A product of 64 rows",
  "token ms": "A token of a small model",
};
const seconds = (ms: number) => `${(ms / 1000).toFixed(1)} s`;
const unit = (name: string) => name.split(" ").at(-1)!;

function Copied({ report }: { report: Report }) {
  const text = JSON.stringify(report);
  const { copied, copy } = useCopy(text);
  return (
    <div class={classes(ui.panel, style.whole)} data-part="json">
      <h2>Report</h2>
      <p class={ui.dim}>
        Nothing is sent. To report this device, paste the text into the form “Report a device” of the project's issues.
        The text names the graphics card and the browser.
      </p>
      <textarea class={style.json} readOnly rows={5} aria-label="Report as JSON" value={text} />
      <div class={ui.buttons}>
        {copy && (
          <button class={ui.primary} onClick={copy}>
            <Icon of={Copy} /> {copied ? "Copied" : "Copy"}
          </button>
        )}
        <button onClick={() => offerFile(text, "application/json", "glgpt-selftest.json")}>
          <Icon of={Download} /> Save
        </button>
      </div>
    </div>
  );
}
