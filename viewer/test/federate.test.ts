// Tests a page that is a member of a federation, with a simulated gateway and trainer.

import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Federation } from "../src/training/federate";
import { Invitation } from "../src/training/invitation";
import { Membership } from "../src/training/membership";
import type { Store } from "../src/training/store";
import type { Training } from "../src/training/training";

const terms = { id: "s", digest: "d", tokenizer: "bytes", dtype: "f32", settings: { seed: 1 } };
const tokenizer = { "vocab.json": '{"!": 0}', "merges.txt": "" };
const round = { type: "round", round: 3, attempt: "a", lr: [0.1], step: 0, seed: 1, shard: [0, 1], bytes: 8 };
const welcome = { type: "welcome", member: 0, resume: "key", name: "one", rounds: [], members: [], paused: false };

/** Replaces the page's sockets. The test acts as the gateway. */
class FakeSocket {
  static readonly OPEN = 1;
  static last: FakeSocket | null = null;
  readyState = 1;
  sent: { type: string }[] = [];
  onopen = () => {};
  onmessage: (event: { data: string | ArrayBuffer }) => void = () => {};
  onclose: (event: { code: number; reason: string }) => void = () => {};

  constructor() {
    FakeSocket.last = this;
    setTimeout(() => this.onopen());
  }

  send(data: unknown): void {
    if (typeof data === "string") this.sent.push(JSON.parse(data) as { type: string });
  }

  say(message: object): void {
    this.onmessage({ data: JSON.stringify(message) });
  }

  close(code = 1006, reason = ""): void {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.onclose({ code, reason });
  }
}

let step: (loss?: number) => void; // ends the current training step

function joined(): Federation {
  const trainer = {
    device: { lost: false },
    gone: false,
    steps: 1,
    setParameters: () => {},
    submit: () => new Promise((resolve) => (step = (loss = 2) => resolve([{ loss }]))),
    drain: async () => [],
    parameters: async () => Float32Array.of(1, 2),
    state: async () => new Uint8Array(1),
    close: () => {},
  };
  const offer = { digest: "d", config: {}, recipe: { batch: 1, context: 2 } };
  const training = { renderer: "a GPU", lend: async () => ({ trainer, offer }), giveBack: () => {} };
  const store = { kept: async () => undefined, keep: async () => {} };
  return new Federation({ link: "http://h/#a.b" }, training as unknown as Training, store as unknown as Store);
}

/** Resolves to the page's next socket after the page has joined with it. */
async function connected(before: FakeSocket | null = null): Promise<FakeSocket> {
  await vi.waitFor(() => expect(FakeSocket.last !== before && FakeSocket.last?.sent[0]?.type).toBe("join"), 3000);
  FakeSocket.last!.say(welcome);
  return FakeSocket.last!;
}

async function training(): Promise<{ member: Federation; socket: FakeSocket }> {
  const member = joined();
  const socket = await connected();
  socket.say(round);
  socket.onmessage({ data: new Float32Array(2).buffer });
  await vi.waitFor(() => expect(member.status).toBe("training"));
  return { member, socket };
}

async function sending(): Promise<{ member: Federation; socket: FakeSocket }> {
  const found = await training();
  step();
  await vi.waitFor(() => expect(found.socket.sent.at(-1)!.type).toBe("update"));
  return found;
}

beforeEach(() => {
  FakeSocket.last = null;
  vi.stubGlobal("WebSocket", FakeSocket);
  vi.stubGlobal("navigator", { onLine: true });
  vi.stubGlobal("fetch", async ({ pathname }: URL) =>
    pathname.endsWith("text")
      ? new Response(new Uint32Array(10))
      : Response.json(pathname.endsWith("tokenizer") ? tokenizer : terms),
  );
});
afterEach(() => vi.unstubAllGlobals());

it("still shows its round after a reconnection", async () => {
  const { member, socket } = await training();
  socket.close();
  expect(member.status).toBe("reconnecting");
  await connected(socket);
  expect(member.state.value).toMatchObject({ status: "training", doing: "Training round 3" });
  member.leave();
  step();
  await member.done;
});

it("shows an update that waits for its answer after a reconnection, and sends it again", async () => {
  const { member, socket } = await sending();
  socket.close();
  const next = await connected(socket);
  expect(member.status).toBe("sending");
  expect(next.sent.at(-1)).toMatchObject({ type: "update", attempt: "a" });
  member.leave();
  await member.done;
});

it.each([
  [{ attempt: "a" }, "waiting", "rejected: too large"],
  [{}, "waiting", "rejected: too large"],
  [{ attempt: "another" }, "sending", ""],
])("handles a rejection with the fields %o while an update waits for its answer", async (about, status, lastAnswer) => {
  const { member, socket } = await sending();
  socket.say({ type: "rejected", why: "too large", ...about });
  expect(member.state.value).toMatchObject({ status, lastAnswer });
  member.leave();
  await member.done;
});

it("continues the training after the rejection of a message that is not an update", async () => {
  const { member, socket } = await training();
  socket.say({ type: "rejected", why: "ping: n must be an integer" });
  expect(member.state.value).toMatchObject({ status: "training", lastAnswer: "rejected: ping: n must be an integer" });
  member.leave();
  step();
  await member.done;
});

it("rejects `done` if the host refuses the device", async () => {
  const member = joined();
  const socket = await connected();
  socket.close(4410, "the host removed this device");
  const why = "The host refused this device: the host removed this device. Ask the host why, then join again.";
  await expect(member.done).rejects.toThrow(why);
  expect(member.state.value).toMatchObject({ status: "failed", problem: why, doing: why });
});

it("says what to do about a loss that is not finite", async () => {
  const { member } = await training();
  step(NaN);
  await expect(member.done).rejects.toThrow("Join with another browser or device");
});

it.each([
  [async () => Promise.reject(new TypeError("failed")), "The server does not answer. Check this device's network"],
  [async () => Response.json({}, { status: 401 }), "Ask the host for a new one."],
  [async () => Response.json({ error: "busy" }, { status: 409 }), "The server answered 409: busy. Join again;"],
])("says what to do about an invitation that does not work", async (answer, message) => {
  vi.stubGlobal("fetch", answer);
  const invitation = new Invitation("http://h/#a.b");
  await expect(invitation.terms()).rejects.toThrow(message);
});

it("joins although the browser blocks site data and therefore rejects requests for locks", async () => {
  vi.stubGlobal("navigator", { locks: { request: async () => Promise.reject(new DOMException("", "SecurityError")) } });
  const membership = new Membership({ kept: async () => Promise.reject(new Error()) } as unknown as Store);
  await membership.open("s");
  expect(membership.kept.resume).toBe("");
});
