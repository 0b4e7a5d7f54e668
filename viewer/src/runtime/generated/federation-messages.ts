// The messages of federations, as in protocol.py and replies.py of glgpt/federation. Written by scripts/generate_schema.py.

/**
 * A client's first message: identifies the client, and shows that the client trains with the session's program.
 * `resume` is the key from an earlier `welcome`. `digest` and `tokenizer` are the hashes of the training program and of
 * the tokenizer. With `own_text`, the client trains on a text that it provides.
 */
export interface Join {
  type: "join";
  version: 1;
  token: string;
  resume?: string;
  name?: string;
  device?: string;
  kind?: "browser" | "desktop" | "other";
  digest: string;
  tokenizer: string;
  own_text?: boolean;
}

/** Requests a `pong` with the same number `n`; `ms` is the last round trip time that the client measured. */
export interface Ping {
  type: "ping";
  n: number;
  ms?: number;
}

/** Reports a client's progress, for the dashboard. */
export interface Progress {
  type: "progress";
  step: number;
  loss?: number | null;
  tokens_per_s?: number;
}

/**
 * Announces a client's result of a round. The result follows in frames of `bytes` bytes in total. `loss` is in nats per
 * token.
 */
export interface Update {
  type: "update";
  round: number;
  attempt: string;
  tokens: number;
  steps: number;
  loss: number;
  seconds?: number;
  dtype: "f16" | "f32" | "int8" | "exact";
  scale?: number;
  bytes: number;
}

export type ClientMessage = Join | Update | Progress | Ping;

/** Accepts or rejects an update. Without `attempt`, rejects an invalid message instead. */
export interface AnswerMessage {
  type: "accepted" | "rejected";
  attempt?: string;
  norm?: number;
  why?: string;
  aside?: string;
}

/** Reports the end of the session. */
export interface ClosedMessage {
  type: "closed";
  why: string;
}

/** Sends the latest finished rounds. */
export interface FiguresMessage {
  type: "figures";
  rounds: readonly RoundFigures[];
}

/** Reports that `have` frames of an update have arrived; `ready` requests the remaining frames. */
export interface FramesMessage {
  type: "ready" | "ack";
  attempt: string;
  have: number;
}

/** A device of the session, as all members see it. */
export interface MemberRow {
  number: number;
  name: string;
  kind: string;
  step: number;
  loss: number | null;
  tokens_per_s: number;
  connections: number;
  said: string;
  aside: string;
}

/** Answers a ping. */
export interface PongMessage {
  type: "pong";
  n: number;
}

/**
 * A finished round. `validation_loss` and `sample` are missing if the model was not evaluated after this round. In
 * `welcome`, only the latest rounds have a `sample`.
 */
export interface RoundFigures {
  round: number;
  clients?: number;
  tokens?: number;
  loss?: number;
  validation_loss?: number;
  sample?: string;
  seconds?: number;
}

/** Offers a round to train. The parameters follow in frames of `bytes` bytes in total. */
export interface RoundMessage {
  type: "round";
  round: number;
  attempt: string;
  steps: number;
  step: number;
  lr: readonly number[];
  seconds_left: number;
  seed: number;
  shard: readonly [number, number];
  dtype: "f16" | "f32" | "int8" | "exact";
  bytes: number;
}

/** The open round. */
export interface RoundStatus {
  number: number;
  closed: boolean;
  answers: number;
  asked: number;
  seconds_left: number;
}

/** Reports the state of the session, once a second. */
export interface StateMessage {
  round: RoundStatus | null;
  done: number;
  paused: boolean;
  members: readonly MemberRow[];
  type: "state";
}

/** Admits a client. With `resume`, the client can rejoin as the same member. */
export interface WelcomeMessage {
  round: RoundStatus | null;
  done: number;
  paused: boolean;
  members: readonly MemberRow[];
  type: "welcome";
  member: number;
  resume: string;
  name: string;
  rounds: readonly RoundFigures[];
  aside: string;
}

/** Requests the result of the steps that a client has finished so far. */
export interface WrapUpMessage {
  type: "wrap_up";
  attempt: string;
}

export type GatewayMessage =
  | WelcomeMessage
  | StateMessage
  | RoundMessage
  | WrapUpMessage
  | FramesMessage
  | AnswerMessage
  | FiguresMessage
  | PongMessage
  | ClosedMessage;

/** An invitation; `digest` is the hash of its token. */
export interface Invitation {
  digest: string;
  expires: number;
  uses: number | null;
  kind: string;
  revoked: boolean;
}

/** All invitations, for the host. */
export interface InvitationList {
  invitations: readonly Invitation[];
}

/** A device of the session, as its host sees it. */
export interface MemberStatus {
  number: number;
  name: string;
  kind: string;
  step: number;
  loss: number | null;
  tokens_per_s: number;
  connections: number;
  said: string;
  aside: string;
  device: string;
  own_text: boolean;
  strikes: number;
  accepted: number;
  answered: boolean;
  norm: number | null;
  ping_ms: number;
  bytes_in: number;
  bytes_out: number;
}

/** The token of a new invitation, and the token's hash. */
export interface NewInvitation {
  token: string;
  digest: string;
}

/** The rows of a QR code, as strings with one character per module: "1" is dark. */
export interface QrCode {
  rows: readonly string[];
}

/** Reports why a REST call failed. */
export interface RefusedAnswer {
  error: string;
}

/** The answer that the dashboard polls. */
export interface Status {
  epsilon?: number;
  delta?: number;
  session: string;
  name: string;
  rounds: number;
  local_steps: number;
  done: number;
  paused: boolean;
  quorum: number;
  combined_by: string;
  parameters: number;
  round: RoundStatus | null;
  members: readonly MemberStatus[];
  page: boolean;
  history: readonly RoundFigures[];
}

/** The terms of a session, for invited devices. The answer has all other fields of `Session` too. */
export interface Terms {
  id: string;
  name: string;
  rounds: number;
  local_steps: number;
  parameters: number;
  digest: string;
  tokenizer: string;
  dtype: "f16" | "f32" | "int8" | "exact";
  settings: TermsSettings;
  shapes: readonly (readonly [string, readonly number[]])[];
  ids: TokenIds;
}

/** The training settings that a page needs. The answer has all other settings too. */
export interface TermsSettings {
  seed: number;
  tokenizer: string;
}

/** A new token for the host. */
export interface TokenAnswer {
  token: string;
}

/** The data type and the number of the text's token ids. */
export interface TokenIds {
  dtype: string;
  count: number;
}

export type RestAnswer = Status | InvitationList | TokenAnswer | NewInvitation | Terms | QrCode | RefusedAnswer;
