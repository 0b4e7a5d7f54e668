// Defines JSON values and writes them as Python's `json.dumps` does with `ensure_ascii=False`.

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** True if a value is a JSON object. */
export const isObject = (value: unknown): value is { readonly [key: string]: Json } =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Returns a value as `json.dumps` writes it, with the same blanks. */
export function dumped(value: Json): string {
  if (Array.isArray(value)) return `[${(value as readonly Json[]).map(dumped).join(", ")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const members = Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${dumped(member)}`);
  return `{${members.join(", ")}}`;
}
