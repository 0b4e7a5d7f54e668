// Reconnects a WebSocket when its connection is lost.

import { signal, type ReadonlySignal } from "@preact/signals-core";
import { PageError } from "../gl/errors";
import { sleep } from "../gl/wait";

const WATCH_MS = 1000; // ms between two checks of a connection
const JITTER = 0.3; // share by which a wait varies, so that clients do not all reconnect at once

export type SocketData = string | ArrayBuffer;
type Sent = string | Uint8Array<ArrayBuffer>;

/** Time limits of a connection, in ms. */
export interface SocketTimes {
  /** Maximum time until the server accepts a connection. */
  accept: number;
  /** Maximum time from the acceptance until the server admits this page, after the first messages. */
  admit: number;
  /** Time for which `connect` keeps trying. */
  retry: number;
  /** Mean time before an attempt: `heard` after an answer; `first` after a failure, then doubled up to `most`. */
  wait: { first: number; heard: number; most: number };
  /** Time without a message after which the connection is closed. */
  stall?: number;
}

/** Describes a server, and the messages that the page and the server exchange. */
export interface SocketProtocol {
  readonly url: string;
  readonly times: SocketTimes;
  /** True while a server is needed. If the connection is lost then, the page reconnects at once. */
  wanted: () => boolean;
  /** Returns the first message. */
  hello: () => Sent;
  /** Receives messages until it returns true: the page is admitted. Throws Refused if it will never be admitted. */
  admit: (data: SocketData) => boolean;
  /** Receives all further messages. */
  receive: (data: SocketData) => void;
  /** Called when an admitted connection is lost. */
  lost?: () => void;
  /** Returns the reason why the page must not reconnect after this event; null if it may reconnect. */
  refusal?: (event: CloseEvent) => Refused | null;
  /** Called once per second while the connection is admitted. */
  watch?: () => void;
}

export type SocketStatus = "connected" | "connecting" | "idle" | "refused";

/** Thrown if the server will never admit this page. */
export class Refused extends PageError {}

export class ReconnectingSocket {
  private readonly shown = signal<{ status: SocketStatus; problem: string }>({ status: "idle", problem: "" });
  private socket: WebSocket | null = null; // the latest connection, admitted or not
  private admitted: WebSocket | null = null;
  private connecting: Promise<void> | null = null;
  private wait = 0; // ms before the next attempt

  constructor(private readonly protocol: SocketProtocol) {}

  /** The state of the connection, and its problem if it has one. */
  get state(): ReadonlySignal<{ status: SocketStatus; problem: string }> {
    return this.shown;
  }

  get connected(): boolean {
    return this.admitted !== null;
  }

  /**
   * Connects if not connected. Rejects if the server refuses, if all attempts within `times.retry` ms fail, or if no
   * server is `wanted`.
   */
  connect(): Promise<void> {
    if (this.admitted) return Promise.resolve();
    return (this.connecting ??= this.reach().finally(() => (this.connecting = null)));
  }

  /** Sends a message. Does nothing without an open connection. */
  send(data: Sent): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(data);
  }

  /** Shortens the wait before the next attempt to `wait.heard`. Call this when the server has answered. */
  heard(): void {
    this.wait = this.protocol.times.wait.heard;
  }

  /** Ends an admitted connection. The next `connect` makes a new one. */
  drop(): void {
    const { admitted } = this;
    this.admitted = null;
    admitted?.close();
  }

  /** Ends the connection, even if the server has not admitted this page yet. */
  close(): void {
    this.admitted = null;
    this.socket?.close();
  }

  /** Ends the connection and treats it as lost. */
  lose(): void {
    const { admitted } = this;
    this.broke(null);
    admitted?.close();
  }

  private say(status: SocketStatus, problem = ""): void {
    this.shown.value = { status, problem };
  }

  private async reach(): Promise<void> {
    const { wanted, times } = this.protocol;
    const end = performance.now() + times.retry;
    const check = () => {
      if (wanted()) return;
      this.say("idle");
      throw new PageError("No server is needed now.");
    };
    for (;;) {
      check();
      this.say("connecting", this.shown.peek().problem);
      await sleep(this.wait * (1 - JITTER + 2 * JITTER * Math.random()));
      check();
      this.wait = Math.min(2 * this.wait || times.wait.first, times.wait.most);
      try {
        await this.open();
        this.say("connected");
        return;
      } catch (error) {
        const problem = error instanceof Error ? error.message : String(error);
        if (error instanceof Refused) {
          this.say("refused", problem);
          throw error;
        }
        if (performance.now() + this.wait > end) {
          this.say("idle", problem);
          throw new PageError(problem);
        }
        this.say("connecting", problem);
      }
    }
  }

  /** Makes one connection. Resolves when the server has admitted this page. */
  private open(): Promise<void> {
    const { url, times, hello, admit, receive, refusal, watch } = this.protocol;
    return new Promise((resolve, reject) => {
      let socket: WebSocket;
      try {
        socket = new WebSocket(url);
      } catch {
        reject(new Refused(`This page cannot connect to ${url}: the page's address or policy forbids it.`));
        return;
      }
      this.socket = socket;
      socket.binaryType = "arraybuffer";
      let heard = performance.now();
      const giveUp = () => {
        socket.close();
        reject(new PageError(`${url} does not answer.`)); // rejects now: closing may take as long as the timeout
      };
      let late = setTimeout(giveUp, times.accept);
      const watching = setInterval(() => {
        if (performance.now() - heard > (times.stall ?? Infinity)) socket.close();
        else if (this.admitted === socket) watch?.();
      }, WATCH_MS);
      socket.onopen = () => {
        clearTimeout(late);
        late = setTimeout(giveUp, times.admit);
        socket.send(hello());
      };
      let admitted = false;
      socket.onmessage = ({ data }: MessageEvent<SocketData>) => {
        heard = performance.now();
        try {
          if (admitted) receive(data);
          else if ((admitted = admit(data))) {
            clearTimeout(late);
            this.admitted = socket;
            resolve();
          }
        } catch (error) {
          reject(error instanceof Error ? error : new Error(String(error)));
          socket.close();
        }
      };
      socket.onclose = (event) => {
        clearTimeout(late);
        clearInterval(watching);
        const refused = refusal?.(event) ?? null;
        if (this.admitted === socket) this.broke(refused);
        reject(refused ?? new PageError(`No connection to ${url}.`));
      };
    });
  }

  private broke(refused: Refused | null): void {
    const { lost, url, wanted } = this.protocol;
    this.admitted = null;
    lost?.();
    if (refused) this.say("refused", refused.message);
    else this.say("connecting", `Lost the connection to ${url}; trying again.`);
    if (!refused && wanted()) this.connect().catch(() => {}); // `state` has the reason
  }
}
