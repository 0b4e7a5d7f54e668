// Tests what the dashboard derives from a gateway's status, and its messages for a gateway's errors.

import { afterEach, describe, expect, it, vi } from "vitest";
import * as d from "../src/dashboard/describe";
import { Gateway } from "../src/dashboard/gateway";
import { Denied, Unreachable } from "../src/runtime/io/rest";
import type { Invitation, MemberStatus, Status } from "../src/runtime/generated/federation-messages";

const device = (fields: Partial<MemberStatus> = {}): MemberStatus => ({
  number: 0,
  name: "one",
  device: "",
  kind: "browser",
  own_text: false,
  strikes: 0,
  aside: "",
  accepted: 0,
  connections: 1,
  step: 0,
  answered: false,
  loss: null,
  norm: null,
  tokens_per_s: 0,
  ping_ms: 0,
  bytes_in: 0,
  bytes_out: 0,
  said: "",
  ...fields,
});
const round = { number: 2, closed: false, answers: 0, asked: 1, seconds_left: 30 };
const status = (fields: Partial<Status> = {}): Status => ({
  session: "s",
  name: "test",
  rounds: 5,
  done: 1,
  local_steps: 4,
  paused: false,
  quorum: 1,
  combined_by: "diloco (mean by tokens, then a Nesterov step)",
  parameters: 10,
  page: true,
  round,
  members: [device()],
  history: [],
  ...fields,
});

describe("who opened the dashboard", () => {
  it.each([
    ["#host=a.b", { as: "host", token: "a.b" }],
    ["#a.b", { as: "guest", token: "a.b" }],
    ["", { as: "stranger" }],
    ["#view=train&together=a.b", { as: "stranger" }],
  ])("%s", (hash, access) => expect(d.readFragment(hash)).toEqual(access));

  it("accepts a token only from the host's link", () => {
    expect(d.hostToken(" http://127.0.0.1:8043/#host=a.b\n")).toBe("a.b");
    for (const link of ["http://127.0.0.1:8043/#a.b", "http://127.0.0.1:8043/#host=", "a.b", ""])
      expect(d.hostToken(link)).toBeNull();
  });
});

describe("the session", () => {
  it.each([
    ["over", "Done", status({ done: 5, paused: true })],
    ["paused", "Paused", status({ paused: true })],
    ["waiting", "Waiting for devices", status({ members: [] })],
    ["waiting", "Waiting for devices", status({ members: [device({ connections: 0 }), device({ aside: "removed" })] })],
    ["waiting", "Starting", status({ round: null })],
    ["combining", "Combining", status({ round: { ...round, closed: true } })],
    ["training", "Training", status()],
  ])("is %s: %s", (phase, title, given) => expect(d.headline(given)).toMatchObject({ phase, title }));

  it("says how many devices are missing", () => {
    expect(d.headline(status({ quorum: 3 })).text).toBe("The round needs updates from 3 devices; 1 can send one now.");
    expect(d.expected(status({ quorum: 3 }))).toBe(3);
    const members = [
      device(),
      device({ answered: true, connections: 0 }),
      device({ connections: 0 }),
      device({ aside: "x" }),
    ];
    expect(d.expected(status({ members }))).toBe(2);
  });

  it("estimates the time left from the last five rounds", () => {
    expect(d.secondsLeft(status())).toBeNull();
    const history = [100, 10, 10, 10, 20, 20].map((seconds, i) => ({ round: i + 1, seconds }));
    expect(d.secondsLeft(status({ history, rounds: 10, done: 6 }))).toBe(4 * 14);
    expect(d.secondsLeft(status({ history, done: 5 }))).toBeNull();
  });
});

describe("a device", () => {
  it.each([
    ["removed", "Removed", device({ aside: "removed" }), {}],
    ["aside", "Set aside", device({ aside: "3 rejected updates" }), {}],
    ["offline", "Offline", device({ connections: 0, step: 2 }), {}],
    ["waiting", "Waiting for a round", device({ step: 2 }), { round: null }],
    ["sent", "Update received", device({ step: 2, answered: true }), {}],
    ["training", "Step 2 of 4", device({ step: 2 }), {}],
    ["waiting", "Starting", device(), {}],
    ["waiting", "Paused", device(), { paused: true }],
  ])("is %s: %s", (kind, text, given, fields) =>
    expect(d.deviceState(given, status(fields))).toMatchObject({ kind, text }),
  );

  it("moves in the list only when it leaves or returns", () => {
    const members = [
      device({ number: 0, aside: "removed" }),
      device({ number: 1, connections: 0 }),
      device({ number: 2 }),
      device({ number: 3, step: 1 }),
    ];
    expect(d.ordered(status({ members })).map((m) => m.number)).toEqual([2, 3, 1, 0]);
  });
});

