// An invitation to a federation: its link, and the REST calls that an invited device makes.

import { PageError } from "../runtime/gl/errors";
import type { Terms } from "../runtime/generated/federation-messages";
import type { Bpe } from "./bpe";
import { readTokenizer } from "./files";

/** Parses an invitation link into the session's address and its token. Throws PageError for any other link. */
export function readLink(link: string): { base: string; token: string } {
  const url = URL.parse(link.trim());
  const token = url?.hash.slice(1).split("together=").at(-1)?.split("&")[0] ?? "";
  if (!url || !/^https?:$/.test(url.protocol) || !token.includes(".")) {
    throw new PageError("This is not an invitation; paste the link that glgpt federate serve printed.");
  }
  return { base: new URL(url.pathname.replace(/train\/?(index\.html)?$/, ""), url).href, token };
}

export class Invitation {
  readonly token: string;
  private readonly base: string;

  constructor(link: string) {
    ({ base: this.base, token: this.token } = readLink(link));
  }

  /** The address of the gateway's WebSocket. */
  get socket(): string {
    return new URL("v1/socket", this.base).href.replace(/^http/, "ws");
  }

  async terms(): Promise<Terms> {
    return (await this.get("v1/session")).json() as Promise<Terms>;
  }

  /** Returns the session's tokenizer; null: bytes. */
  async tokenizer(): Promise<Bpe | null> {
    const files = (await (await this.get("v1/session/tokenizer")).json()) as Record<string, string>;
    const encoder = new TextEncoder();
    return readTokenizer(Object.fromEntries(Object.entries(files).map(([name, text]) => [name, encoder.encode(text)])));
  }

  /** Returns the token ids of the session's text. */
  async text(): Promise<Uint16Array> {
    return Uint16Array.from(new Uint32Array(await (await this.get("v1/session/text")).arrayBuffer()));
  }

  private async get(path: string): Promise<Response> {
    const headers = { Authorization: `Bearer ${this.token}` };
    const answer = await fetch(new URL(path, this.base), { headers, cache: "no-store" }).catch(() => null);
    if (!answer) throw new PageError("The host of this session does not answer.");
    if (answer.status === 401) throw new PageError("This invitation is not valid: it is unknown, expired or revoked.");
    if (!answer.ok) throw new PageError(`The host answered ${answer.status}.`);
    return answer;
  }
}
