// The page of a visitor who opened a desktop's invitation link in a browser. Shows how to join in the browser or on a
// desktop.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Copied } from "./copied";
import { count, links } from "./describe";
import type { Terms } from "../runtime/generated/federation-messages";
import { Denied } from "../runtime/io/rest";
import { state } from "./state";
import { classes } from "../app/ui/classes";
import ui from "../app/ui/shared.module.css";
import shared from "./dashboard.module.css";
import style from "./guest.module.css";

export function Guest() {
  const terms = useSignal<Terms | null>(null);
  const problem = useSignal("");
  const page = useSignal(true);
  const access = state.access.value;
  const token = access.as === "guest" ? access.token : "";
  useEffect(() => {
    state.terms(token).then(
      (found) => (terms.value = found),
      (error: unknown) => {
        problem.value =
          error instanceof Denied
            ? "This invitation is unknown, expired or revoked. Ask the host for a new link."
            : "The host does not answer. Reload the page to try again.";
      },
    );
    void state.hasPage().then((found) => (page.value = found));
  }, [token]);
  if (problem.value) {
    return (
      <main class={classes(shared.dashboard, shared.narrow)}>
        <section class={ui.panel} role="alert">
          <h2>You cannot join now</h2>
          <p>{problem.value}</p>
        </section>
      </main>
    );
  }
  const { browser, desktop } = links(state.base, token);
  return (
    <main class={classes(shared.dashboard, shared.narrow)}>
      <section class={ui.panel}>
        <h2>You are invited{terms.value ? ` to train ${terms.value.name}` : ""}</h2>
        {terms.value && (
          <p>
            A model with {count(terms.value.parameters)} parameters is trained in {terms.value.rounds} rounds. In each
            round, every device takes {terms.value.local_steps} steps.
          </p>
        )}
        {page.value && (
          <p>
            <a class={style.join} href={browser}>
              Join in this browser
            </a>
          </p>
        )}
        <Copied label={page.value ? "Or on a desktop with glgpt" : "Join on a desktop with glgpt"} text={desktop} />
      </section>
    </main>
  );
}
