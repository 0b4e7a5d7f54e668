// The messages of federations, as in protocol.py and replies.py of glgpt/federation. Written by scripts/generate_schema.py.

/** A client's first message: identifies it and shows that it computes the same program. */
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

/** Asks for `pong` with the same number; `ms` is the last round trip that the client measured. */
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

/** Announces a client's result of a round; `bytes` of data follow in frames. Losses are in nats per token. */
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

/** Accepts or rejects an update; without `attempt`, rejects a message that is not valid. */
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

/** Reports how many frames of an update have arrived; `ready` asks for the others. */
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

/** A finished round; its validation and sample follow some seconds after the rest. */
export interface RoundFigures {
  round: number;
  clients?: number;
  tokens?: number;
  loss?: number;
  validation_loss?: number;
  sample?: string;
  seconds?: number;
}

/** Offers a round to train; `bytes` of parameters follow in frames. */
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

/** Reports the state, once a second. */
export interface StateMessage {
  round: RoundStatus | null;
  done: number;
  paused: boolean;
  members: readonly MemberRow[];
  type: "state";
}

/** Admits a client; with `resume` it can rejoin as the same member. */
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

/** Asks a client to send its result so far. */
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

/** An invitation, by the hash of its token. */
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

/** A new invitation's token and its hash. */
export interface NewInvitation {
  token: string;
  digest: string;
}

/** The rows of a QR code, one character per module: "1" is dark. */
export interface QrCode {
  rows: readonly string[];
}

/** Why a call failed. */
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

/** The public facts of a session, for invited devices. The answer also has the other fields of `Session`. */
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

/** The settings of the training that a page needs; the answer has all of them. */
export interface TermsSettings {
  seed: number;
  tokenizer: string;
}

/** A new token of a host. */
export interface TokenAnswer {
  token: string;
}

/** The type and number of the text's ids. */
export interface TokenIds {
  dtype: string;
  count: number;
}

export type RestAnswer = Status | InvitationList | TokenAnswer | NewInvitation | Terms | QrCode | RefusedAnswer;
