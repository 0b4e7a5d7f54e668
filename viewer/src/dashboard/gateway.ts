// The REST calls to a gateway. See docs/reference/protocols.md.

import type {
  Invitation,
  InvitationList,
  NewInvitation,
  QrCode,
  RefusedAnswer,
  Status,
  Terms,
  TokenAnswer,
} from "../runtime/generated/federation-messages";

/** The server does not answer. */
export class Unreachable extends Error {}
/** The server does not accept the token. */
export class Denied extends Error {}

const TIMEOUT_MS = 10_000;
const PROXY_ERRORS = [502, 503, 504]; // a reverse proxy answers these while the gateway restarts

export class Gateway {
  /** `base`: the gateway's address, ending with a slash. */
  constructor(
    readonly base: string,
    private token: string,
  ) {}

  /** Exchanges the single-use token of a host's link for one to store in this tab. */
  async exchange(): Promise<string> {
    const { token } = (await (await this.call("v1/host/token", "POST")).json()) as TokenAnswer;
    this.token = token;
    return token;
  }

  async status(): Promise<Status> {
    return (await this.call("v1/status")).json() as Promise<Status>;
  }

  /** Returns the session's terms; needs an invitation's token. */
  async terms(): Promise<Terms> {
    return (await this.call("v1/session")).json() as Promise<Terms>;
  }

  async pause(paused: boolean): Promise<void> {
    await this.call("v1/pause", "POST", { paused });
  }

  async end(): Promise<void> {
    await this.call("v1/session", "DELETE");
  }

  async remove(number: number): Promise<void> {
    await this.call(`v1/members/${number}`, "DELETE");
  }

  async invitations(): Promise<readonly Invitation[]> {
    const { invitations } = (await (await this.call("v1/invitations")).json()) as InvitationList;
    return invitations;
  }

  /** Creates an invitation for `uses` devices (null: any number). */
  async invite(hours: number, uses: number | null): Promise<NewInvitation> {
    const answer = await this.call("v1/invitations", "POST", uses === null ? { hours } : { hours, uses });
    return answer.json() as Promise<NewInvitation>;
  }

  async revoke(digest: string): Promise<void> {
    await this.call(`v1/invitations/${digest}`, "DELETE");
  }

  /** Returns the rows of a QR code, one character per module: "1" is dark. */
  async qr(text: string): Promise<readonly string[]> {
    const { rows } = (await (await this.call("v1/qr", "POST", { text })).json()) as QrCode;
    return rows;
  }

  /** Downloads the model as a zip; `onBytes` receives the bytes so far and in total (0: unknown). */
  async model(onBytes: (received: number, total: number) => void): Promise<Blob> {
    const answer = await this.call("v1/model", "GET", undefined, null);
    const total = Number(answer.headers.get("Content-Length") ?? 0);
    const parts: Uint8Array<ArrayBuffer>[] = [];
    let received = 0;
    const reader = answer.body!.getReader();
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw new Unreachable(`The connection ended after ${received} of ${total || "unknown"} bytes.`);
      });
      if (done) break;
      parts.push(value);
      received += value.length;
      onBytes(received, total);
    }
    return new Blob(parts, { type: "application/zip" });
  }

  private async call(
    path: string,
    method = "GET",
    body?: object,
    timeout: number | null = TIMEOUT_MS,
  ): Promise<Response> {
    const answer = await fetch(new URL(path, this.base), {
      method,
      headers: { Authorization: `Bearer ${this.token}`, ...(body ? { "Content-Type": "application/json" } : {}) },
      cache: "no-store",
      ...(body ? { body: JSON.stringify(body) } : {}),
      ...(timeout === null ? {} : { signal: AbortSignal.timeout(timeout) }),
    }).catch(() => {
      throw new Unreachable("The server does not answer.");
    });
    if (answer.ok) return answer;
    if (PROXY_ERRORS.includes(answer.status)) throw new Unreachable(`The server does not answer (${answer.status}).`);
    if (answer.status === 401) throw new Denied("The server does not accept this link.");
    const { error } = (await answer.json().catch(() => ({}))) as Partial<RefusedAnswer>;
    throw new Error(`The server answered ${answer.status}${typeof error === "string" ? `: ${error}` : ""}.`);
  }
}
