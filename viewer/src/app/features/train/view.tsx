// The Train tab: five steps from a text to a score, with the state of the training always visible.

import { GraduationCap } from "lucide";
import { useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import type { SessionState } from "../../../training/session";
import { federated } from "../federated/store";
import { Together } from "../federated";
import { LearnStage } from "./learn";
import { ScoreStage } from "./score";
import { duration, secondsLeft, train } from "./store";
import type { Stage } from "./settings";
import { TextStage } from "./text";
import { TokensStage } from "./tokens";
import { WriteStage } from "./write";
import type { View } from "../../stores/route";
import { thousands } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const STAGES: Record<Stage, { title: string; of: ComponentType }> = {
  data: { title: "Data", of: TextStage },
  tokens: { title: "Tokens", of: TokensStage },
  train: { title: "Train", of: LearnStage },
  write: { title: "Write", of: WriteStage },
  score: { title: "Score", of: ScoreStage },
};

const ASKS_MS = 10_000; // ms within which a second click on Reset deletes the model
// Steps that show the "Together" panel, with which several devices train one model.
const WITH_OTHERS: readonly Stage[] = ["data", "train"];

function TrainView() {
  useEffect(() => {
    void train.open();
    federated.open(); // rejoins a session that a reload interrupted, whichever step is shown
  }, []);
  if (!train.index.value)
    return (
      <section class={classes(ui.panel, style.waiting)} data-view="train">
        {train.problem.value || "Loading the sizes and texts…"}
      </section>
    );
  const { of: Shown } = STAGES[train.stage.value];
  const invited = Boolean(federated.invited.value || federated.federation.value); // true: "Together" is above the steps
  return (
    <section class={style.train} data-view="train" aria-label="Train">
      {invited && <Together />}
      <div class={classes(ui.panel, style.run)}>
        <Stages />
        <Buttons />
        {train.problem.value && (
          <p class={classes(ui.problem, style.problem)} role="alert">
            {train.problem.value}
          </p>
        )}
      </div>
      <Shown />
      {!invited && WITH_OTHERS.includes(train.stage.value) && <Together />}
    </section>
  );
}

function Stages() {
  return (
    <ol class={style.stages} aria-label="Steps">
      {Object.entries(STAGES).map(([name, { title }], i) => (
        <li key={name}>
          <button
            aria-current={train.stage.value === name ? "step" : undefined}
            onClick={() => (train.stage.value = name as Stage)}
          >
            <span class={style.number}>{i + 1}</span> {title}
          </button>
        </li>
      ))}
    </ol>
  );
}

/** Describes the state of the training in one line. */
function heading(found: SessionState | null): string {
  if (!found) return "Not started";
  if (found.status === "failed") return `Stopped: ${found.problem}`;
  if (found.doing) return `${found.doing}…`;
  const said = { paused: found.step ? "Paused" : "Ready", running: "Training", done: "Done" }[found.status];
  const last = found.points.findLast((p) => p.step > 0);
  const left = secondsLeft(found);
  return [
    said,
    `step ${found.points.at(-1)?.step ?? found.step} of ${found.plan.rates.steps}`,
    ...(last ? [`loss ${last.loss.toFixed(3)}`] : []),
    ...(found.status === "running" && left ? [`${duration(left)} left`] : []),
  ].join(", ");
}

const LEAVE_FIRST = "This device is training with others: leave that session first";
const ENDED = "To continue, raise “Steps” under “Schedule” in the Train step.";

/** Shows what the Start button will do. */
function Plan() {
  const offer = train.offer();
  if (!offer) return null;
  return (
    <span class={classes(ui.dim, style.plan)}>
      {" "}
      · Start trains a new model on this text, in this browser: {thousands(train.schedule.steps.value)} steps
    </span>
  );
}

function Buttons() {
  const found = train.shown.value;
  const running = found?.status === "running";
  const failed = found?.status === "failed";
  const busy = train.preparing.value !== null;
  // a finished training can continue if the visitor sets a larger number of steps
  const ended = found?.status === "done" && train.schedule.steps.value <= found.step;
  const why = federated.together() ? LEAVE_FIRST : ended ? ENDED : ""; // why Start is disabled
  const asked = useSignal(0); // id of the timer that runs while a second click deletes the model; 0: no timer
  const settle = () => {
    clearTimeout(asked.value);
    asked.value = 0;
  };
  const at = found?.points.at(-1)?.step ?? found?.checkpoint?.step ?? 0;
  return (
    <>
      <div class={ui.buttons}>
        {running ? (
          <button class={ui.primary} onClick={() => void train.pause()}>
            Pause
          </button>
        ) : failed ? (
          <button class={ui.primary} disabled={busy} onClick={() => void train.back()}>
            Go back to {found.checkpoint?.step ? `step ${found.checkpoint.step}` : "the beginning"}
          </button>
        ) : (
          <button class={ui.primary} disabled={busy || why !== ""} title={why} onClick={() => void train.start()}>
            {found?.step ? "Continue" : "Start"}
          </button>
        )}
        <button disabled={running || failed || busy || federated.together()} onClick={() => void train.step()}>
          One step
        </button>
        <button
          disabled={!found || busy || train.writing.value !== null}
          class={classes(asked.value > 0 && style.danger)}
          onBlur={settle}
          onClick={() => {
            const sure = asked.value > 0 || !found?.step;
            settle();
            if (sure) void train.reset();
            else asked.value = setTimeout(settle, ASKS_MS);
          }}
        >
          {asked.value ? "Delete the model?" : "Reset"}
        </button>
        <p class={style.state} role="status" data-status={found?.status ?? "none"} data-step={at}>
          {busy ? `${train.preparing.value!.what}…` : heading(found)}
          {!busy && !found && <Plan />}
          {!busy && why === ENDED && <span class={ui.dim}> · {ENDED}</span>}
        </p>
      </div>
      <progress
        value={busy ? (train.preparing.value!.share ?? undefined) : at}
        max={busy ? 1 : found?.plan.rates.steps}
        aria-label={busy ? train.preparing.value!.what : "Steps done"}
      />
    </>
  );
}

declare module "../../stores/route" {
  interface ViewNames {
    train: true;
  }
}

export const view: View<"train"> = {
  name: "train",
  title: "Train",
  group: "use",
  icon: GraduationCap,
  params: train.link.all,
  component: TrainView,
  available: (manifest) => Boolean(manifest.training),
  stays: true,
};
