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
Object.assign(globalThis, { glgpt: Object.assign(glgpt, { drawing, lens }) }); // also what the views draw with
start(glgpt);
// A later visit works without a network, where the page is a folder and is served securely.
if ("serviceWorker" in navigator && location.protocol.startsWith("http") && !EmbeddedSource.here()) {
  void glgpt.ready.then(keepShell).catch(() => {});
}

/**
 * Fetches once more what came before the service worker watched, for it to keep, and what the views will ask for; what no
 * page needs any more goes. Only the worker writes: a page that is left while it writes would take the entry with it.
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
