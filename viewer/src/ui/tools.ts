// What the drawing views share.

import { useEffect, useRef } from "preact/hooks";
import { Attention } from "../attention";
import { Painter } from "../gl/painter";
import type { Model } from "../model";
import { engine } from "./state";

interface Tools {
  generation: number;
  painter: Painter;
  attention: Attention;
}

let tools: Tools | null = null;

/** The painter and the attention entries, compiled; anew after a lost context. */
export async function drawing(model: Model): Promise<Tools> {
  if (!tools || tools.generation !== model.device.generation) {
    const painter = new Painter(model.device, model.options);
    tools = { generation: model.device.generation, painter, attention: new Attention(model, painter) };
  }
  await tools.attention.prepare();
  return tools;
}

/** The same without waiting, where it is ready: for drawing while tokens come. */
export function drawingNow(model: Model): Tools | null {
  return tools && tools.generation === model.device.generation && tools.painter.ready ? tools : null;
}

/** Runs `work` on the device after each change of `inputs`, one at a time, the latest last. */
export function useDevice(work: (model: Model) => Promise<void>, inputs: readonly unknown[]): void {
  const turn = useRef(0);
  useEffect(() => {
    const mine = ++turn.current;
    const run = async () => {
      await engine().borrow(async (model) => {
        if (mine === turn.current) await work(model);
      });
    };
    run().catch((error: unknown) => console.warn("drawing:", error));
    return () => void turn.current++;
  }, inputs);
}

export function short(value: number): string {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  return Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
}
