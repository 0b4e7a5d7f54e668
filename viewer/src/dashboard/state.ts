// The session's state as last reported by the server, and the host's actions.

import { batch, computed, signal } from "@preact/signals";
import { Denied, Unreachable } from "../runtime/io/rest";
import { tabStorage } from "../runtime/io/storage";
import type { Invitation, Status, Terms } from "../runtime/generated/federation-messages";
import { hostToken, open, readFragment, type Access } from "./describe";
import { Gateway } from "./gateway";

const POLL_MS = 1000;
const POLL_SHARE = 4; // the pause after a request is at least this many times as long as the request
const INVITATIONS_MS = 10_000;

interface Kept {
  token: string;
  tokens: Record<string, string>;
}

/** An action that the host must confirm. */
export interface Question {
  title: string;
  text: string;
  action: string;
  run: () => Promise<unknown>;
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** State and actions of the dashboard. */
class DashboardStore {
  /** The address of the gateway, ending with a slash. */
  readonly base = new URL(".", document.baseURI).href;
  private readonly key = `glgpt host ${new URL(this.base).pathname}`;

  readonly access = signal<Access>({ as: "stranger" });
  /** The reason why the host's link does not work; empty if it works. */
  readonly denied = signal("");
  readonly status = signal<Status | null>(null);
  /** Time (ms) of the server's last answer. `lost`: why the last request failed; "" if it succeeded. */
  readonly heard = signal(0);
  readonly lost = signal("");
  /** Describes how the session ended, once the server has stopped; empty before. */
  readonly over = signal("");
  readonly now = signal(Date.now());

  /** Error message of the last action that failed. */
  readonly problem = signal("");
  /** Names of the actions in progress. */
  readonly busy = signal<ReadonlySet<string>>(new Set());
  readonly download = signal<{ received: number; total: number } | null>(null);

  private readonly listed = signal<readonly Invitation[]>([]);
  readonly invitations = computed(() => open(this.listed.value, this.now.value / 1000));
  /** Tokens of the invitations created in this tab, by digest. The server stores only their hashes. */
  readonly tokens = signal<Readonly<Record<string, string>>>({});
  /** Digest of the invitation whose links are shown. */
  readonly shown = signal("");

  readonly question = signal<Question | null>(null);

  /** True if an action can reach the server. */
  readonly reachable = computed(() => this.status.value !== null && !this.lost.value && !this.over.value);

  private gateway: Gateway | null = null;
  private ending = false; // true once the host has ended the session in this tab
  private listing = 0; // number of requests for the invitations

  // -- who opened the page ------------------------------------------------------------------------------------------

  private stored(): Kept | null {
    return tabStorage.read(this.key) as Kept | null;
  }

  /** Stores the host's token and the `tokens` of invitations for this tab. Returns false without browser storage. */
  private store(token: string): boolean {
    return tabStorage.write(this.key, { token, tokens: this.tokens.value } satisfies Kept);
  }

  /**
   * Uses the host's token from the link, or else the token stored for this tab. If the browser can store tokens, the
   * link is made useless: its token is removed from the address, which others may see on a shared screen, and is
   * exchanged for a new one, so that the link in the browser's history no longer works.
   */
  start(): void {
    const kept = this.stored();
    const found = readFragment(location.hash);
    const token = found.as === "host" ? found.token : found.as === "stranger" ? kept?.token : undefined;
    if (token === undefined) {
      this.access.value = found;
      return;
    }
    if (kept?.token === token) this.tokens.value = kept.tokens;
    const saved = this.store(token);
    if (saved) history.replaceState(null, "", location.pathname + location.search);
    this.host(token, saved && found.as === "host", kept);
  }

  /** Opens a host's link that was pasted. */
  paste(link: string): void {
    const token = hostToken(link);
    if (token === null) {
      this.problem.value =
        "This is not the host's link. The host's link ends with #host= and a long token; " +
        "glgpt federate serve prints it as “dashboard”.";
      return;
    }
    this.host(token, this.store(token));
  }

  /**
   * Shows the session to its host. `link`: true if the token comes from a link and must be exchanged first. If the
   * server rejects this token, the token in `before` is used.
   */
  private host(token: string, link = false, before: Kept | null = null): void {
    batch(() => {
      this.access.value = { as: "host", token };
      this.denied.value = this.problem.value = "";
    });
    const gateway = (this.gateway = new Gateway(this.base, token));
    void this.watch(gateway, link, before);
  }

  // -- what the server reports --------------------------------------------------------------------------------------

