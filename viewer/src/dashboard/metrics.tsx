// Metrics of the finished rounds: loss curves, the latest sample, and a table.

import { Curves } from "../app/ui/curves";
import { count, decimals, duration, sampled } from "./describe";
import type { RoundFigures } from "../runtime/generated/federation-messages";
import { classes } from "../app/ui/classes";
import ui from "../app/ui/shared.module.css";
import shared from "./dashboard.module.css";
import style from "./metrics.module.css";

const LISTED = 12; // maximum rounds in the table

interface Props {
  history: readonly RoundFigures[];
}

export function Loss({ history }: Props) {
  const any = history.some((r) => r.loss !== undefined);
  const last = history.findLast((r) => r.loss !== undefined);
  const judged = history.findLast((r) => r.validation_loss !== undefined);
  return (
    <section class={ui.panel} aria-label="Loss" data-points={history.length}>
      <h2>Loss</h2>
      {any ? (
        <>
          <p class={style.legend}>
            <span>
              <i /> on the devices' texts <b>{decimals(last?.loss)}</b>
            </span>
            <span class={style.validation}>
              <i /> on held-out text <b>{decimals(judged?.validation_loss)}</b>
            </span>
          </p>
          <Curves
            label={`Loss over ${history.length} rounds, now ${decimals(last?.loss)}`}
            steps={history.map((r) => r.round)}
            unit="round"
            measure="nats per token"
            log={false}
            height={260}
            curves={[
              { name: "training", color: "--accent", values: history.map((r) => r.loss ?? null), sparse: true },
              {
                name: "validation",
                color: "--held-out",
                values: history.map((r) => r.validation_loss ?? null),
                sparse: true,
              },
            ]}
          />
        </>
      ) : (
        <p class={shared.empty}>The curve starts after the first round.</p>
      )}
    </section>
  );
}

export function Sample({ history }: Props) {
  const last = sampled(history);
  return (
    <section class={classes(ui.panel, style.sample)} aria-label="Sample">
      <h2>
        Sample
        {last && <small>after round {last.round}</small>}
      </h2>
      {last ? (
        <pre tabIndex={0}>{last.sample}</pre>
      ) : (
        <p class={shared.empty}>
          {history.length
            ? "The sample appears when the round has been evaluated."
            : "A sample of the model's text appears after each round."}
        </p>
      )}
    </section>
  );
}

export function Rounds({ history }: Props) {
  if (!history.length) return null;
  return (
    <section class={classes(ui.panel, shared.tabular, style.rounds)} aria-label="Rounds">
      <h2>
        Rounds
        {history.length > LISTED && <small>the last {LISTED}</small>}
      </h2>
      <div class={style.scroll} tabIndex={0} role="region" aria-label="Table of rounds">
        <table>
          <thead>
            <tr>
              <th scope="col">Round</th>
              <th scope="col">Devices</th>
              <th scope="col">Tokens</th>
              <th scope="col">Loss</th>
              <th scope="col">Validation</th>
              <th scope="col">Time</th>
            </tr>
          </thead>
          <tbody>
            {history
              .slice(-LISTED)
              .reverse()
              .map((r) => (
                <tr key={r.round}>
                  <td>{r.round}</td>
                  <td>{r.clients ?? "–"}</td>
                  <td>{r.tokens === undefined ? "–" : count(r.tokens)}</td>
                  <td>{decimals(r.loss)}</td>
                  <td>{decimals(r.validation_loss)}</td>
                  <td>{r.seconds === undefined ? "–" : duration(r.seconds)}</td>
                </tr>
              ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
