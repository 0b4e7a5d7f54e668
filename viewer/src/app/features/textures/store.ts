// The selection of the Textures view.

import { signal } from "@preact/signals";
import { param, parseText } from "../../stores/link";
import { route } from "../../stores/route";

export const texture = signal("");

/** Opens the view at a texture, by its dotted name. */
export function showTexture(name: string): void {
  route.show("textures");
  texture.value = name;
}

export const params = [param({ key: "texture", signal: texture, parse: parseText, default: () => "embed" })];
