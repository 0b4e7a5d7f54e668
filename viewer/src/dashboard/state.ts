// The session's state as last reported by the server, and the host's actions.

import { batch, computed, signal } from "@preact/signals";
import { tabStorage } from "../runtime/io/storage";
import { hostToken, open, readFragment, type Access } from "./describe";
import { Denied, Gateway, Unreachable, type Invitation, type Status } from "./gateway";

const POLL_MS = 1000;
const POLL_SHARE = 4; // the pause between two requests is at least this many times the duration of the last one
const INVITATIONS_MS = 10_000;

export const base = new URL(".", document.baseURI).href;

export const access = signal<Access>({ as: "stranger" });
/** Why the host's link does not work. */
export const denied = signal("");
export const status = signal<Status | null>(null);
/** Time (ms) of the server's last answer, and why it does not answer now (empty: it does). */
export const heard = signal(0);
export const lost = signal("");
/** Describes how the session ended, once the server has stopped; empty before. */
export const over = signal("");
export const now = signal(Date.now());

/** Error message of the last action that failed. */
export const problem = signal("");
/** Names of the actions in progress. */
export const busy = signal<ReadonlySet<string>>(new Set());
export const download = signal<{ received: number; total: number } | null>(null);

const listed = signal<readonly Invitation[]>([]);
export const invitations = computed(() => open(listed.value, now.value / 1000));
/** Tokens of the invitations created in this tab, by digest. The server stores only their hashes. */
export const tokens = signal<Readonly<Record<string, string>>>({});
/** Digest of the invitation whose links are shown. */
export const shown = signal("");

/** An action that the host must confirm. */
export interface Question {
  title: string;
  text: string;
  action: string;
  run: () => Promise<unknown>;
}
export const question = signal<Question | null>(null);

/** True if an action can reach the server. */
export const reachable = computed(() => status.value !== null && !lost.value && !over.value);

let gateway: Gateway | null = null;
let ending = false; // the host ended the session here

// -- who opened the page ------------------------------------------------------------------------------------------

const KEY = `glgpt host ${new URL(base).pathname}`;

interface Kept {
  token: string;
  tokens: Record<string, string>;
}

function stored(): Kept | null {
  return tabStorage.read(KEY) as Kept | null;
}

/** Stores the host's token and the new invitations for this tab. Returns false if the browser has no storage. */
function store(token: string): boolean {
  return tabStorage.write(KEY, { token, tokens: tokens.value } satisfies Kept);
}

/**
 * Reads the link. The host's token is removed from the address, which others may see on a shared screen, and exchanged for
 * another one: the link works only once, since the browser's history may contain it.
 */
export function start(): void {
  const kept = stored();
  const found = readFragment(location.hash);
  const token = found.as === "host" ? found.token : found.as === "stranger" ? kept?.token : undefined;
  if (token === undefined) {
    access.value = found;
    return;
  }
  if (kept?.token === token) tokens.value = kept.tokens;
  const saved = store(token);
  if (saved) history.replaceState(null, "", location.pathname + location.search);
  host(token, saved && found.as === "host", kept);
}

/** Opens a host's link that was pasted. */
export function paste(link: string): void {
  const token = hostToken(link);
  if (token === null) {
    problem.value =
      "This is not the host's link: it ends with #host= and a long token. glgpt federate serve prints it as “dashboard”.";
    return;
  }
  host(token, store(token));
}

/** Shows the session to its host. A link's token is exchanged first; if it was already used, `before` is used instead. */
function host(token: string, link = false, before: Kept | null = null): void {
  batch(() => {
    access.value = { as: "host", token };
    denied.value = problem.value = "";
  });
  gateway = new Gateway(base, token);
  void watch(gateway, link, before);
}

// -- what the server reports --------------------------------------------------------------------------------------

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** Polls the status until the session is over or the token is rejected; first exchanges a link's token. */
async function watch(from: Gateway, link: boolean, before: Kept | null): Promise<void> {
  let asked = -Infinity;
  while (gateway === from && !over.value) {
    const begun = performance.now();
    try {
      if (link) {
        const token = await from.exchange();
        link = false;
        store(token);
        access.value = { as: "host", token };
      }
      const found = await from.status();
      batch(() => {
        status.value = found;
        heard.value = now.value = Date.now();
        lost.value = "";
      });
      if (performance.now() - asked > INVITATIONS_MS) {
        asked = performance.now();
        await list(from);
      }
    } catch (error) {
      if (link && before && error instanceof Denied) {
        tokens.value = before.tokens;
        store(before.token);
        host(before.token);
        return;
      }
      failed(error);
    }
    await sleep(Math.max(POLL_MS, POLL_SHARE * (performance.now() - begun)));
  }
}

