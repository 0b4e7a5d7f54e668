// The Score step: how well the model predicts held-out text, compared with baselines that only count tokens.

import type { Figures } from "../../../training/predictions";
import { asCsv, type Score } from "../../../training/score";
import { Curves } from "../../ui/curves";
import { train } from "./store";
import { classes } from "../../ui/classes";
import { offerFile, thousands } from "../../ui/tools";
import ui from "../../ui/shared.module.css";
import facts from "../../ui/facts.module.css";
import style from "./style.module.css";

const NAMES: Record<string, string> = {
  model: "the trained model",
  chance: "chance",
  unigram: "unigram",
  bigram: "bigram",
  trigram: "trigram",
  embedded: "the model embedded in this page",
};
const COUNTS: Record<string, string> = {
  unigram: "counts single tokens",
  bigram: "counts pairs of tokens",
  trigram: "counts triples of tokens",
};
const SMALL = 200; // in the reliability plot, a dot for fewer than this many tokens has half the radius

export function ScoreStage() {
  const found = train.shown.value;
  const scores = found?.scores ?? [];
  const last = scores.find(({ step }) => step === found?.step) ?? scores.at(-1);
  const doing = train.scoring.value;
  return (
    <div class={style.score}>
      <div class={ui.panel}>
        <h2>How good is it?</h2>
        <p class={ui.dim}>
          The last tenth of the text is held out: the model is not trained on it. Here, the model predicts tokens of the
          held-out text. For comparison, baselines that only count tokens predict the same tokens.{" "}
          <code>glgpt eval RUN --suite</code> prints the same results for the same model.
        </p>
        <div class={ui.buttons}>
          <button
            class={ui.primary}
            disabled={!found || doing !== null || train.preparing.value !== null}
            onClick={() => void train.score()}
          >
            Score the model
          </button>
          {scores.length > 0 && (
            <>
              <button onClick={() => offerFile(JSON.stringify(scores, null, 1), "application/json", "scores.json")}>
                JSON
              </button>
              <button onClick={() => offerFile(asCsv(scores), "text/csv", "scores.csv")}>CSV</button>
            </>
          )}
          {!found && <span class={ui.dim}>Start a training first.</span>}
        </div>
        {doing && (
          <p role="status">
            {doing.what}…
            <progress value={doing.share ?? undefined} max={1} aria-label={doing.what} />
          </p>
        )}
        {last && <Verdict score={last} />}
      </div>
      {!last && <Foreseen />}
      {last && (
        <>
          <div class={ui.panel}>
            <h2>Step {last.step}, compared with baselines</h2>
            <Beside score={last} />
          </div>
          <div class={ui.panel}>
            <h2>Is its confidence justified?</h2>
            <Reliability row={last.figures[0]!} />
          </div>
          <div class={ui.panel}>
            <h2>Does it copy?</h2>
            <Copied score={last} />
          </div>
          {scores.length > 1 && (
            <div class={ui.panel}>
              <h2>Over the steps</h2>
              <OverSteps scores={scores} />
            </div>
          )}
        </>
      )}
    </div>
  );
}

const FORESEEN: readonly (readonly [string, string])[] = [
  [
    "Compared with baselines",
    "Bits per byte, perplexity and accuracy, compared with chance, with models that only count tokens, and " +
      "with the model embedded in this page.",
  ],
  [
    "Is its confidence justified?",
    "When it is 80% sure, is it correct 80% of the time? A chart shows this with a dot for each level of confidence.",
  ],
  [
    "Does it copy?",
    "The share of words in a generated sample that occur in the training text, and the longest passage copied from it.",
  ],
  [
    "Over the steps",
    "Score the model again later to see how each metric changes. You can download the scores as JSON or CSV.",
  ],
];

/** Describes, before the first score, the results that a score will show. */
function Foreseen() {
  return (
    <>
      {FORESEEN.map(([title, text]) => (
        <div class={classes(ui.panel, style.foreseen)} key={title}>
          <h2>{title}</h2>
          <p class={ui.dim}>{text}</p>
        </div>
      ))}
    </>
  );
}

