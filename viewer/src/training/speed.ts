// Measures the speed of a training, without the time of work other than steps.

import { observe } from "./observed";

const RECENT = 30; // steps over which the speed is measured
const AT_ONCE_MS = 1; // maximum ms between results that count as one result: some drivers report steps together

export class Speed {
  tokensPerS = 0;
  /** (step, end time in ms) of the latest steps. The first entry may be the one that `begin` added. */
  private recent: [number, number][] = [];
  private apart = 0; // ms spent on work other than steps

  constructor(private readonly tokensPerStep: number) {
    observe(this, ["tokensPerS"]);
  }

  /** Discards the recent steps, after a pause. */
  reset(): void {
    this.recent = [];
  }

  /** Starts a measurement now: after `step`, while the device is idle. Does nothing if one is already running. */
  begin(step: number): void {
    if (!this.recent.length) this.recent.push([step, performance.now() - this.apart]);
  }

  /** Adds a step's result, which arrived at `at` ms. */
  add(step: number, at: number): void {
    const { recent } = this;
    const time = at - this.apart;
    if (recent.length > 1 && time - recent.at(-1)![1] < AT_ONCE_MS) recent.pop();
    recent.push([step, time]);
    while (recent.length > 2 && step - recent[0]![0] > RECENT) recent.shift();
    const [a, b] = [recent[0]!, recent.at(-1)!];
    if (b[1] > a[1]) this.tokensPerS = (1000 * (b[0] - a[0]) * this.tokensPerStep) / (b[1] - a[1]);
  }

  /** Excludes the time since `began` from the measurement. */
  exclude(began: number): void {
    this.apart += performance.now() - began;
  }
}
