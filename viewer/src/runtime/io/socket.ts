// A WebSocket that connects again after it was lost.

import { signal, type ReadonlySignal } from "@preact/signals-core";
import { PageError } from "../gl/errors";
import { sleep } from "../gl/wait";

const WATCH_MS = 1000; // ms between two checks of a connection
const JITTER = 0.3; // share by which a wait varies, so that clients of a restarted server do not return all at once

export type SocketData = string | ArrayBuffer;
type Sent = string | Uint8Array<ArrayBuffer>;

/** The times of a connection, in ms. */
export interface SocketTimes {
  /** Within which a server must accept a connection. */
  accept: number;
  /** Within which it must admit this page then. */
  admit: number;
  /** For which a lost server is retried. */
  retry: number;
  /** Between two attempts: after the first failure, after a server that was heard, and at most. */
  wait: { first: number; heard: number; most: number };
  /** Without a message after which a connection is closed. */
  stall?: number;
}

/** The server of a connection, and the messages to it. */
export interface SocketProtocol {
  readonly url: string;
  readonly times: SocketTimes;
  /** Returns true while a server is needed, so that a lost connection is made again at once. */
  wanted: () => boolean;
  /** Returns the first message. */
  hello: () => Sent;
  /** Takes messages until it returns true: the server has admitted this page. Throws Refused if it never will. */
  admit: (data: SocketData) => boolean;
  /** Takes all further messages. */
  receive: (data: SocketData) => void;
  /** Called when an admitted connection was lost. */
  lost?: () => void;
  /** Returns why a closed connection must not be made again; null: it may. */
  refusal?: (event: CloseEvent) => Refused | null;
  /** Called every second of an open connection. */
  watch?: () => void;
}

export type SocketStatus = "connected" | "connecting" | "idle" | "refused";

/** Thrown if the server will never admit this page. */
export class Refused extends PageError {}

export class ReconnectingSocket {
  private readonly shown = signal<{ status: SocketStatus; problem: string }>({ status: "idle", problem: "" });
  private socket: WebSocket | null = null; // the latest one
  private admitted: WebSocket | null = null;
  private connecting: Promise<void> | null = null;
  private wait = 0; // ms before the next attempt

  constructor(private readonly protocol: SocketProtocol) {}

  /** The state of the connection, and what is wrong with it. */
  get state(): ReadonlySignal<{ status: SocketStatus; problem: string }> {
    return this.shown;
  }

  get connected(): boolean {
    return this.admitted !== null;
  }

  /** Connects, unless connected. Rejects if the server refuses, or does not answer for `times.retry` ms. */
  connect(): Promise<void> {
    if (this.admitted) return Promise.resolve();
    return (this.connecting ??= this.reach().finally(() => (this.connecting = null)));
  }

  /** Sends a message; without an open connection, nothing is sent. */
  send(data: Sent): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(data);
  }

  /** The next failure is the first one again. Called when the server has answered. */
  heard(): void {
    this.wait = this.protocol.times.wait.heard;
  }

  /** Ends the connection, which the next `connect` makes again. */
  drop(): void {
    const { admitted } = this;
    this.admitted = null;
    admitted?.close();
  }

  /** Ends the connection, whether it is admitted or not. */
  close(): void {
    this.admitted = null;
    this.socket?.close();
  }

  /** Treats the connection as lost. */
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
        reject(new Refused(`This page cannot connect to ${url}: its address or policy forbids it.`));
        return;
      }
      this.socket = socket;
      socket.binaryType = "arraybuffer";
      let heard = performance.now();
      const giveUp = () => {
        socket.close();
        reject(new PageError(`${url} does not answer.`)); // rejects now, since closing may take as long again
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
    if (!refused && wanted()) this.connect().catch(() => {}); // `state` says why
  }
}
