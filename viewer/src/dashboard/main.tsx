import "../app/ui/base.css";
import "../app/ui/shared.module.css"; // before the styles of the components, which override these styles
import "./dashboard.module.css"; // also before the styles of the components
import { render } from "preact";
import { Dashboard } from "./app";
import { state } from "./state";

state.start();
addEventListener("hashchange", () => location.reload()); // the user pasted another link into the address bar
render(<Dashboard />, document.getElementById("app")!);
