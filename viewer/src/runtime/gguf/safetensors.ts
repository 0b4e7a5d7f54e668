// Reads the header of a safetensors file: the place of every tensor.

import { PageError } from "../gl/errors";
import { TYPE_NAMES } from "./block-types";
import type { Tensor } from "./reader";

const MAX_HEADER = 100 << 20; // maximum bytes; also the limit of the safetensors library

/** Returns the tensors by name. If the file is not a complete safetensors file, throws a PageError that names it. */
export async function readSafetensorsHeader(file: Blob, name: string): Promise<Map<string, Tensor>> {
  const problem = (what: string) => new PageError(`${name} is not a valid safetensors file: ${what}.`);
  if (file.size < 8) throw problem("it is too short");
  const size = Number(new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
  if (!(size > 1 && size <= MAX_HEADER && 8 + size <= file.size)) throw problem("its header is incomplete");
  let header: Record<string, unknown>;
  try {
    header = JSON.parse(await file.slice(8, 8 + size).text()) as Record<string, unknown>;
  } catch {
    throw problem("its header is not JSON");
  }
  const found = new Map<string, Tensor>();
  for (const [tensor, about] of Object.entries(header)) {
    if (tensor === "__metadata__") continue;
    const { dtype, shape, data_offsets: offsets } = (about ?? {}) as Record<string, unknown>;
    if (!isCounts(shape) || !isCounts(offsets) || offsets.length !== 2)
      throw problem(`tensor ${tensor} lacks a valid shape or valid offsets`);
    const type = TYPE_NAMES.get(String(dtype));
    if (!type || type.group) {
      throw new PageError(`${name}: tensor ${tensor} has dtype ${String(dtype)}; this page reads F32, F16 and BF16.`);
    }
    const [from, to] = offsets as [number, number];
    const bytes = shape.reduce((a, b) => a * b, 1) * type.bytes;
    if (to - from !== bytes || 8 + size + to > file.size) throw problem(`tensor ${tensor} is truncated`);
    found.set(tensor, { name: tensor, type, shape, offset: 8 + size + from, bytes });
  }
  return found;
}

const isCounts = (value: unknown): value is number[] =>
  Array.isArray(value) && value.every((each) => Number.isSafeInteger(each) && (each as number) >= 0);
