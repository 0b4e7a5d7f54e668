// The texture selected in the Textures view, and the activation of a server if the view shows one.

import { signal } from "@preact/signals";
import type { Uploaded } from "../../../runtime/engine/uploaded";
import { param, parseKey } from "../../stores/link";
import { route } from "../../stores/route";

class TextureStore {
  /** The dotted name of the texture that is shown. */
  readonly texture = signal("");
  private remote: Uploaded | null = null;

  readonly params = [param({ key: "texture", signal: this.texture, parse: parseKey, default: () => "embed" })];

  /** Opens the view at a texture, by its dotted name. */
  show(name: string): void {
    route.show("textures");
    this.texture.value = name;
  }

  /** Releases the activation that is held, and holds `remote`, which was fetched from a server (null: nothing). */
  hold(remote: Uploaded | null): void {
    this.remote?.player.close();
    this.remote = remote;
  }
}

export const textures = new TextureStore();
