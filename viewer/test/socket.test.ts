// Tests the reconnecting socket with simulated servers.

import { afterEach, describe, expect, it, vi } from "vitest";
import { ReconnectingSocket, Refused, type SocketProtocol } from "../src/runtime/io/socket";

const TIMES = { accept: 50, admit: 50, retry: 500, wait: { first: 1, heard: 0, most: 4 } };

/** Replaces a page's sockets. The server sends `answers[n]` on connection n; null: the server closes the connection. */
class FakeSocket {
  static readonly OPEN = 1;
  static answers: (string | null)[] = [];
  static made: FakeSocket[] = [];
  readyState = 0;
  sent: unknown[] = [];
  onopen = () => {};
  onmessage: (event: { data: string }) => void = () => {};
  onclose: (event: { code: number; reason: string }) => void = () => {};

  constructor() {
    const answer = FakeSocket.answers[FakeSocket.made.push(this) - 1] ?? null;
    setTimeout(() => {
      this.readyState = 1;
      this.onopen();
      if (answer === null) this.close();
      else this.onmessage({ data: answer });
    });
  }

  send(data: unknown): void {
    this.sent.push(data);
  }

  close(code = 1006): void {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.onclose({ code, reason: "" });
  }
}

function opened(answers: (string | null)[], more: Partial<SocketProtocol> = {}) {
  Object.assign(FakeSocket, { answers, made: [] });
  vi.stubGlobal("WebSocket", FakeSocket);
  const received: unknown[] = [];
  const socket = new ReconnectingSocket({
    url: "wss://server.example/",
    times: TIMES,
    wanted: () => true,
    hello: () => "hello",
    admit: (data) => {
      if (data === "no") throw new Refused("No.");
      return data === "yes";
    },
    receive: (data) => received.push(data),
    ...more,
  });
  return { socket, received, made: FakeSocket.made };
}

afterEach(() => vi.unstubAllGlobals());

describe("a reconnecting socket", () => {
  it("connects again until the server admits it, and after the connection is lost", async () => {
    const { socket, received, made } = opened([null, "yes", "yes"]);
    await socket.connect();
    expect(made.map(({ sent }) => sent)).toEqual([["hello"], ["hello"]]);
    made[1]!.onmessage({ data: "news" });
    expect(received).toEqual(["news"]);
    made[1]!.close();
    expect(socket.state.value).toMatchObject({ status: "connecting" });
    await vi.waitFor(() => expect(socket.state.value.status).toBe("connected"));
    expect(made.length).toBe(3);
  });

  it.each([
    ["a refusal", ["no"]],
    ["a final close code", [null]],
  ])("ends after %s", async (_, answers) => {
    const { socket, made } = opened(answers, { refusal: () => new Refused("No.") });
    await expect(socket.connect()).rejects.toThrow("No.");
    expect([socket.state.value, made.length]).toEqual([{ status: "refused", problem: "No." }, 1]);
  });

  it("does not reconnect automatically after `drop`, and not at all while no server is needed", async () => {
    let wanted = true;
    const { socket, made } = opened(["yes", "yes"], { wanted: () => wanted });
    await socket.connect();
    socket.drop();
    expect(socket.connected).toBe(false);
    await socket.connect();
    wanted = false;
    made[1]!.close();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(made.length).toBe(2);
    await expect(socket.connect()).rejects.toThrow("No server is needed now.");
  });
});
