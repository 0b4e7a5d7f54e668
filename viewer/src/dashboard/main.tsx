import "../app/ui/base.css";
import "../app/ui/shared.module.css"; // before the styles that override it
import { render } from "preact";
import { Dashboard } from "./app";
import { state } from "./state";
import "./dashboard.css";

state.start();
addEventListener("hashchange", () => location.reload()); // another link was pasted into the address bar
render(<Dashboard />, document.getElementById("app")!);
