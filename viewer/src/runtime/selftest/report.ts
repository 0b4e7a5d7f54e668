// Runs the self-test and builds its report, of at most 20 KB of JSON. The desktop's report (glgpt/selftest/report.py)
// has the same fields.

import { Device, type Host } from "../gl/device";
import { PageError } from "../gl/errors";
import { drawAll, loseContext, rounded, speed, type Result } from "./run";
import type { Suite } from "./suite";

const MAX_FAILURES = 40; // maximum failures that a report lists
const MAX_TEXT = 240; // maximum characters of a failure's `problem`

export interface Failure {
  op: string;
  format: string;
  shape: string;
  error: number;
  allowed: number;
  problem: string;
}

export interface FormatResult {
  passed: number;
  of: number;
  /** The case with the largest `share`: its error divided by the allowed error. null: all cases were skipped. */
  nearest: { op: string; share: number } | null;
}

export interface Report {
  schema: number;
  where: "page";
  glgpt: string;
  device: string;
  driver: string;
  system: string;
  limits: Record<string, number>;
  options: Record<string, string | boolean>;
  passed: number;
  failed: number;
  skipped: number;
  formats: Record<string, FormatResult>;
  failures: Failure[];
  deterministic: boolean;
  properties: Record<string, string>;
  first_draw: { shaders: number; ms: number; slowest: { op: string; format: string; ms: number } | null };
  context_loss: string;
  speed: Record<string, number>;
  seconds: number;
}

/** Receives the self-test's current activity, and how many of its cases are done. `total`: 0 if it is unknown. */
export type OnProgress = (doing: string, done: number, total: number) => void;

/** Tests `ops` ([]: all ops) on a separate device. Throws PageError for an unknown op. */
export async function selfTest(
  suite: Suite,
  host: Host,
  ops: readonly string[],
  onProgress: OnProgress,
): Promise<Report> {
  const unknown = ops.find((op) => !suite.ops.includes(op));
  if (unknown !== undefined) throw new PageError(`The self-test has no op ${unknown}; it has ${suite.ops.join(", ")}.`);
  const begun = performance.now();
  const device = new Device(host);
  try {
    const cases = suite.cases(ops);
    const show = (done: number) => onProgress("Drawing every op", done, cases.length);
    show(0);
    const results = await drawAll(device, cases, show);
    const about = described(device, suite);
    onProgress("Measuring speed", 0, 0);
    const measured = ops.length ? {} : await speed(device, suite);
    onProgress("Losing and restoring the graphics context", 0, 0);
    const context_loss = await loseContext(device, cases[0]!);
    const seconds = Math.round((performance.now() - begun) / 100) / 10;
    return { ...about, ...summary(results), context_loss, speed: measured, seconds };
  } finally {
    device.release();
  }
}

type About = Pick<Report, "schema" | "where" | "glgpt" | "device" | "driver" | "system" | "limits" | "options">;

function described(device: Device, suite: Suite): About {
  const { limits, renderer, storage, blends, pairs, parallel, gl } = device;
  const { schema, glgpt } = suite.json;
  return {
    schema,
    where: "page",
    glgpt,
    device: renderer,
    driver: String(gl.getParameter(gl.VERSION)),
    system: navigator.userAgent,
    limits: {
      max_texture_size: limits.maxTextureSize,
      max_layers: limits.maxLayers,
      max_draw_buffers: limits.drawBuffers,
      max_texture_units: limits.textureUnits,
      max_uniform_block: limits.uniformBlock,
    },
    options: { storage, blends, pairs, parallel: parallel !== null },
  };
}

/** Returns the report's fields that depend on the results: counts, formats, failures, properties and times. */
export function summary(results: readonly Result[]) {
  const tests = results.filter((result) => !result.case.property);
  const count = (status: Result["status"]) => tests.filter((result) => result.status === status).length;
  const formats = [...new Set(tests.map((result) => result.case.format))];
  const properties = results.flatMap(({ case: { property }, status }) =>
    property ? [[property, status === "passed" ? "kept" : "flushed"] as const] : [],
  );
  const slowest = greatest(results, ({ ms }) => ms);
  return {
    passed: count("passed"),
    failed: count("failed"),
    skipped: count("skipped"),
    formats: Object.fromEntries(
      formats.map((name) => [name, formatOf(tests.filter((each) => each.case.format === name))]),
    ),
    failures: tests
      .filter(({ status }) => status === "failed")
      .slice(0, MAX_FAILURES)
      .map(failureOf),
    deterministic: tests.every(({ same }) => same),
    properties: Object.fromEntries(properties),
    first_draw: {
      shaders: new Set(results.flatMap((each) => Object.keys(each.case.program.shaders))).size,
      ms: Math.round(results.reduce((sum, { ms }) => sum + ms, 0)),
      slowest: slowest && { op: slowest.case.op, format: slowest.case.format, ms: Math.round(slowest.ms) },
    },
  };
}

function formatOf(results: readonly Result[]): FormatResult {
  const nearest = greatest(
    results.filter(({ status }) => status !== "skipped"),
    ({ share }) => share,
  );
  return {
    passed: results.filter(({ status }) => status === "passed").length,
    of: results.length,
    nearest: nearest && { op: nearest.case.op, share: rounded(nearest.share) },
  };
}

function failureOf({ case: { op, format, shape }, error, allowed, problem }: Result): Failure {
  return { op, format, shape, error: rounded(error), allowed: rounded(allowed), problem: problem.slice(0, MAX_TEXT) };
}

function greatest(results: readonly Result[], by: (result: Result) => number): Result | null {
  return results.reduce<Result | null>((a, b) => (a && by(a) >= by(b) ? a : b), null);
}
