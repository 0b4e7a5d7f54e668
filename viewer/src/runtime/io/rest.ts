// Sends REST calls to a federation's gateway. The dashboard and invited pages use this module. See
// docs/reference/protocols.md.

import { PageError } from "../gl/errors";
import { FetchError, fetchStream } from "./fetch-stream";

/** Thrown if the server does not answer. */
export class Unreachable extends PageError {}
/** Thrown if the server does not accept the token. */
export class Denied extends PageError {}

const PROXY_ERRORS = [502, 503, 504]; // a reverse proxy sends these while the gateway restarts
const STALL_TIMEOUT_MS = 300_000; // long, because a device waits while the gateway sends a text to other devices
const TRIES = 3; // a try that breaks, a try that cannot resume, and a try from the start

/** Sentences that explain what the user can do after a failed call. "" adds no sentence. */
export interface Advice {
  unreachable: string;
  denied: string;
  failed: string;
}

const NO_ADVICE: Advice = { unreachable: "", denied: "", failed: "" };

export class RestClient {
  /** `base`: the gateway's address, ending with a slash. */
  constructor(
    readonly base: string,
    public token: string,
    private readonly timeoutMs: number,
    private readonly advice = NO_ADVICE,
  ) {}

  /** Calls the gateway and returns its JSON answer. Throws Unreachable, Denied or PageError. */
  async json<T>(path: string, method = "GET", body?: object): Promise<T> {
    const answer = await fetch(this.url(path), {
      ...this.request(body ? { "Content-Type": "application/json" } : {}),
      method,
      ...(body ? { body: JSON.stringify(body) } : {}),
      signal: AbortSignal.timeout(this.timeoutMs),
    }).catch(() => {
      throw this.unreachable();
    });
    if (!answer.ok) throw await this.refusal(answer);
    return answer.json().catch(() => {
      throw this.unreachable("its answer is not complete");
    }) as Promise<T>;
  }

  /** Downloads a file. `onBytes` is called as in `StreamOptions`. Throws Unreachable, Denied or PageError. */
  async bytes(path: string, onBytes?: (received: number, total: number) => void): Promise<Blob> {
    let parts: Uint8Array<ArrayBuffer>[] = [];
    let received = 0;
    const stream = fetchStream(this.url(path), {
      request: this.request(),
      patience: STALL_TIMEOUT_MS,
      tries: TRIES,
      refusal: (answer) => this.refusal(answer),
      onBytes: (done, total) => onBytes?.((received = done), total),
    });
    try {
      for await (const { at, bytes } of stream) {
        if (!at) parts = [];
        parts.push(bytes);
      }
    } catch (error) {
      if (!(error instanceof FetchError)) throw error;
      if (!received) throw this.unreachable(error.why);
      throw new Unreachable(`The connection ended after ${received} bytes: ${error.why}. Try again.`);
    }
    return new Blob(parts);
  }

  private url(path: string): URL {
    return new URL(path, this.base);
  }

  private request(headers: Record<string, string> = {}): RequestInit {
    return { headers: { Authorization: `Bearer ${this.token}`, ...headers }, cache: "no-store" };
  }

  private unreachable(why: string | number = ""): Unreachable {
    return new Unreachable(advised(`The server does not answer${why && ` (${why})`}.`, this.advice.unreachable));
  }

  /** Returns the error for an answer with an error status. */
  private async refusal(answer: Response): Promise<PageError> {
    const { status } = answer;
    if (PROXY_ERRORS.includes(status)) return this.unreachable(status);
    if (status === 401) return new Denied(advised("The server does not accept this link.", this.advice.denied));
    const { error } = (await answer.json().catch(() => ({}))) as { error?: unknown };
    const why = typeof error === "string" ? `: ${error}` : "";
    return new PageError(advised(`The server answered ${status}${why}.`, this.advice.failed));
  }
}

const advised = (problem: string, advice: string) => (advice ? `${problem} ${advice}` : problem);
