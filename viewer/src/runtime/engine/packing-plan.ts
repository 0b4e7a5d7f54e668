// Describes to the packing worker how the tensor of a parameter fills the texture of the parameter.

import type { Dtype, View } from "../gl/program";
import type { Packing, Storage, Target } from "../gguf/packing";
import { FORMATS } from "./formats";
import { shape } from "./layout";
import type { ShapeParameter } from "../generated/shape";
import type { Place } from "./player-files";

/** Returns how a tensor is packed into a texture with this view. `gguf`: true if the tensor is in a GGUF file. */
export function packingOf(parameter: ShapeParameter, { file, tensor }: Place, view: View, gguf: boolean): Packing {
  const { checkpoint, matrix, heads } = parameter;
  const own = gguf ? parameter.gguf : null;
  const matrices = tensor.shape.length > 1;
  return {
    name: parameter.name,
    storage: storageOf(view.dtype as Dtype),
    target: targetOf(view),
    origin: {
      file,
      offset: tensor.offset,
      type: tensor.type.name,
      stored: [matrices ? tensor.shape[0]! : 1, tensor.shape.at(-1)!],
      transposed: matrices && (own ? own.transposed : checkpoint.transposed),
      exchanged: own?.exchanged ?? null,
      heads,
      matrix,
      shift: own?.shift ?? 0,
    },
  };
}

function storageOf(dtype: Dtype): Storage {
  const { name, columnTiles, group, scaleRows, minimum, signed, wide } = FORMATS[dtype];
  return { name, columnTiles, bits: group ? 32 / columnTiles : 0, group, scaleRows, minimum, signed, wide };
}

function targetOf(view: View): Target {
  const { rows, cols, tiles, panel, stack } = view;
  const { height, width, stored, groups, panels, across } = shape(view);
  return { rows, cols, rowTiles: tiles[0], height, width, stored, groups, panel, panels, stack, across };
}
