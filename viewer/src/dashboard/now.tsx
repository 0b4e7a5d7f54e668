// The state of the session, and the buttons that control it.

import type { ComponentChildren } from "preact";
import { Facts } from "../app/ui/facts";
import { count, decimals, duration, expected, headline, secondsLeft, size } from "./describe";
import type { Status } from "../runtime/generated/federation-messages";
import { state } from "./state";
import ui from "../app/ui/shared.module.css";
import shared from "./dashboard.module.css";
import style from "./now.module.css";

export function Now({ status }: { status: Status }) {
  const { title, text, phase } = headline(status);
  const { done, rounds, round } = status;
  const ended = phase === "over" || state.over.value !== "";
  const number = Math.min(rounds, round && !round.closed ? round.number : done + 1);
  return (
    <section class={ui.panel} aria-label="Session">
      <h2>
        {ended ? `${done} of ${rounds} rounds done` : `Round ${number} of ${rounds}`}
        <small>{ended ? "Ended" : title}</small>
      </h2>
      {!state.over.value && <p>{text}</p>}
      <Meters status={status} ended={ended} />
      <Facts of={facts(status)} />
      <Buttons status={status} />
    </section>
  );
}

/** Shows progress bars of the session and of the open round. */
function Meters({ status, ended }: { status: Status; ended: boolean }) {
  const { done, rounds, round, quorum, paused } = status;
  const left = secondsLeft(status);
  const wanted = round && expected(status);
  return (
    <div class={style.meters}>
      <Meter name="Session" value={done} max={rounds} unit="rounds">
        {left !== null && !paused && !ended && `about ${duration(left)} left`}
      </Meter>
      {round && wanted && !ended && (
        <Meter name={`Round ${round.number}`} value={round.answers} max={wanted} unit="updates">
          quorum {quorum}
          {!round.closed && !paused && `, at most ${duration(round.seconds_left)} left`}
        </Meter>
      )}
    </div>
  );
}

interface MeterProps {
  name: string;
  value: number;
  max: number;
  unit: string;
  children: ComponentChildren;
}

function Meter({ name, value, max, unit, children }: MeterProps) {
  const said = `${count(value)} of ${count(max)} ${unit}`;
  return (
    <div class={style.meter}>
      <b>{name}</b>
      <progress value={value} max={max} aria-label={`${name}: ${said}`} />
      <span>{said}</span>
      <span class={ui.dim}>{children}</span>
    </div>
  );
}

function facts(status: Status): [string, string][] {
  const { history, members } = status;
  const last = history.findLast((r) => r.loss !== undefined);
  const judged = history.findLast((r) => r.validation_loss !== undefined);
  const speed = members.reduce((sum, m) => sum + (m.connections && !m.aside ? m.tokens_per_s : 0), 0);
  return [
    ["Training loss", decimals(last?.loss)],
    ["Validation loss", decimals(judged?.validation_loss)],
    ["Tokens trained", count(history.reduce((sum, r) => sum + (r.tokens ?? 0), 0))],
    ["Speed", speed ? `${count(Math.round(speed))} tokens/s` : "–"],
    ["Combined by", status.combined_by],
    ...(status.epsilon === undefined
      ? []
      : ([["Privacy spent", `ε ${status.epsilon.toPrecision(3)} at δ ${status.delta ?? "–"}`]] as [string, string][])),
  ];
}

function Buttons({ status: { paused, done, rounds, name } }: { status: Status }) {
  const off = !state.reachable.value;
  const busy = state.busy.value;
  const { value: download } = state.download;
  const ask = () => {
    const left = rounds - done;
    state.question.value = {
      title: `End ${name} for all devices?`,
      text:
        `${left} of ${rounds} rounds are not done yet. The model of round ${done} is kept; ` +
        "the session cannot be continued.",
      action: "End the session",
      run: () => state.end(),
    };
  };
  return (
    <div class={ui.buttons}>
      <button
        class={ui.primary}
        disabled={off || busy.has("pause") || done >= rounds}
        onClick={() => void state.pause(!paused)}
      >
        {paused ? "Resume" : "Pause"}
      </button>
      <button disabled={off || busy.has("download")} onClick={() => void state.save()}>
        {busy.has("download") ? `Downloading${download ? ` ${progress(download)}` : "…"}` : "Download the model"}
      </button>
      <button class={shared.danger} disabled={off || busy.has("end") || done >= rounds} onClick={ask}>
        {busy.has("end") ? "Ending…" : "End the session"}
      </button>
    </div>
  );
}

function progress({ received, total }: { received: number; total: number }): string {
  return total ? `${size(received)} of ${size(total)}` : size(received);
}
