import { render } from "preact";
import { Glgpt } from "./api";
import { EmbeddedSource } from "./document";
import { lens } from "./engine/lens";
import { App } from "./ui/app";
import { start } from "./ui/state";
import { drawing } from "./ui/tools";
import "./ui/base.css";
import "./ui/drawings.css";
import "./ui/views.css";
import "./ui/train.css";

const glgpt = new Glgpt();
Object.assign(globalThis, { glgpt: Object.assign(glgpt, { drawing, lens }) }); // with the views' drawing functions
start(glgpt);
// A page that is a folder and is served securely works offline on a later visit.
if ("serviceWorker" in navigator && location.protocol.startsWith("http") && !EmbeddedSource.here()) {
  void glgpt.ready.then(keepShell).catch(() => {});
}

/**
 * Fetches the page's files again so that the service worker stores them: those loaded before it was active and those
 * that the views will need. Deletes old scripts and styles. Only the worker writes files to the cache: an entry would
 * be lost if the page that writes it were closed.
 */
async function keepShell(): Promise<void> {
  const { serviceWorker } = navigator;
  const { scope } = await serviceWorker.register("./sw.js");
  if (!serviceWorker.controller) await new Promise((done) => serviceWorker.addEventListener("controllerchange", done, { once: true }));
  const cache = await caches.open(`glgpt shell ${new URL(scope).pathname}`);
  const own = [...document.querySelectorAll<HTMLScriptElement | HTMLLinkElement>("script[src], link[rel=stylesheet]")];
  const needed = own.map((e) => ("src" in e ? e.src : e.href));
  const page = location.origin + location.pathname;
  for (const url of [page, new URL("manifest.json", page).href, ...needed]) {
    if (!(await cache.match(url))) await fetch(url);
  }
  for (const { url } of await cache.keys()) {
    if (/\/assets\/index-[^/]*$/.test(url) && !needed.includes(url)) await cache.delete(url);
  }
  await glgpt.model.loader.keep(await glgpt.later());
}
render(<App />, document.getElementById("app")!);
