// The objects that draw textures (`Painter`) and attention (`Attention`). All views share them.

import { Attention } from "../drawing/attention";
import { Painter } from "../drawing/painter";
import { formatsOf } from "../../runtime/engine/formats";
import type { Model } from "../../runtime/engine/model";

interface Tools {
  model: Model;
  generation: number;
  painter: Painter;
  attention: Attention;
}

/** Holds the painter and the attention drawings (the tools) of the model that was drawn last. */
class DrawingStore {
  private tools: Tools | null = null;

  /** Returns the tools for this model, with compiled shaders. Compiles them again after a lost graphics context. */
  readonly ready = async (model: Model): Promise<Tools> => {
    const { device, options, programs } = model;
    const { generation } = device;
    if (this.tools?.model !== model || this.tools.generation !== generation) {
      const formats = formatsOf(programs.generate);
      const earlier = this.tools?.model.device === device ? this.tools.painter : null;
      const same = earlier && formats.every((format) => earlier.formats.includes(format));
      const painter = same ? earlier : new Painter(device, options, formats);
      this.tools = { model, generation, painter, attention: new Attention(model, painter) };
    }
    const { tools } = this;
    await tools.attention.prepare();
    return tools;
  };

  /** Returns the tools if `ready` has prepared them, else null. Never waits: used between tokens of a generation. */
  now(model: Model): Tools | null {
    const { tools } = this;
    if (tools?.model !== model || tools.generation !== model.device.generation) return null;
    return tools.painter.ready && tools.attention.ready ? tools : null;
  }
}

export const drawing = new DrawingStore();
