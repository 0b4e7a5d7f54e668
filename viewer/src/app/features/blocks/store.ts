// The selection of the Blocks view, and the columns that it has computed. A column has the predictions after the
// embedding and after each block, for one token.

import { signal } from "@preact/signals";
import { lens, type Block } from "../../../runtime/engine/lens";
import type { Model } from "../../../runtime/engine/model";
import { engine } from "../../stores/model";
import { interventions } from "../../stores/interventions";
import { route } from "../../stores/route";

const KEPT = 400; // maximum number of cached columns

class BlocksStore {
  /** The row that the view describes until a cell is chosen: 0 is the embedding, 1 is block 0; null: the last row. */
  readonly row = signal<number | null>(null);
  private readonly known = signal<ReadonlyMap<string, Block[]>>(new Map()); // columns, by the text up to a token
  private knownOf = ""; // the model that computed these columns, and the version of its parameters

  /** Opens the view at the output of a block. */
  open(block: number): void {
    route.show("blocks");
    this.row.value = block + 1;
  }

  /** Returns a key for the text up to a token, the model in use and its interventions. */
  key(ids: readonly number[], token: number): string {
    return `${engine().model.id} ${interventions.applied.value}${ids.slice(0, token + 1).join()}`;
  }

  /** Returns a token's column; undefined: not computed yet. Subscribes the caller to changes of all columns. */
  column(ids: readonly number[], token: number): Block[] | undefined {
    return this.known.value.get(this.key(ids, token));
  }

  /** Forgets the columns if another model is in use, or if training has changed the parameters. */
  follow(model: Model): void {
    const of = `${model.id} ${model.version}`;
    if (of !== this.knownOf) this.known.value = new Map();
    this.knownOf = of;
  }

  async compute(model: Model, ids: readonly number[], token: number): Promise<void> {
    const key = this.key(ids, token);
    const column = await lens(model, ids, token);
    const before = this.known.value;
    this.known.value = new Map(before.size < KEPT ? before : []).set(key, column);
  }
}

export const blocks = new BlocksStore();
