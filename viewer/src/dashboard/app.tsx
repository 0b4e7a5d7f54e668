// The dashboard's frame: the header, one view each for the host, a guest and any other visitor, and messages.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { classes } from "../app/ui/classes";
import { Mark } from "../app/ui/mark";
import { Confirmation } from "./confirmation";
import { count, duration, headline } from "./describe";
import { Devices } from "./devices";
import { Guest } from "./guest";
import { Invitations } from "./invitations";
import { Loss, Rounds, Sample } from "./metrics";
import { Now } from "./now";
import { state } from "./state";
import shared from "./dashboard.module.css";
import frame from "../app/ui/band.module.css";
import ui from "../app/ui/shared.module.css";
import style from "./app.module.css";

export function Dashboard() {
  const { as } = state.access.value;
  return (
    <>
      <div class={frame.band}>
        <header>
          <Mark />
          <h1>glgpt</h1>
          {as === "host" && state.status.value && <Chip />}
          <p class={frame.about}>
            <About />
          </p>
        </header>
      </div>
      {as === "host" && !state.denied.value ? <Host /> : as === "guest" ? <Guest /> : <Stranger />}
      <Confirmation />
    </>
  );
}

function About() {
  const { value: status } = state.status;
  if (!status) return <>Several devices train one model together.</>;
  return (
    <>
      <b>{status.name}</b> trains a model with {count(status.parameters)} parameters on the devices that you invite.
      Anyone with the link to this page can control the session: do not share it.
    </>
  );
}

/** Shows the phase of the session, in the header. */
function Chip() {
  const { phase, title } = headline(state.status.value!);
  const away = state.lost.value !== "";
  return (
    <span class={style.chip} data-phase={state.over.value ? "over" : away ? "lost" : phase}>
      <i />
      {state.over.value ? "Ended" : away ? "Reconnecting" : title}
    </span>
  );
}

function Host() {
  const { value: status } = state.status;
  useEffect(() => {
    document.title = status ? `Round ${status.done} of ${status.rounds}: ${status.name}` : "glgpt: training together";
  }, [status?.done, status?.rounds, status?.name]);
  return (
    <main class={classes(shared.dashboard, state.lost.value !== "" && shared.stale)}>
      <Messages />
      {status ? (
        <>
          <Now status={status} />
          <Invitations status={status} />
          <Devices status={status} />
          <Loss history={status.history} />
          <Sample history={status.history} />
          <Rounds history={status.history} />
        </>
      ) : (
        !state.lost.value && <p class={ui.dim}>Reading the session…</p>
      )}
    </main>
  );
}

/** Shows that the session has ended, that the server does not answer, or that an action failed. */
function Messages() {
  const silent = (state.now.value - state.heard.value) / 1000;
  return (
    <div class={style.messages}>
      {state.over.value && (
        <Message kind="good">
          <b>{state.over.value}</b> The server has stopped. The model is in the folder that was given to{" "}
          <code>glgpt federate serve</code> as <code>--out</code>.
        </Message>
      )}
      {state.lost.value && (
        <Message kind="warning">
          <b>{state.lost.value}</b>{" "}
          {state.heard.value > 0 && `Reconnecting; the last answer came ${duration(Math.max(1, silent))} ago. `}
          If the server was stopped, run the same <code>glgpt federate serve</code> command to continue the session.
        </Message>
      )}
      {state.problem.value && (
        <Message kind="bad" onDismiss={() => (state.problem.value = "")}>
          {state.problem.value}
        </Message>
      )}
    </div>
  );
}

interface MessageProps {
  kind: "good" | "warning" | "bad";
  children: ComponentChildren;
  onDismiss?: () => void;
}

function Message({ kind, children, onDismiss }: MessageProps) {
  return (
    <div class={style.message} data-kind={kind} role={kind === "bad" ? "alert" : "status"}>
      <p>{children}</p>
      {onDismiss && (
        <button class={ui.quiet} onClick={onDismiss}>
          Dismiss
        </button>
      )}
    </div>
  );
}

/** Asks for the host's link, because the page was opened without a link or with a link that does not work. */
function Stranger() {
  const link = useSignal("");
  return (
    <main class={classes(shared.dashboard, shared.narrow)}>
      <section class={ui.panel}>
        <h2>{state.denied.value ? "This link does not work" : "This is the host of a federation"}</h2>
        {state.denied.value ? (
          <p role="alert">{state.denied.value}</p>
        ) : (
          <p>
            To take part in the training, open the invitation that the host sent you. To open the dashboard, use the
            host's link.
          </p>
        )}
        <form
          class={style.ask}
          onSubmit={(event) => {
            event.preventDefault();
            state.paste(link.value);
          }}
        >
          <label class={ui.field}>
            <span>The host's link, which glgpt federate serve prints as “dashboard”</span>
            <input type="url" required value={link.value} onInput={(e) => (link.value = e.currentTarget.value)} />
          </label>
          <button class={ui.primary} type="submit">
            Open
          </button>
        </form>
        {state.problem.value && (
          <p class={ui.problem} role="alert">
            {state.problem.value}
          </p>
        )}
      </section>
    </main>
  );
}