let listing = 0;

/** Reads the invitations; an answer to an earlier request never replaces a later one. */
async function list(from: Gateway): Promise<void> {
  const mine = ++listing;
  const found = await from.invitations();
  if (mine === listing) listed.value = found;
}

function failed(error: unknown): void {
  now.value = Date.now();
  if (error instanceof Denied) {
    gateway = null;
    status.value = null;
    denied.value =
      "This host link has already been used, or it is unknown, expired or revoked. glgpt federate link RUN prints a new one.";
    return;
  }
  const last = status.value;
  if (error instanceof Unreachable && last && (ending || last.done >= last.rounds)) {
    over.value =
      last.done >= last.rounds
        ? `All ${last.rounds} rounds are done.`
        : `The session ended after ${last.done} of ${last.rounds} rounds.`;
    lost.value = "";
  } else lost.value = error instanceof Error ? error.message : String(error);
}

// -- what the host does -------------------------------------------------------------------------------------------

/** Runs an action unless it is already running; `what` names it in the error message. */
async function act(name: string, what: string, run: (gateway: Gateway) => Promise<void>): Promise<void> {
  if (!gateway || busy.value.has(name)) return;
  busy.value = new Set([...busy.value, name]);
  problem.value = "";
  try {
    await run(gateway);
  } catch (error) {
    if (error instanceof Denied) failed(error);
    else problem.value = `${what} failed. ${error instanceof Error ? error.message : String(error)}`;
  } finally {
    busy.value = new Set([...busy.value].filter((one) => one !== name));
  }
}

/** Shows a change immediately; the next status confirms it. */
function change(fields: Partial<Status>): void {
  if (status.value) status.value = { ...status.value, ...fields };
}

export function pause(paused: boolean): Promise<void> {
  return act("pause", paused ? "Pausing" : "Resuming", async (to) => {
    await to.pause(paused);
    change({ paused });
  });
}

export function end(): Promise<void> {
  return act("end", "Ending the session", async (to) => {
    await to.end();
    ending = true;
  });
}

export function remove(number: number): Promise<void> {
  return act(`remove ${number}`, "Removing the device", async (to) => {
    await to.remove(number);
    change({ members: status.value?.members.map((m) => (m.number === number ? { ...m, aside: "removed" } : m)) ?? [] });
  });
}

export function invite(hours: number, uses: number | null): Promise<void> {
  return act("invite", "Creating a link", async (to) => {
    const { token, digest } = await to.invite(hours, uses);
    batch(() => {
      tokens.value = { ...tokens.value, [digest]: token };
      shown.value = digest;
    });
    await list(to);
    if (access.value.as === "host") store(access.value.token);
  });
}

export function revoke(digest: string): Promise<void> {
  return act(`revoke ${digest}`, "Revoking the link", async (to) => {
    await to.revoke(digest);
    await list(to);
  });
}

/** Returns a QR code as rows of modules; null if the server cannot make one. */
export async function qr(text: string): Promise<string[] | null> {
  return gateway?.qr(text).catch(() => null) ?? null;
}

/** Downloads the model of the last finished round. */
export function save(): Promise<void> {
  return act("download", "The download", async (from) => {
    download.value = { received: 0, total: 0 };
    try {
      const { name, done } = status.value!;
      const blob = await from.model((received, total) => (download.value = { received, total }));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${name.replace(/[^\w.-]+/g, "-")}-round-${done}.zip`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } finally {
      download.value = null;
    }
  });
}

/** Returns the session's terms for an invitation's token. Throws Denied or Unreachable. */
export const terms = (token: string) => new Gateway(base, token).terms();

/** True if the host serves a page for browsers to join with. */
export async function hasPage(): Promise<boolean> {
  return fetch(new URL("train/", base), { method: "HEAD" }).then(
    ({ ok }) => ok,
    () => false,
  );
}
