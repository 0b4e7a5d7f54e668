// Tests the description of a model that was trained in the page.

import { expect, it, vi } from "vitest";

vi.mock("../src/runtime/engine/manifest", () => ({ parseProgram: () => ({}) }));

import type { Model } from "../src/runtime/engine/model";
import { TEXT_SAMPLING } from "../src/runtime/generated/sampling";
import type { Offers } from "../src/training/offers";
import type { Session } from "../src/training/session";
import { TrainedModels } from "../src/training/trained-models";

it("takes no chat format and no sampling settings from the page's model", async () => {
  const page = {
    manifest: {
      chat: [null],
      chat_template: { source: "" },
      sampling: { temperature: 0.1 },
      training: "training.json",
    },
    loader: { packed: () => Promise.resolve({}) },
  };
  const offers = { suiting: () => ({ generate: "g", capture: "c" }) } as unknown as Offers;
  const models = new TrainedModels(() => page as unknown as Model, offers);
  const session = { plan: { offer: {}, bpe: null } } as unknown as Session;
  const { manifest } = await models.trained(session);
  expect(manifest).toMatchObject({
    chat: null,
    chat_template: null,
    sampling: TEXT_SAMPLING,
    training: "training.json",
  });
});