  /** Polls the status until the session is over or the token is rejected. If `link`, exchanges the token first. */
  private async watch(from: Gateway, link: boolean, before: Kept | null): Promise<void> {
    let asked = -Infinity;
    while (this.gateway === from && !this.over.value) {
      const begun = performance.now();
      try {
        if (link) {
          const token = await from.exchange();
          link = false;
          this.store(token);
          this.access.value = { as: "host", token };
        }
        const found = await from.status();
        batch(() => {
          this.status.value = found;
          this.heard.value = this.now.value = Date.now();
          this.lost.value = "";
        });
        if (performance.now() - asked > INVITATIONS_MS) {
          asked = performance.now();
          await this.list(from);
        }
      } catch (error) {
        if (link && before && error instanceof Denied) {
          this.tokens.value = before.tokens;
          this.store(before.token);
          this.host(before.token);
          return;
        }
        this.failed(error);
      }
      await sleep(Math.max(POLL_MS, POLL_SHARE * (performance.now() - begun)));
    }
  }

  /** Reads the invitations. The answer to an earlier request never replaces the answer to a later request. */
  private async list(from: Gateway): Promise<void> {
    const mine = ++this.listing;
    const found = await from.invitations();
    if (mine === this.listing) this.listed.value = found;
  }

  private failed(error: unknown): void {
    this.now.value = Date.now();
    if (error instanceof Denied) {
      this.gateway = null;
      this.status.value = null;
      this.denied.value =
        "This host link has already been used, or it is unknown, expired or revoked. " +
        "glgpt federate link RUN prints a new one.";
      return;
    }
    const last = this.status.value;
    if (error instanceof Unreachable && last && (this.ending || last.done >= last.rounds)) {
      this.over.value =
        last.done >= last.rounds
          ? `All ${last.rounds} rounds are done.`
          : `The session ended after ${last.done} of ${last.rounds} rounds.`;
      this.lost.value = "";
    } else this.lost.value = error instanceof Error ? error.message : String(error);
  }

  // -- what the host does -------------------------------------------------------------------------------------------

  /** Runs an action unless it is already running; `what` is the name of the action in the error message. */
  private async act(name: string, what: string, run: (gateway: Gateway) => Promise<void>): Promise<void> {
    const { gateway } = this;
    if (!gateway || this.busy.value.has(name)) return;
    this.busy.value = new Set([...this.busy.value, name]);
    this.problem.value = "";
    try {
      await run(gateway);
    } catch (error) {
      if (error instanceof Denied) this.failed(error);
      else {
        const next =
          error instanceof Unreachable
            ? "Try again when the server answers."
            : "If it fails again, read what glgpt federate serve printed.";
        this.problem.value = `${what} failed. ${error instanceof Error ? error.message : String(error)} ${next}`;
      }
    } finally {
      this.busy.value = new Set([...this.busy.value].filter((one) => one !== name));
    }
  }

  /** Shows a change immediately; the next status confirms it. */
  private change(fields: Partial<Status>): void {
    if (this.status.value) this.status.value = { ...this.status.value, ...fields };
  }

  pause(paused: boolean): Promise<void> {
    return this.act("pause", paused ? "Pausing" : "Resuming", async (to) => {
      await to.pause(paused);
      this.change({ paused });
    });
  }

  end(): Promise<void> {
    return this.act("end", "Ending the session", async (to) => {
      await to.end();
      this.ending = true;
    });
  }

  remove(number: number): Promise<void> {
    return this.act(`remove ${number}`, "Removing the device", async (to) => {
      await to.remove(number);
      this.change({
        members: this.status.value?.members.map((m) => (m.number === number ? { ...m, aside: "removed" } : m)) ?? [],
      });
    });
  }

  invite(hours: number, uses: number | null): Promise<void> {
    return this.act("invite", "Creating a link", async (to) => {
      const { token, digest } = await to.invite(hours, uses);
      batch(() => {
        this.tokens.value = { ...this.tokens.value, [digest]: token };
        this.shown.value = digest;
      });
      await this.list(to);
      if (this.access.value.as === "host") this.store(this.access.value.token);
    });
  }

  revoke(digest: string): Promise<void> {
    return this.act(`revoke ${digest}`, "Revoking the link", async (to) => {
      await to.revoke(digest);
      await this.list(to);
    });
  }

  /** Returns the rows of a QR code, a character per square ("1": dark); null if the server cannot make one. */
  async qr(text: string): Promise<readonly string[] | null> {
    return this.gateway?.qr(text).catch(() => null) ?? null;
  }

  /** Downloads the model that the server saved after the last evaluated round. */
  save(): Promise<void> {
    return this.act("download", "The download", async (from) => {
      this.download.value = { received: 0, total: 0 };
      try {
        const { name, done } = this.status.value!;
        const blob = await from.model((received, total) => (this.download.value = { received, total }));
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = `${name.replace(/[^\w.-]+/g, "-")}-round-${done}.zip`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      } finally {
        this.download.value = null;
      }
    });
  }

  /** Returns the session's terms for an invitation's token. Rejects with a PageError, such as Denied. */
  terms(token: string): Promise<Terms> {
    return new Gateway(this.base, token).terms();
  }

  /** True if the host serves a page for browsers to join with. */
  async hasPage(): Promise<boolean> {
    return fetch(new URL("train/", this.base), { method: "HEAD" }).then(
      ({ ok }) => ok,
      () => false,
    );
  }
}

export const state = new DashboardStore();
