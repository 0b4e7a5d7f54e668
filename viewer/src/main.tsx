import { render } from "preact";
import { Glgpt } from "./api";
import { lens } from "./lens";
import { App } from "./ui/app";
import { start } from "./ui/state";
import { drawing } from "./ui/tools";
import "./base.css";
import "./drawings.css";
import "./views.css";
import "./train.css";

const glgpt = new Glgpt();
Object.assign(globalThis, { glgpt: Object.assign(glgpt, { drawing, lens }) }); // also what the views draw with
start(glgpt);
// A later visit works without a network, where the page is served securely.
if ("serviceWorker" in navigator && location.protocol.startsWith("http")) {
  void glgpt.ready.then(keepShell).catch(() => {});
}

/** What this visit has fetched past the service worker, which did not watch yet; what no page needs any more goes. */
async function keepShell(): Promise<void> {
  const { scope } = await navigator.serviceWorker.register("./sw.js");
  const cache = await caches.open(`glgpt shell ${new URL(scope).pathname}`);
  const own = [...document.querySelectorAll<HTMLScriptElement | HTMLLinkElement>("script[src], link[rel=stylesheet]")];
  const needed = own.map((e) => ("src" in e ? e.src : e.href));
  const page = location.origin + location.pathname;
  await cache.addAll([page, new URL("manifest.json", page).href, ...needed]);
  for (const { url } of await cache.keys()) {
    if (/\/assets\/index-[^/]*$/.test(url) && !needed.includes(url)) await cache.delete(url);
  }
}
render(<App />, document.getElementById("app")!);
