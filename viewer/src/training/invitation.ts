// Parses an invitation to a federation, and makes the REST calls of an invited device.

import { PageError } from "../runtime/gl/errors";
import type { Terms } from "../runtime/generated/federation-messages";
import { RestClient } from "../runtime/io/rest";
import type { Bpe } from "./bpe";
import { readTokenizer } from "./files";

const TIMEOUT_MS = 60_000; // the tokenizer's files may be megabytes
const ADVICE = {
  unreachable: "Check this device's network, or ask the host whether the session still runs.",
  denied: "The invitation is unknown, expired or revoked. Ask the host for a new one.",
  failed: "Join again; if it fails again, tell the host.",
};

/** Parses an invitation link into the session's address and the invitation's token. Throws PageError for other text. */
export function readLink(link: string): { base: string; token: string } {
  const url = URL.parse(link.trim());
  const token = url?.hash.slice(1).split("together=").at(-1)?.split("&")[0] ?? "";
  if (token.startsWith("host=")) {
    throw new PageError("This link opens the host's dashboard; paste the invitation link that is shown there.");
  }
  if (!url || !/^https?:$/.test(url.protocol) || !token.includes(".")) {
    throw new PageError("This is not an invitation; paste the link that glgpt federate serve printed.");
  }
  return { base: new URL(url.pathname.replace(/train\/?(index\.html)?$/, ""), url).href, token };
}

export class Invitation {
  private readonly client: RestClient;

  constructor(link: string) {
    const { base, token } = readLink(link);
    this.client = new RestClient(base, token, TIMEOUT_MS, ADVICE);
  }

  get token(): string {
    return this.client.token;
  }

  /** The address of the gateway's WebSocket. */
  get socket(): string {
    return new URL("v1/socket", this.client.base).href.replace(/^http/, "ws");
  }

  terms(): Promise<Terms> {
    return this.client.json("v1/session");
  }

  /** Returns the session's tokenizer; null: one token per byte. */
  async tokenizer(): Promise<Bpe | null> {
    const files = await this.client.json<Record<string, string>>("v1/session/tokenizer");
    const encoder = new TextEncoder();
    return readTokenizer(Object.fromEntries(Object.entries(files).map(([name, text]) => [name, encoder.encode(text)])));
  }

  /** Returns the token ids of the session's text. */
  async text(): Promise<Uint16Array> {
    const blob = await this.client.bytes("v1/session/text");
    return Uint16Array.from(new Uint32Array(await blob.arrayBuffer()));
  }
}
