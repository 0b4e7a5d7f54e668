// The self-test: its file, its progress and its report.

import { signal } from "@preact/signals";
import { EmbeddedSource, folder, HOST } from "../../../document";
import { HttpSource, readAll } from "../../../runtime/engine/source";
import { ContextLost } from "../../../runtime/gl/device";
import { reason } from "../../../runtime/gl/errors";
import { selfTest, type Report } from "../../../runtime/selftest/report";
import { Suite, type SuiteJson } from "../../../runtime/selftest/suite";

const FILE = "selftest.bin";
const MAX_BYTES = 16 << 20;
const HASH = /^#selftest(&|$)/;

class SelfTestStore {
  readonly report = signal<Report | null>(null);
  readonly problem = signal("");
  readonly doing = signal<{ what: string; done: number; total: number } | null>(null);

  /** True if the address requests the self-test, which needs no model. */
  get isAsked(): boolean {
    return HASH.test(location.hash);
  }

  /** Runs all cases, or only those of the ops that the address names, as in `#selftest&op=matmul`. */
  async run(): Promise<void> {
    this.report.value = null;
    this.problem.value = "";
    this.show("Fetching the cases", 0, 0);
    try {
      const ops = new URLSearchParams(location.hash.slice(1)).getAll("op");
      this.report.value = await selfTest(await read(), HOST, ops, (...now) => this.show(...now));
    } catch (error) {
      const lost = `The browser lost the graphics context during the test. Reload the page to try again.`;
      this.problem.value = error instanceof ContextLost ? lost : reason(error);
    }
    this.doing.value = null;
  }

  private show(what: string, done: number, total: number): void {
    this.doing.value = { what, done, total };
  }
}

async function read(): Promise<Suite> {
  const source = EmbeddedSource.here() ?? new HttpSource(folder());
  const packed = new Blob([await source.bytes(FILE, MAX_BYTES)]).stream();
  const text = await readAll(packed.pipeThrough(new DecompressionStream("gzip")), FILE, MAX_BYTES);
  return new Suite(JSON.parse(new TextDecoder().decode(text)) as SuiteJson);
}

export const selftest = new SelfTestStore();
