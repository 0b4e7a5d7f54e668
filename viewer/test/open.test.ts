// Tests actions of the start screen that begin while other actions run, and the name of a link's file.

import { beforeEach, expect, it, vi } from "vitest";

const calls = vi.hoisted(() => ({
  kept: vi.fn(),
  list: vi.fn(),
  fetched: vi.fn(),
  openable: vi.fn(),
  remove: vi.fn(),
}));
vi.hoisted(() =>
  Object.assign(globalThis, { location: new URL("https://page.example/?model=https://m.example/a.gguf") }),
);
vi.mock("../src/document", () => ({
  connections: () => null,
  folder: () => new URL(location.href),
  playerFile: () => "player.json",
}));
vi.mock("../src/runtime/engine/model-link", async (original) => ({
  ...(await original<object>()),
  fetched: calls.fetched,
}));
vi.mock("../src/runtime/engine/kept-models", () => ({ keptModels: calls.kept, removeKept: calls.remove }));
vi.mock("../src/runtime/engine/opened-model", () => ({ openable: calls.openable }));
vi.mock("../src/runtime/engine/player-files", () => ({ parsePlayer: () => ({ shapes: [] }) }));
vi.mock("../src/runtime/engine/source", () => ({
  HttpSource: class {
    bytes = calls.list;
  },
}));

import { fileName } from "../src/runtime/engine/model-link";

const list = new TextEncoder().encode("{}");

let opening: (typeof import("../src/app/features/open/store"))["opening"];

beforeEach(async () => {
  vi.resetModules();
  ({ opening } = await import("../src/app/features/open/store"));
  calls.kept.mockResolvedValue([]);
  calls.list.mockResolvedValue(list);
});

it("shows a download's progress after a kept model was removed", async () => {
  opening.begin(() => {});
  await vi.waitFor(() => expect(opening.link.value?.host).toBe("m.example"));
  calls.fetched.mockImplementation((_url: URL, _stop: AbortSignal, onBytes: (done: number, total: number) => void) => {
    onBytes(1e6, 4e6);
    return new Promise(() => {});
  });
  void opening.fetch();
  await opening.removeKept({ name: "b.gguf", bytes: 1 });
  expect([opening.fetching, opening.share.value]).toEqual([true, 0.25]);
});

it("shows that a file is being read, although the page's list of model shapes arrives during the read", async () => {
  let listed: (bytes: Uint8Array) => void = () => {};
  calls.list.mockReturnValue(new Promise((resolve) => (listed = resolve)));
  calls.openable.mockReturnValue(new Promise(() => {}));
  opening.begin(() => {});
  void opening.open([new File([], "a.gguf")]);
  listed(list);
  await vi.waitFor(() => expect(calls.openable).toHaveBeenCalled());
  await vi.waitFor(() => expect(opening.link.value).not.toBeNull());
  expect(opening.doing.value).toBe("Reading the file's header");
});

it.each([
  ["https://m.example/a/my%20model.gguf", "my model.gguf"],
  ["https://m.example/q4-100%.gguf", "q4-100%.gguf"],
])("shows the name of the file at %s", (address, name) => {
  expect(fileName(new URL(address))).toBe(name);
});
