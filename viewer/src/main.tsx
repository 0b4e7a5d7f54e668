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
  void glgpt.ready.then(() => navigator.serviceWorker.register("./sw.js")).catch(() => {});
}
render(<App />, document.getElementById("app")!);
