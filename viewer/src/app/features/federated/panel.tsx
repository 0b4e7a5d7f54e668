// The "Together" panel of federated training: the form to join, the state of this device, a table of all devices, and
// the losses and the latest sample of the shared model.

import { Facts } from "../../ui/facts";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { MAX_NAME } from "../../../runtime/generated/protocols";
import type { RoundFigures } from "../../../runtime/generated/federation-messages";
import type { FederationState } from "../../../training/federate";
import type { Addition } from "../../stores/route";
import { Curves } from "../../ui/curves";
import { federated as state, INVITATION } from "./store";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

export function Together() {
  useEffect(() => state.open(), []);
  const found = state.federation.value;
  const active = state.together();
  return (
    <section
      class={classes(style.together, ui.panel)}
      aria-label="Together"
      data-status={found?.status ?? "none"}
      data-rounds={found?.rounds.length ?? 0}
    >
      <h2>{found?.terms ? `Together: ${found.terms.name}` : "Together"}</h2>
      {!active && found === null && state.invited.value && (
        <p>You are invited to train a model together with other devices. Choose a nickname and join.</p>
      )}
      {!active && <Invitation />}
      {state.problem.value && (
        <p class={classes(ui.problem, style.problem)} role="alert">
          {state.problem.value}
        </p>
      )}
      {found && (found.status !== "failed" || !state.problem.value) && <Part found={found} active={active} />}
      {found && found.rounds.length > 0 && <Rounds rounds={found.rounds} />}
      {found && found.others.length > 0 && <Others found={found} />}
    </section>
  );
}

function Invitation() {
  return (
    <form
      class={style.invitation}
      onSubmit={(event) => {
        event.preventDefault();
        state.join();
      }}
    >
      <p class={ui.dim}>
        Several devices train one model. The host sends the weights; this device trains them for some steps and sends
        back the changes. Your text never leaves this browser. The changes of the weights go to the host only. They do
        not contain your text, but someone who analyses the changes could learn something about the text. Do not use
        confidential text.
      </p>
      <label class={ui.field}>
        <span>Invitation</span>
        <input
          type="url"
          required
          placeholder="the link from the host"
          value={state.link.value}
          onInput={(e) => (state.link.value = e.currentTarget.value)}
        />
      </label>
      <div class={ui.fields}>
        <label class={ui.field}>
          <span>Nickname</span>
          <input
            maxLength={MAX_NAME}
            value={state.name.value}
            onInput={(e) => (state.name.value = e.currentTarget.value)}
          />
        </label>
        <label class={ui.field}>
          <span>
            Your own text {state.source.value ? `(${state.source.value})` : "(optional; default: the host's)"}
          </span>
          <input type="file" accept=".txt,text/*" onChange={(e) => void state.take(e.currentTarget.files ?? [])} />
        </label>
      </div>
      <div class={ui.buttons}>
        <button class={ui.primary} type="submit" disabled={!state.link.value}>
          Join
        </button>
      </div>
    </form>
  );
}

function Part({ found, active }: { found: FederationState; active: boolean }) {
  const steps = found.terms?.local_steps ?? 1;
  const facts: [string, string][] = [
    ["You are", found.name || "–"],
    ["Round", found.terms ? `${found.round || "–"} of ${found.terms.rounds}` : "–"],
    ["Step", found.status === "training" ? `${found.step} of ${steps}` : "–"],
    ["Speed", found.tokensPerS ? `${found.tokensPerS.toFixed(0)} tokens/s` : "–"],
    ["Rounds trained", String(found.trained)],
    ["Last update", found.lastAnswer || "–"],
  ];
  return (
    <div class={style.part}>
      <p role="status">
        {found.doing}
        {found.status === "training" && !found.paused && <Countdown until={found.deadline} />}
      </p>
      {found.paused && active && (
        <p class={style.paused} role="status">
          <b>The host has paused the session.</b> No round begins or ends until the host resumes it. You do not need to
          do anything.
        </p>
      )}
      {found.status === "training" && <progress value={found.step} max={steps} aria-label="Steps of this round" />}
      <Facts of={facts} />
      {active && (
        <div class={ui.buttons}>
          <button onClick={() => state.leave()}>Leave</button>
        </div>
      )}
    </div>
  );
}

function Countdown({ until }: { until: number }) {
  const now = useSignal(performance.now());
  useEffect(() => {
    const timer = setInterval(() => (now.value = performance.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return <span class={ui.dim}>, at most {Math.max(0, (until - now.value) / 1000).toFixed(0)} s left</span>;
}

function Rounds({ rounds }: { rounds: readonly RoundFigures[] }) {
  const last = rounds.findLast((r) => r.loss !== undefined);
  const judged = rounds.findLast((r) => r.validation_loss !== undefined);
  const sampled = rounds.findLast((r) => r.sample);
  return (
    <div class={style.shared}>
      <p class={style.key}>
        <span>
          <i style={{ background: "var(--accent)" }} /> loss on the devices’ texts{" "}
          {last && <b>{last.loss!.toFixed(3)}</b>}
        </span>
        <span>
          <i style={{ background: "var(--held-out)" }} /> on held-out text{" "}
          {judged && <b>{judged.validation_loss!.toFixed(3)}</b>}
        </span>
      </p>
      <Curves
        label={`Loss over the rounds, now ${last?.loss?.toFixed(3) ?? "none"}`}
        steps={rounds.map((r) => r.round)}
        unit="round"
        measure="loss, nats per token"
        log={false}
        height={220}
        curves={[
          { name: "loss", color: "--accent", values: rounds.map((r) => r.loss ?? null), sparse: true },
          {
            name: "validation",
            color: "--held-out",
            values: rounds.map((r) => r.validation_loss ?? null),
            sparse: true,
          },
        ]}
      />
      {sampled && (
        <figure>
          <figcaption class={ui.dim}>What the shared model writes after round {sampled.round}</figcaption>
          <pre class={ui.sample} tabIndex={0}>
            {sampled.sample}
          </pre>
        </figure>
      )}
    </div>
  );
}

function Others({ found }: { found: FederationState }) {
  return (
    <table class={style.others}>
      <caption>Devices</caption>
      <thead>
        <tr>
          <th>Name</th>
          <th>Step</th>
          <th>Loss</th>
          <th>Tokens/s</th>
          <th>Last update</th>
        </tr>
      </thead>
      <tbody>
        {found.others.map((other) => (
          <tr key={other.number} class={classes(!other.connections && ui.dim)}>
            <td>
              {other.name}
              {other.number === found.member ? " (this device)" : other.connections ? "" : " (offline)"}
            </td>
            <td>{other.step}</td>
            <td>{other.loss?.toFixed(3) ?? "–"}</td>
            <td>{other.tokens_per_s ? other.tokens_per_s.toFixed(0) : "–"}</td>
            <td>{other.aside ? `set aside: ${other.aside}` : other.said || "–"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Notice() {
  if (!state.invited.value) return null;
  return <> If you train with others, your nickname and your weight updates are sent to the host.</>;
}

export const addition: Addition = { params: [INVITATION], about: Notice };
