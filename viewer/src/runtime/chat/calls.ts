// Finds calls of functions in a model's text while the text arrives. The desktop's glgpt/api/calls.py has the same
// rules.

import { dumped, isObject, type Json } from "../gl/json";

export const OPEN = "<tool_call>";
export const CLOSE = "</tool_call>";
/** The two accepted names of the field that holds a call's arguments. Llama 3 writes "parameters". */
export const ARGUMENTS = "arguments";
export const PARAMETERS = "parameters";
const TAG = "<|python_tag|>"; // Llama 3 may write this before a call
const HEAD = /^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)/;

/**
 * A part of a call that arrives in parts. `index`: the call's number in the text. `name`: the function's name in the
 * call's first part, null in later parts. `arguments`: the next piece of the arguments' JSON.
 */
export interface CallPart {
  index: number;
  arguments: string;
  name: string | null;
}

/**
 * Separates a model's text into content and calls of the functions `names`. A call is `{"name": …, "arguments": {…}}`
 * between <tool_call> and </tool_call>. At the beginning of the text and directly after another call, a call needs no
 * tags. The field "arguments" may also be named "parameters". Calls of other functions stay content. After `most`
 * calls, the rest of the text is dropped.
 */
export class CallParser {
  /** The number of complete calls. */
  count = 0;
  private held = "";
  private state: "text" | "call" | "arguments" | "after" = "text";
  private opened = ""; // the tag before the current call: OPEN, or "" if the call began without a tag
  private fresh = true; // true where a call without OPEN may begin: at the beginning and after a call, until content
  private readonly end = new JsonEnd(); // finds the end of the arguments
  private brace = false; // true while the closing brace of a call, after its arguments, is still to come
  private parts: (string | CallPart)[] = [];

  constructor(
    private readonly names: readonly string[],
    private readonly most = Infinity,
  ) {}

  /** Appends a piece of the text. Returns the parts that are complete now and were not returned before. */
  push(piece: string): (string | CallPart)[] {
    this.held += piece;
    while (this.held && (this.count < this.most || this.state === "arguments") && this.step());
    return this.taken();
  }

  /**
   * Returns the remaining parts at the end of the text. A call that is cut off before its arguments is content. If a
   * call is cut off within its arguments, its earlier parts were returned already, and nothing is added.
   */
  flush(): (string | CallPart)[] {
    if ((this.state === "text" || this.state === "call") && this.count < this.most) {
      const text = (this.state === "call" ? this.opened : "") + this.held;
      this.content(this.count ? text.trimEnd() : text);
    }
    this.held = "";
    return this.taken();
  }

  private taken(): (string | CallPart)[] {
    const found = this.parts;
    this.parts = [];
    return found;
  }

  private content(text: string): void {
    if (!text) return;
    this.parts.push(text);
    this.fresh &&= !text.trim();
  }

  /** Processes the held text in the current state. Returns false if more text must arrive first. */
  private step(): boolean {
    if (this.state === "text") return this.text();
    if (this.state === "call") return this.call();
    return this.state === "arguments" ? this.inArguments() : this.after();
  }

  private text(): boolean {
    if (this.fresh) {
      let begun = this.count ? this.held.replace(/^[ \t\n\r;]+/, "") : this.held.trimStart();
      if (begun.length < TAG.length && TAG.startsWith(begun)) return false;
      begun = without(begun, TAG).trimStart();
      if (!begun) return false;
      if (begun.startsWith("{")) {
        [this.held, this.opened, this.state] = [begun, "", "call"];
        return true;
      }
    }
    const at = this.held.indexOf(OPEN);
    if (at >= 0) {
      this.content(this.held.slice(0, at).trimEnd());
      [this.held, this.opened, this.state] = [this.held.slice(at + OPEN.length), OPEN, "call"];
      return true;
    }
    let end = OPEN.length - 1;
    while (!this.held.endsWith(OPEN.slice(0, end))) end--;
    const keep = this.held.slice(0, this.held.length - end).trimEnd().length; // blanks before a call are not content
    this.content(this.held.slice(0, keep));
    this.held = this.held.slice(keep);
    return false;
  }

  private call(): boolean {
    const head = HEAD.exec(this.held);
    if (head) {
      const name = parsed(head[1]!);
      if (typeof name !== "string" || !this.names.includes(name)) return this.notCall();
      this.parts.push({ index: this.count, arguments: "", name });
      [this.held, this.state] = [this.held.slice(head[0].length), "arguments"];
      this.end.reset();
      return true;
    }
    const begun = this.held.trimStart();
    if (begun && !begun.startsWith("{")) return this.notCall();
    const end = new JsonEnd().find(begun);
    const found = end < 0 ? undefined : parsed(begun.slice(0, end));
    if (found === undefined) return false;
    const { name, ...fields } = Object(found) as Record<string, Json>;
    const own = fields[ARGUMENTS] ?? fields[PARAMETERS];
    if (typeof name !== "string" || !this.names.includes(name) || !isObject(own)) return this.notCall();
    this.parts.push({ index: this.count++, arguments: dumped(own), name });
    [this.held, this.state] = [begun.slice(end), "after"];
    return true;
  }

  private notCall(): boolean {
    [this.fresh, this.state] = [false, "text"];
    this.content(this.opened);
    return true;
  }

  private inArguments(): boolean {
    const end = this.end.find(this.held);
    const own = end < 0 ? this.held : this.held.slice(0, end);
    this.parts.push({ index: this.count, arguments: own, name: null });
    this.held = this.held.slice(own.length);
    if (end < 0) return false;
    this.count++;
    [this.state, this.brace] = ["after", true];
    return true;
  }

  private after(): boolean {
    this.held = this.held.trimStart();
    if (this.brace && this.held) [this.held, this.brace] = [without(this.held, "}").trimStart(), false];
    if (this.opened && this.held !== CLOSE && CLOSE.startsWith(this.held)) return false;
    [this.held, this.state, this.fresh] = [without(this.held, CLOSE).trimStart(), "text", true];
    return true;
  }
}

/** Finds the end of a JSON object or list that arrives in pieces. */
class JsonEnd {
  private depth = 0;
  private quoted = false;
  private escaped = false;

  reset(): void {
    this.depth = 0;
  }

  /** Returns the position in this piece after the end of the object or list; -1 if the end has not arrived. */
  find(piece: string): number {
    for (let i = 0; i < piece.length; i++) {
      const character = piece[i]!;
      if (this.quoted) {
        this.quoted = this.escaped || character !== '"';
        this.escaped = character === "\\" && !this.escaped;
        continue;
      }
      this.quoted = character === '"';
      this.depth += Number("{[".includes(character)) - Number("}]".includes(character));
      if (!this.depth) return i + 1;
    }
    return -1;
  }
}

const without = (text: string, start: string) => (text.startsWith(start) ? text.slice(start.length) : text);

/** Returns the value of a JSON text; undefined if the text is not valid JSON. */
function parsed(text: string): Json | undefined {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return undefined;
  }
}
