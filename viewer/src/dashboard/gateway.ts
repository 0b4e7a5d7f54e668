// Sends the requests of a session's host to the gateway, the host's server. See docs/reference/protocols.md.

import type {
  Invitation,
  InvitationList,
  NewInvitation,
  QrCode,
  Status,
  Terms,
  TokenAnswer,
} from "../runtime/generated/federation-messages";
import { RestClient } from "../runtime/io/rest";

const TIMEOUT_MS = 10_000;

export class Gateway {
  private readonly client: RestClient;

  /** `base`: the gateway's address, ending with a slash. */
  constructor(base: string, token: string) {
    this.client = new RestClient(base, token, TIMEOUT_MS);
  }

  /** Exchanges the single-use token of a host's link for a token that this tab can store. */
  async exchange(): Promise<string> {
    const { token } = await this.client.json<TokenAnswer>("v1/host/token", "POST");
    this.client.token = token;
    return token;
  }

  status(): Promise<Status> {
    return this.client.json("v1/status");
  }

  /** Returns the session's terms: what a device reads before it joins. Needs an invitation's token. */
  terms(): Promise<Terms> {
    return this.client.json("v1/session");
  }

  async pause(paused: boolean): Promise<void> {
    await this.client.json("v1/pause", "POST", { paused });
  }

  async end(): Promise<void> {
    await this.client.json("v1/session", "DELETE");
  }

  async remove(number: number): Promise<void> {
    await this.client.json(`v1/members/${number}`, "DELETE");
  }

  async invitations(): Promise<readonly Invitation[]> {
    return (await this.client.json<InvitationList>("v1/invitations")).invitations;
  }

  /** Creates an invitation for `uses` devices (null: any number). */
  invite(hours: number, uses: number | null): Promise<NewInvitation> {
    return this.client.json("v1/invitations", "POST", uses === null ? { hours } : { hours, uses });
  }

  async revoke(digest: string): Promise<void> {
    await this.client.json(`v1/invitations/${digest}`, "DELETE");
  }

  /** Returns the rows of a QR code, one character per square: "1" is dark. */
  async qr(text: string): Promise<readonly string[]> {
    return (await this.client.json<QrCode>("v1/qr", "POST", { text })).rows;
  }

  /** Downloads the model as a zip. `onBytes` receives the number of bytes so far and in total (0: unknown). */
  async model(onBytes: (received: number, total: number) => void): Promise<Blob> {
    const file = await this.client.bytes("v1/model", onBytes);
    return file.slice(0, file.size, "application/zip");
  }
}
