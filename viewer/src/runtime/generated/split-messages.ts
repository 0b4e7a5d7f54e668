// The messages of split servers, as in glgpt/wire/messages.py. Written by scripts/generate_schema.py.

/**
 * Requests the token after the last row. The server with the head samples this token like a `Sampler`
 * (`inference.sampling`) with `seed`. `draw` is the number of earlier random draws. With `guesses`, the rows are those
 * of a token and of the guesses of the tokens after it. The answer then has the guesses before the first wrong one, and
 * one more token. `alternatives` is the number of likeliest tokens to return with each token. `logits` requests all
 * logits of the last row; it is ignored if there are guesses.
 */
export interface Ask {
  temperature?: number;
  top_k?: number | null;
  top_p?: number | null;
  min_p?: number;
  seed?: number | null;
  draw?: number;
  guesses?: readonly number[];
  alternatives?: number;
  logits?: boolean;
}

/**
 * Requests named activations of `n` rows, which start at position 0 and do not become part of the session. With `head`,
 * the rows go straight to the final norm and the head, so the rows may be states between any two blocks. The answer
 * includes the logits or the last hidden states of all rows, unless `end` is false.
 */
export interface Look {
  op: "look";
  seq: number;
  n: number;
  names?: readonly string[];
  head?: boolean;
  end?: boolean;
}

/**
 * The first message of a connection. `model` is the digest of the model that the server must hold. `part` requests
 * fewer blocks than the server holds.
 */
export interface Open {
  op: "open";
  protocol: number;
  token?: string | null;
  model?: string | null;
  session?: string | null;
  wire?: "f32" | "f16" | "int8";
  part?: string | null;
}

/** Requests to run `n` rows, from position `pos` on, through the server's blocks. */
export interface Step {
  op: "step";
  seq: number;
  pos: number;
  n: number;
  ask?: Ask | null;
}

export type ClientMessage = Open | Step | Look;

/** The reason why the server ends the connection. */
export interface Failed {
  op: "error";
  code: string;
  message: string;
}

/** The answer to `look`: the names and shapes of the arrays in the payload. */
export interface Looked {
  op: "looked";
  seq: number;
  arrays: readonly (readonly [string, readonly number[]])[];
  ms?: number;
}

/** The answer to `open`: the session, its number of rows, the number of its last step, and the server's blocks. */
export interface Opened {
  op: "opened";
  session: string;
  held: number;
  seq: number;
  holds: string;
  model?: string;
  digest?: string;
  shape?: Record<string, number>;
  context?: number;
  dtype?: string;
  sizes?: readonly number[];
  sessions?: number;
}

/**
 * The answer to a step of `n` rows. A server with the head returns the requested tokens; otherwise, the payload is
 * hidden states. With alternatives, `top` lists for each token the token itself and its alternatives: an id, its
 * probability in the model, and its probability after the sampling options.
 */
export interface Stepped {
  op: "stepped";
  seq: number;
  n: number;
  ms?: number;
  queue_ms?: number;
  tokens?: readonly number[];
  top?: readonly (readonly (readonly [number, number, number])[])[];
}

export type ServerMessage = Opened | Stepped | Looked | Failed;
