// Converts a constraint to a grammar.

import { isUnicode } from "../gl/unicode";
import { PageError, reason } from "../gl/errors";
import type { Constraint } from "./constraint";
import { choiceGrammar, patternGrammar, type PatternOptions } from "./pattern";
import { Repetitions, rulesText } from "./repetition";
import { schemaGrammar, type Grammar } from "./schema";

// Maximum characters of a schema, of a pattern, or of all choices together. The desktop has the same limit.
const MAX_CHARACTERS = 1 << 18;

/** Returns the grammar of a constraint. Throws PageError if the constraint cannot be used. */
export function constraintGrammar(constraint: Constraint): Grammar {
  const { json_schema: schema, regex, choice } = constraint;
  if (constraint.json_object) return schemaGrammar({ type: "object" });
  if (schema !== undefined) return schemaGrammar(parsed(schema));
  const text = regex === undefined ? `root ::= ${choiceGrammar(choices(choice))}` : expression(regex);
  return { text, recursive: false };
}

/** Returns `text`. Throws PageError if it is too long or not valid Unicode. */
function checked(text: string): string {
  if (text.length > MAX_CHARACTERS) {
    throw new PageError(`it has ${text.length} characters; at most ${MAX_CHARACTERS} are supported`);
  }
  if (!isUnicode(text)) throw new PageError("it has an unpaired surrogate, which is not Unicode text; remove it");
  return text;
}

/** Returns a schema as plain JSON values. */
function parsed(schema: unknown): unknown {
  const text = checked(typeof schema === "string" ? schema : JSON.stringify(schema));
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new PageError(`it is not JSON (${reason(error)})`);
  }
}

function expression(pattern: unknown): string {
  const made = (source: string, options: PatternOptions = {}) => {
    const repetitions = new Repetitions();
    const root = patternGrammar(checked(source), repetitions, options);
    return rulesText([["root", root], ...repetitions.rules]);
  };
  if (pattern instanceof RegExp) {
    const flag = /[imv]/.exec(pattern.flags);
    if (flag) throw new PageError(`the flag ${flag[0]} is not supported`);
    return made(pattern.source, { dotAll: pattern.dotAll });
  }
  if (typeof pattern !== "string" || !pattern) throw new PageError("it must be a non-empty string");
  return made(pattern);
}

function choices(given: unknown): readonly string[] {
  if (!Array.isArray(given) || !given.length || !given.every((text) => typeof text === "string" && text)) {
    throw new PageError("it must be a non-empty list of non-empty strings");
  }
  checked(given.join());
  return given as readonly string[];
}
