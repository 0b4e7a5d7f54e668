// Describes what a generated text must match. The fields have the names of the methods that create the desktop's
// `Constraint` (glgpt/inference/constraints/constraint.py).

import { PageError, reason } from "../gl/errors";

/** Describes what a whole text must match. Exactly one of the fields is set. */
export interface Constraint {
  /** A JSON schema: an object, a boolean, or JSON text. */
  json_schema?: object | boolean | string;
  /** True: the text is any JSON object. */
  json_object?: boolean;
  /** A regular expression. */
  regex?: string | RegExp;
  /** The allowed texts: the generated text is one of them. */
  choice?: readonly string[];
}

/** Thrown for a constraint that cannot be used. The message names the part at fault. */
export class ConstraintError extends PageError {}

const KINDS = {
  json_schema: "JSON schema",
  json_object: "JSON schema",
  regex: "regular expression",
  choice: "list of choices",
} as const;

/**
 * Returns a copy of a constraint that can be sent to a worker, and in `what` the constraint's kind for error messages.
 * Throws ConstraintError unless exactly one field is set, or if a schema cannot be written as JSON.
 */
export function checkedConstraint(asked: Constraint): { constraint: Constraint; what: string } {
  const given = Object.entries(Object(asked) as Constraint).filter(
    ([name, value]) => value != null && (name !== "json_object" || value),
  );
  const [kind, value] = (given[0] ?? []) as [keyof typeof KINDS, unknown];
  if (given.length !== 1 || !Object.hasOwn(KINDS, kind)) {
    throw new ConstraintError(`constraint must be an object with one of ${Object.keys(KINDS).join(", ")}.`);
  }
  const what = KINDS[kind];
  if (kind !== "json_schema" || typeof value === "string") return { constraint: { [kind]: value }, what };
  try {
    return { constraint: { json_schema: JSON.stringify(value) }, what };
  } catch (error) {
    throw unusable(what, `it cannot be written as JSON (${reason(error)})`);
  }
}

/** Returns the error for a constraint that cannot be used. `what`: the constraint's kind, in words. */
export const unusable = (what: string, why: string): ConstraintError =>
  new ConstraintError(`The ${what} cannot be used to constrain text: ${why}.`);
