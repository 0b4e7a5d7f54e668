// Derives the texts and numbers that the dashboard shows from the status that the gateway (the host's server) sends.

import type { MemberStatus, Invitation, RoundFigures, Status } from "../runtime/generated/federation-messages";

/** The role of the visitor, from the part of the address after `#`. */
export type Access = { as: "host" | "guest"; token: string } | { as: "stranger" };

export function readFragment(hash: string): Access {
  const fragment = hash.replace(/^#/, "");
  if (fragment.startsWith("host=")) return { as: "host", token: fragment.slice(5) };
  return fragment.includes(".") && !fragment.includes("=") ? { as: "guest", token: fragment } : { as: "stranger" };
}

/** Returns the token of a host link that was pasted; null for any other text. */
export function hostToken(link: string): string | null {
  const url = URL.parse(link.trim());
  const access = readFragment(url?.hash ?? "");
  return access.as === "host" && access.token ? access.token : null;
}

export type Phase = "over" | "paused" | "waiting" | "combining" | "training";

export interface Headline {
  phase: Phase;
  title: string;
  text: string;
}

const devices = (count: number) => `${count} device${count === 1 ? "" : "s"}`;

/** Describes what the session is doing now, and what it waits for. */
export function headline(status: Status): Headline {
  const { done, rounds, round, quorum, members } = status;
  if (done >= rounds) return { phase: "over", title: "Done", text: `All ${rounds} rounds are done.` };
  if (status.paused) {
    return {
      phase: "paused",
      title: "Paused",
      text: "No round begins or ends until you resume. Devices stay connected.",
    };
  }
  const active = members.filter((m) => m.connections && !m.aside).length;
  if (!members.length) {
    return {
      phase: "waiting",
      title: "Waiting for devices",
      text: "No device has joined yet. Create a link and open it on another device.",
    };
  }
  if (!active) {
    const text =
      "No device is connected. Devices that joined reconnect automatically while their page or command is running.";
    return { phase: "waiting", title: "Waiting for devices", text };
  }
  if (!round) return { phase: "waiting", title: "Starting", text: "The next round is being prepared." };
  if (round.closed)
    return { phase: "combining", title: "Combining", text: `The updates of round ${round.number} are being combined.` };
  if (active < quorum) {
    return {
      phase: "training",
      title: "Training",
      text: `The round needs updates from ${devices(quorum)}; ${active} can send one now.`,
    };
  }
  return { phase: "training", title: "Training", text: `${devices(active)} take${active === 1 ? "s" : ""} part.` };
}

export interface DeviceState {
  kind: "removed" | "aside" | "offline" | "training" | "sent" | "waiting";
  text: string;
  /** Share of the open round's steps that are done, from 0 to 1. */
  progress?: number;
}

/** Describes what a device is doing. */
export function deviceState(device: MemberStatus, { round, local_steps, paused }: Status): DeviceState {
  if (device.aside === "removed") return { kind: "removed", text: "Removed" };
  if (device.aside) return { kind: "aside", text: "Set aside" };
  if (!device.connections) return { kind: "offline", text: "Offline" };
  if (!round || round.closed) return { kind: "waiting", text: "Waiting for a round" };
  if (device.answered) return { kind: "sent", text: "Update received" };
  if (device.step) {
    return {
      kind: "training",
      text: `Step ${device.step} of ${local_steps}`,
      progress: Math.min(1, device.step / local_steps),
    };
  }
  return { kind: "waiting", text: paused ? "Paused" : "Starting" };
}

const ORDER: DeviceState["kind"][] = ["training", "sent", "waiting", "offline", "aside", "removed"];

/** Sorts the devices: connected, then offline, then set aside, then removed; within each of these groups by number. */
export function ordered(status: Status): MemberStatus[] {
  const rank = (device: MemberStatus) => Math.max(2, ORDER.indexOf(deviceState(device, status).kind));
  return [...status.members].sort((a, b) => rank(a) - rank(b) || a.number - b.number);
}

/** Returns the number of updates that the open round waits for: one per participating device, but at least `quorum`. */
export function expected({ members, quorum }: Status): number {
  return Math.max(quorum, members.filter((m) => m.answered || (m.connections && !m.aside)).length);
}

/** Estimates the seconds until all rounds are done from the durations of the last five; null: not known yet. */
export function secondsLeft({ history, rounds, done }: Status): number | null {
  const last = history.flatMap((r) => (r.seconds === undefined ? [] : [r.seconds])).slice(-5);
  return last.length && done < rounds ? (last.reduce((a, b) => a + b, 0) / last.length) * (rounds - done) : null;
}

export function duration(seconds: number): string {
  const amount = (count: number, unit: string) => `${count} ${unit}${count === 1 ? "" : "s"}`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  return seconds < 36 * 3600 ? amount(Math.round(seconds / 3600), "hour") : amount(Math.round(seconds / 86_400), "day");
}

export function size(bytes: number): string {
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(0)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

export function count(value: number): string {
  if (value < 1e4) return value.toLocaleString("en");
  return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
}

export const decimals = (value: number | null | undefined, digits = 3) => value?.toFixed(digits) ?? "–";

/** Returns the invitations that still admit a device, sorted by expiry, the latest first. `now` is in seconds. */
export function open(invitations: readonly Invitation[], now: number): Invitation[] {
  return invitations
    .filter((one) => one.kind === "member" && !one.revoked && one.uses !== 0 && one.expires > now)
    .sort((a, b) => b.expires - a.expires || (a.digest < b.digest ? -1 : 1));
}

/** Describes how many devices an invitation admits, and for how long. */
export function admits({ uses, expires }: Invitation, now: number): string {
  return `${uses === null ? "Any number of devices" : `${devices(uses)} more`}, expires in ${duration(expires - now)}`;
}

/** Returns the link of an invitation for a browser, and the command for a desktop. */
export function links(base: string, token: string): { browser: string; desktop: string } {
  return {
    browser: new URL(`train/#view=train&tokens=1&together=${token}`, base).href,
    desktop: `glgpt federate join '${base}#${token}'`,
  };
}

/** True if an address works only on the machine itself. */
export function isLocal(base: string): boolean {
  return /^(localhost|127(\.\d+){3}|\[::1\])$/.test(new URL(base).hostname);
}

/** Returns the last round that has a sample. */
export function sampled(history: readonly RoundFigures[]): RoundFigures | undefined {
  return history.findLast((r) => r.sample);
}
