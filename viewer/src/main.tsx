import "./app/ui/base.css";
import "./app/ui/shared.module.css"; // must precede the components' styles, which override the shared ones
import { render } from "preact";
import { Glgpt } from "./api";
import { EmbeddedSource, exportId, playerFile } from "./document";
import { lens } from "./runtime/engine/lens";
import { Replaced } from "./runtime/engine/loader";
import { probabilities } from "./runtime/engine/probabilities";
import * as rareCalls from "./rare-calls";
import { tabStorage } from "./runtime/io/storage";
import { App } from "./app/shell";
import { opening } from "./app/features/open/store";
import { SelfTest } from "./app/features/selftest/screen";
import { selftest } from "./app/features/selftest/store";
import { start } from "./app/start";
import { drawing } from "./app/stores/drawing";

const RELOADED = "glgpt reloaded";
const testing = selftest.isAsked;
if (testing) document.title = "Self-test · glgpt";
else if (playerFile() !== null) opening.begin((opened) => void launch(new Glgpt(rareCalls, opened)));
else {
  const glgpt = launch(new Glgpt(rareCalls));
  void glgpt.ready.catch(reloadOnce);
  // If the page was exported as a folder, not as a single file, and is served securely, later visits work offline.
  if ("serviceWorker" in navigator && location.protocol.startsWith("http") && !EmbeddedSource.here()) {
    void glgpt.ready.then(() => keepVersion(glgpt)).catch(() => {});
  }
}

/** Starts the page with a model. The model's API, with a few more functions, becomes the global variable `glgpt`. */
function launch(glgpt: Glgpt): Glgpt {
  Object.assign(globalThis, { glgpt: Object.assign(glgpt, { drawing: drawing.ready, lens, probabilities }) });
  start(glgpt);
  return glgpt;
}

/** Reloads the page if a new export replaced the page's files while it loaded, at most once a minute. */
function reloadOnce(error: unknown): void {
  if (!(error instanceof Replaced)) return;
  if (Date.now() - Number(tabStorage.read(RELOADED) ?? 0) < 60_000) return;
  if (tabStorage.write(RELOADED, Date.now())) location.reload(); // without storage, nothing would limit the reloads
}

/**
 * Caches the files that the views will need, and makes the service worker cache this version's page, manifest, scripts
 * and styles. If the worker has cached them, deletes the files of previous versions. The page leaves the manifest,
 * scripts and styles to the worker, because closing the page would interrupt a write by the page.
 */
async function keepVersion(glgpt: Glgpt): Promise<void> {
  const id = exportId();
  if (!id) return;
  const { serviceWorker } = navigator;
  await serviceWorker.register("./sw.js");
  if (!serviceWorker.controller)
    await new Promise((done) => serviceWorker.addEventListener("controllerchange", done, { once: true }));
  const { loader } = glgpt.own;
  await loader.keep(await glgpt.later());
  const own = [...document.querySelectorAll<HTMLScriptElement | HTMLLinkElement>("script[src], link[rel=stylesheet]")];
  const urls = [".", "manifest.json"].map((name) => new URL(name, document.baseURI).href);
  urls.push(...own.map((e) => ("src" in e ? e.src : e.href)));
  const { port1, port2 } = new MessageChannel();
  const answer = new Promise<MessageEvent<boolean>>((resolve) => (port1.onmessage = resolve));
  serviceWorker.controller!.postMessage({ id, urls }, [port2]);
  if ((await answer).data) await loader.forget();
}
render(testing ? <SelfTest /> : <App />, document.getElementById("app")!);
addEventListener("popstate", (event) => {
  if (selftest.isAsked === testing) return;
  event.stopImmediatePropagation(); // the listener of start.ts would overwrite the address with the view's settings
  location.reload();
});
