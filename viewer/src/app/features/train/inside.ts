// Draws the textures of the model in training.

import type { Model } from "../../../runtime/engine/model";
import type { Session } from "../../../training/session";
import { Painter } from "../../drawing/painter";
import { PALETTES } from "../../drawing/palettes";
import { engine } from "../../stores/model";

class Inside {
  private painter: Painter | null = null;

  private painterOf({ device, options }: Model): Painter {
    return (this.painter ??= new Painter(device, options));
  }

  /**
   * Draws the attention of all heads, and one matrix: a parameter, its gradient, or one of its moments (the running
   * means of gradients and of squared gradients).
   */
  async draw(found: Session, grid: HTMLCanvasElement, plane: HTMLCanvasElement, texture: string): Promise<void> {
    const { model } = engine();
    const { trainer } = found;
    const gone = () => trainer.gone || trainer !== found.trainer;
    if (gone()) return;
    const painter = this.painterOf(model);
    await painter.prepare();
    if (gone() || !painter.ready) return;
    const { player, program } = trainer;
    const view = program.views[texture];
    if (view) {
      const height = Math.ceil(view.rows / view.tiles[0]);
      const shown = { rows: view.rows, first: 0, height, range: null, palette: PALETTES[0] };
      painter.matrix(plane, player.texture(texture), view, shown, view.cols, view.rows);
    }
    const { n_layer, n_head } = found.plan.offer.config;
    const text = found.plan.validation.length ? found.plan.validation : found.plan.train;
    const views = trainer.look(text);
    const tokens = views[0]!.rows / n_head;
    const cell = { cell: 2 * tokens, pitch: 2 * tokens + 4, capacity: tokens, heads: n_head };
    painter.grid(cell, n_layer, true);
    views.forEach((v, layer) => {
      const slab = {
        texture: player.texture(v.texture),
        view: v,
        start: 0,
        valid: tokens,
        scores: false,
        transposed: false,
      };
      painter.gridRows(cell, layer, slab);
    });
    painter.showGrid(grid);
  }
}

export const inside = new Inside();
