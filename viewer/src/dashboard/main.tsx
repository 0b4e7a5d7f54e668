import "../app/ui/base.css";
import "../app/ui/shared.module.css"; // before the styles that override it
import "./dashboard.module.css"; // for the same reason
import { render } from "preact";
import { Dashboard } from "./app";
import { state } from "./state";

state.start();
addEventListener("hashchange", () => location.reload()); // another link was pasted into the address bar
render(<Dashboard />, document.getElementById("app")!);
