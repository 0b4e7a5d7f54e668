// Connects to a federation's gateway: sends and receives messages, and parameters in frames. See
// docs/reference/protocols.md.

import { untracked } from "@preact/signals-core";
import type { ClientMessage, GatewayMessage, Join, RoundMessage } from "../runtime/generated/federation-messages";
import { FATAL, FRAME } from "../runtime/generated/protocols";
import { ReconnectingSocket, Refused, type SocketData, type SocketStatus } from "../runtime/io/socket";

const PING = 10_000; // ms between two pings
const STALL = 60_000; // ms without a message from the host after which the connection is closed
const TIMES = {
  accept: STALL,
  admit: STALL,
  retry: Infinity,
  wait: { first: 500, heard: 500, most: 4_000 },
  stall: STALL,
};

/** The member that uses a connection. */
export interface GatewayClient {
  /** Returns true while the member needs the connection. */
  wanted: () => boolean;
  /** Returns the first message of a connection, with which the member joins. */
  join: () => Join;
  /** Handles a message. */
  heed: (message: GatewayMessage) => void;
  /** Receives a round's parameters and starts the round. */
  start: (message: RoundMessage, parameters: Float32Array) => void;
  /** Receives the state of the connection, and its problem if it has one. */
  follow: (status: SocketStatus, problem: string) => void;
}

export class GatewaySocket {
  private readonly socket: ReconnectingSocket;
  private readonly unfollow: () => void;
  private incoming: { message: RoundMessage; data: Uint8Array<ArrayBuffer>; at: number } | null = null;
  private pinged = 0;
  private roundTrip = 0;

  constructor(
    url: string,
    private readonly client: GatewayClient,
  ) {
    this.socket = new ReconnectingSocket({
      url,
      times: TIMES,
      wanted: client.wanted,
      hello: () => {
        this.incoming = null;
        return JSON.stringify(client.join());
      },
      admit: (data) => this.receive(data) === "welcome",
      receive: (data) => void this.receive(data),
      refusal: ({ code, reason }) =>
        (FATAL as readonly number[]).includes(code) ? new Refused(reason || "The host closed the connection.") : null,
      watch: () => this.ping(),
    });
    this.unfollow = this.socket.state.subscribe(({ status, problem }) =>
      untracked(() => client.follow(status, problem)),
    );
  }

  /** Connects, and connects again whenever the connection is lost. `follow` receives the reasons of failures. */
  connect(): void {
    this.socket.connect().catch(() => {});
  }

  send(message: ClientMessage): void {
    this.socket.send(JSON.stringify(message));
  }

  /** Sends an update in frames of `FRAME` bytes, without the first `have` frames, which the host has already. */
  upload(bytes: Uint8Array<ArrayBuffer>, have: number): void {
    for (let at = have * FRAME; at < bytes.length; at += FRAME) this.socket.send(bytes.subarray(at, at + FRAME));
  }

  /** Ends the connection. */
  leave(): void {
    this.socket.close();
  }

  /** Ends the connection. `follow` is not called any more. */
  close(): void {
    this.unfollow();
    this.socket.close();
  }

  /** Handles a message. Returns its type, or "" for a part of a round's parameters. */
  private receive(data: SocketData): string {
    if (typeof data !== "string") {
      this.frame(new Uint8Array(data));
      return "";
    }
    const said = JSON.parse(data) as GatewayMessage;
    if (said.type === "welcome") this.socket.heard();
    if (said.type === "pong") this.roundTrip = performance.now() - this.pinged;
    if (said.type === "round") this.incoming = { message: said, data: new Uint8Array(said.bytes), at: 0 };
    this.client.heed(said);
    return said.type;
  }

  private frame(bytes: Uint8Array): void {
    const { incoming } = this;
    if (!incoming || incoming.at + bytes.length > incoming.data.length) return;
    incoming.data.set(bytes, incoming.at);
    incoming.at += bytes.length;
    if (incoming.at < incoming.data.length) return;
    this.incoming = null;
    this.client.start(incoming.message, new Float32Array(incoming.data.buffer));
  }

  private ping(): void {
    if (performance.now() - this.pinged <= PING) return;
    this.pinged = performance.now();
    this.send({ type: "ping", n: 0, ms: this.roundTrip });
  }
}