const percent = (share: number | null | undefined) =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)}%`;

const BEATEN: Record<string, string> = {
  chance: "chance",
  unigram: "guessing by token frequency alone (unigram)",
  bigram: "guessing from the previous token alone (bigram)",
  trigram: "guessing from the previous two tokens alone (trigram)",
};

/** Sums up a score in a few sentences. */
function Verdict({ score }: { score: Score }) {
  const [own, ...others] = score.figures;
  const beaten = others.filter((row) => row.bits_per_byte > own!.bits_per_byte).map((row) => row.name);
  const better = ["trigram", "bigram", "unigram", "chance"].find((name) => beaten.includes(name));
  return (
    <p class={style.verdict}>
      At step {score.step}, the model is as unsure as if choosing among <b>{own!.perplexity.toFixed(1)}</b> equally
      likely tokens (its perplexity). It predicts the correct next token <b>{percent(own!.top_1)}</b> of the time.{" "}
      {better ? `That beats ${BEATEN[better]}` : "That is not better than chance"}
      {beaten.includes("embedded") &&
        (better ? ", and the model embedded in this page" : ", but beats the model embedded in this page")}
      .
      {score.task && (
        <>
          {" "}
          Of {score.task.lines} questions that it was not trained on, it answers{" "}
          <b>{percent(score.task.exact_match)}</b> exactly right.
        </>
      )}
    </p>
  );
}

function Beside({ score }: { score: Score }) {
  const widest = Math.max(...score.figures.map((row) => row.bits_per_byte));
  return (
    <div class={style.scroll}>
      <table class={style.figures}>
        <thead>
          <tr>
            <th>Predictor</th>
            <th
              title={
                "Mean number of bits to encode a byte of the text; " +
                "comparable between models with different tokenizers"
              }
            >
              Bits/byte
            </th>
            <th title="The predictor is as unsure as if choosing among this many equally likely tokens">Perplexity</th>
            <th title="The mean loss per token">Nats/token</th>
            <th title="How often the predictor's likeliest token is correct">Top 1</th>
            <th title="How often the correct token is among the predictor's five likeliest">Top 5</th>
            <th title="Mean difference between the predictor's confidence and accuracy">Calibration error</th>
          </tr>
        </thead>
        <tbody>
          {score.figures.map((row) => (
            <tr key={row.name} class={classes(row.name === "model" && style.own)}>
              <th scope="row">
                {NAMES[row.name]} <small class={ui.dim}>{COUNTS[row.name]}</small>
              </th>
              <td>
                <span class={style.bar} style={{ width: `${(4 * row.bits_per_byte) / widest}rem` }} />{" "}
                {row.bits_per_byte.toFixed(3)}
              </td>
              <td>{row.perplexity.toFixed(2)}</td>
              <td>{row.nats_per_token.toFixed(3)}</td>
              <td>{percent(row.top_1)}</td>
              <td>{percent(row.top_5)}</td>
              <td>{row.calibration_error?.toFixed(3) ?? "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class={ui.dim}>
        Measured on {thousands(score.tokens)} tokens ({thousands(score.bytes)} bytes) spread over the held-out text.
        {score.figures.some(({ name }) => name === "embedded") &&
          " The model embedded in this page uses another tokenizer: compare only its bits per byte."}
      </p>
    </div>
  );
}

/** Shows a reliability plot: confidence on the x axis, accuracy on the y axis. */
function Reliability({ row }: { row: Figures }) {
  return (
    <div class={style.reliability}>
      <svg
        viewBox="-12 -4 116 116"
        role="img"
        aria-label={`Reliability: ${row.bins.map(([c, a]) => `${percent(c)} sure, ${percent(a)} correct`).join("; ")}`}
      >
        <path d="M0 0V100H100" />
        <path d="M0 100L100 0" class={style.diagonal} />
        {row.bins.map(([confidence, accuracy, held], i) => (
          <circle key={i} cx={100 * confidence} cy={100 - 100 * accuracy} r={held < SMALL ? 1.6 : 3.2}>
            <title>{`${percent(confidence)} sure, correct ${percent(accuracy)} of the time, ${held} tokens`}</title>
          </circle>
        ))}
        <text x="50" y="110" text-anchor="middle">
          confidence
        </text>
        <text x="-5" y="50" text-anchor="middle" transform="rotate(-90 -5 50)">
          accuracy
        </text>
      </svg>
      <p class={ui.dim}>
        Each dot groups tokens that the model predicted with about the same confidence. On the diagonal, the model is
        correct as often as its confidence predicts; below the diagonal, it is overconfident. On average, confidence and
        accuracy differ by {percent(row.calibration_error)}.
      </p>
    </div>
  );
}

function Copied({ score: { copies, sample, task } }: { score: Score }) {
  return (
    <>
      {copies && (
        <dl class={facts.facts}>
          <div>
            <dt>Words of the sample that occur in the training text</dt>
            <dd>{percent(copies.known_words)}</dd>
          </div>
          <div>
            <dt>Longest passage copied from there</dt>
            <dd>{copies.longest_copy} characters</dd>
          </div>
          <div>
            <dt>Share of the sample's 20-character passages that are copies</dt>
            <dd>{percent(copies.copied_runs)}</dd>
          </div>
          {task && (
            <div>
              <dt>Share of correct tokens, for each byte of the answer at which a token starts</dt>
              <dd>{task.by_position.map(percent).join(", ")}</dd>
            </div>
          )}
        </dl>
      )}
      <pre class={ui.sample} tabIndex={0}>
        {sample}
      </pre>
    </>
  );
}

function OverSteps({ scores }: { scores: readonly Score[] }) {
  const own = scores.map(({ figures: [row] }) => row!);
  const lines = scores
    .at(-1)!
    .figures.slice(1)
    .map(({ name, bits_per_byte: at }) => ({ name, at }));
  return (
    <>
      <Curves
        label="Bits per byte over the steps"
        steps={scores.map(({ step }) => step)}
        measure="bits per byte"
        log={false}
        height={180}
        lines={lines}
        curves={[{ name: "bits/byte", color: "--accent", values: own.map((row) => row.bits_per_byte), sparse: true }]}
      />
      <div class={style.scroll}>
        <table class={style.figures}>
          <thead>
            <tr>
              {["Step", "Bits/byte", "Perplexity", "Top 1", "Top 5", "Known words", "Longest copy", "Exact match"].map(
                (title) => (
                  <th key={title}>{title}</th>
                ),
              )}
            </tr>
          </thead>
          <tbody>
            {scores.map(({ step, copies, task }, i) => (
              <tr key={step}>
                <th scope="row">{step}</th>
                <td>{own[i]!.bits_per_byte.toFixed(3)}</td>
                <td>{own[i]!.perplexity.toFixed(2)}</td>
                <td>{percent(own[i]!.top_1)}</td>
                <td>{percent(own[i]!.top_5)}</td>
                <td>{percent(copies?.known_words)}</td>
                <td>{copies?.longest_copy ?? "–"}</td>
                <td>{percent(task?.exact_match)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