describe("amounts", () => {
  it.each([
    [0, "0 s"],
    [89, "89 s"],
    [91, "2 min"],
    [7200, "2 hours"],
    [90_000, "25 hours"],
    [604_800, "7 days"],
  ])("%d seconds", (seconds, text) => expect(d.duration(seconds)).toBe(text));
  it.each([
    [0, "0 kB"],
    [999_499, "999 kB"],
    [1.25e6, "1.3 MB"],
    [2e9, "2.00 GB"],
  ])("%d bytes", (bytes, text) => expect(d.size(bytes)).toBe(text));
  it.each([
    [9999, "9,999"],
    [12_345, "12.3K"],
    [4.5e6, "4.5M"],
  ])("%d", (value, text) => expect(d.count(value)).toBe(text));
});

describe("invitations", () => {
  const invitation = (fields: Partial<Invitation>): Invitation => ({
    digest: "d",
    expires: 2000,
    uses: null,
    kind: "member",
    revoked: false,
    ...fields,
  });
  it("are listed if they still admit a device, sorted by expiry, the latest first", () => {
    const given = [
      invitation({ digest: "old", expires: 999 }),
      invitation({ digest: "used", uses: 0 }),
      invitation({ digest: "revoked", revoked: true }),
      invitation({ digest: "host", kind: "host" }),
      invitation({ digest: "soon", expires: 1001 }),
      invitation({ digest: "later" }),
    ];
    expect(d.open(given, 1000).map((one) => one.digest)).toEqual(["later", "soon"]);
  });
  it("are described by how many devices they admit, and for how long", () => {
    expect(d.admits(invitation({}), 1940)).toBe("Any number of devices, expires in 60 s");
    expect(d.admits(invitation({ uses: 1 }), 1940)).toBe("1 device more, expires in 60 s");
  });
  it("become links below the gateway's path", () => {
    expect(d.links("https://example.org/fed/", "a.b")).toEqual({
      browser: "https://example.org/fed/train/#view=train&tokens=1&together=a.b",
      desktop: "glgpt federate join 'https://example.org/fed/#a.b'",
    });
    expect(["http://127.0.0.1:1/", "http://localhost/", "http://[::1]/"].map(d.isLocal)).toEqual([true, true, true]);
    expect(["http://192.0.2.1/", "http://127.example.org/"].map(d.isLocal)).toEqual([false, false]);
  });
});

describe("the gateway's answers", () => {
  afterEach(() => vi.unstubAllGlobals());
  const answering = (answer: () => Promise<Response>) => vi.stubGlobal("fetch", vi.fn(answer));
  const gateway = new Gateway("http://host.example/fed/", "a.b");

  it("are requested below the dashboard's address, with the token", async () => {
    answering(async () => Response.json({ rounds: 3 }));
    expect(await gateway.status()).toEqual({ rounds: 3 });
    const [url, request] = vi.mocked(fetch).mock.lastCall as [URL, RequestInit];
    expect([url.href, request.headers]).toEqual(["http://host.example/fed/v1/status", { Authorization: "Bearer a.b" }]);
  });

  it.each([
    ["no connection", async () => Promise.reject(new TypeError("failed")), Unreachable, "The server does not answer."],
    ["a proxy", async () => new Response("<html>", { status: 502 }), Unreachable, "The server does not answer (502)."],
    [
      "a wrong token",
      async () => Response.json({ error: "no" }, { status: 401 }),
      Denied,
      "The server does not accept this link.",
    ],
    [
      "an error",
      async () => Response.json({ error: "no such device" }, { status: 404 }),
      Error,
      "The server answered 404: no such device.",
    ],
    ["a page", async () => new Response("<html>", { status: 500 }), Error, "The server answered 500."],
  ])("%s", async (_, answer, kind, message) => {
    answering(answer);
    const error = await gateway.pause(true).catch((found: unknown) => found);
    expect(error).toBeInstanceOf(kind);
    expect((error as Error).message).toBe(message);
  });

  it("report the progress of a download, and that a download was interrupted", async () => {
    vi.stubGlobal("navigator", { onLine: true });
    const body = (cut: boolean) => {
      const parts = [new Uint8Array(3)];
      return new ReadableStream<Uint8Array>({
        pull(controller) {
          const part = parts.pop();
          if (part) controller.enqueue(part);
          else if (cut) controller.error(new TypeError("reset"));
          else controller.close();
        },
      });
    };
    const seen: number[][] = [];
    answering(async () => new Response(body(false), { headers: { "Content-Length": "3" } }));
    expect((await gateway.model((...bytes) => seen.push(bytes))).size).toBe(3);
    expect(seen).toEqual([[3, 3]]);
    answering(async () => new Response(body(true), { headers: { "Content-Length": "9" } }));
    await expect(gateway.model(() => {})).rejects.toThrow("The connection ended after");
  });
});
