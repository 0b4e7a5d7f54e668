// Connects the engine with the stores: updates them when the model is ready, when another model is selected, and when
// the address changes.

import { batch, effect, untracked } from "@preact/signals";
import type { Glgpt } from "../api";
import type { Manifest } from "../runtime/engine/manifest";
import { VIEWS } from "./features";
import { addressHas, currentView, readAddress, writeAddress } from "./router";
import { continuations } from "./stores/continuations";
import { generation } from "./stores/generation";
import { interventions } from "./stores/interventions";
import { models } from "./stores/model";
import { route, type View, type ViewName } from "./stores/route";
import { settings, TEXT_PARAMS } from "./stores/settings";

export function start(engine: Glgpt): void {
  models.open(engine, () => generation.stop());
  readAddress();
  effect(() => {
    const found = engine.recorded.value;
    if (!found) return;
    untracked(() => generation.showRecorded(found.document, found.manifest));
    if (!addressHas("view")) route.view.value = opening(found.manifest);
  });
  engine.ready.then(begin).catch((error: unknown) => models.fail(error));
}

/** Shows the model. Called once the model is ready. */
function begin(): void {
  const { engine } = models;
  fit();
  batch(() => {
    generation.chosen.value = null;
    models.phase.value = "ready";
    settings.useRecommended(addressHas);
    if (!addressHas("view") && !engine.recorded.value) route.view.value = opening(engine.model.manifest);
    if (!addressHas("prompt")) settings.prompt.value = settings.opening();
    if (TEXT_PARAMS.every(({ key }) => !addressHas(key)))
      settings.seed.value = generation.recorded.value?.seed ?? settings.seed.value;
  });
  let shown = engine.model;
  effect(() => {
    const { model } = engine;
    if (model !== shown) untracked(adopt);
    shown = model;
  });
  effect(writeAddress); // the address follows every setting
  effect(() => {
    const { title } = currentView();
    document.title = `${title} · ${engine.model.manifest.model} · glgpt`;
  });
  effect(() => {
    if (currentView().alternatives) void generation.weigh();
  });
  addEventListener("popstate", (event) => void follow(event.state !== null));
  void interventions.begin();
}

/** Returns a function that returns true for the views that the model has. */
const availableFor =
  (manifest: Manifest) =>
  ({ available }: View) =>
    available?.(manifest) ?? true;

/** Returns the first view that the model has. For a chat model, this is the Chat view. */
function opening(manifest: Manifest): ViewName {
  return VIEWS.find(availableFor(manifest))!.name;
}

/** Restricts the view and the settings to what the model has. */
function fit(): void {
  const { manifest } = models.engine.model;
  if (!availableFor(manifest)(currentView())) route.view.value = opening(manifest);
  for (const { fit } of VIEWS) fit?.();
  settings.fit();
  interventions.fit();
}

/** Shows the model that replaced the previous one. */
function adopt(): void {
  const { engine, used, fileName } = models;
  batch(() => {
    settings.adopt(used.value, engine.used);
    generation.reset();
    continuations.reset();
    interventions.reset();
    used.value = engine.used;
    if (used.value === "file") fileName.value = engine.model.manifest.model;
    fit();
  });
  void generation.write();
}

/** Applies a new address. `own`: it is that of an entry of this page's history; otherwise, it is a pasted link. */
async function follow(own: boolean): Promise<void> {
  const earlier = wanted();
  batch(() => {
    readAddress(own);
    fit();
  });
  writeAddress();
  if (wanted() === earlier) return;
  await generation.stop();
  await interventions.begin();
}

/** Returns everything that determines the text, as one string to compare. */
const wanted = () => JSON.stringify([interventions.parts.value, ...settings.values()]);
