// Finds a model's sampling settings. The page uses them until a visitor or a call changes them.

import type { PageSampling } from "../generated/manifest";
import { CHAT_SAMPLING, GGUF_KEYS, RANGES, TEXT_SAMPLING } from "../generated/sampling";
import { PageError } from "../gl/errors";
import type { SamplingOptions } from "./sampling";

export type SamplingDefaults = Pick<SamplingOptions, "temperature" | "topK" | "topP" | "minP">;

/** Returns a manifest's settings as options. */
export function samplingDefaults(given: PageSampling = TEXT_SAMPLING): SamplingDefaults {
  const { temperature, top_k: topK = null, top_p: topP = null, min_p: minP = null } = given;
  return { temperature, topK, topP, minP };
}

/**
 * Returns a model's sampling settings. If the model `chats`, these are the settings of its generation_config.json
 * (`config`), or `CHAT_SAMPLING` if `config` has no temperature; otherwise, they are `TEXT_SAMPLING`. Throws PageError
 * for values out of range.
 */
export function modelSampling(config: Record<string, unknown>, chats: boolean): PageSampling {
  if (!chats) return TEXT_SAMPLING;
  if ((config["temperature"] ?? null) === null) return CHAT_SAMPLING;
  const found = Object.entries(RANGES).flatMap(([key, [least, most]]): [string, number][] => {
    const value = config[key] ?? null;
    if (value === null) return [];
    const whole = key === "top_k";
    if (typeof value !== "number" || !(value >= least && value <= most) || (whole && !Number.isInteger(value))) {
      const what = whole ? "an integer" : "a number";
      throw new PageError(`${key} is ${JSON.stringify(value)}; it must be ${what} from ${least} to ${most}.`);
    }
    return value > 0 || key === "temperature" ? [[key, value]] : []; // 0 switches a setting off; -1 does so for top-k
  });
  return Object.fromEntries(found) as unknown as PageSampling;
}

/** Returns the sampling settings in a GGUF file's metadata, under the names of generation_config.json. */
export function ggufSampling(metadata: ReadonlyMap<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(GGUF_KEYS).map(([key, name]) => [name, metadata.get(key)]));
}
