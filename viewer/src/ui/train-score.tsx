// How good the model is on text it has not learnt from, beside predictors that only count.

import type { Figures } from "../training/predictions";
import { asCsv, type Score } from "../training/score";
import { Curves } from "./curves";
import * as train from "./train-state";

const NAMES: Record<string, string> = {
  model: "this model",
  chance: "chance",
  unigram: "unigram",
  bigram: "bigram",
  trigram: "trigram",
  embedded: "this page's own model",
};
const COUNTS: Record<string, string> = {
  unigram: "how often each token comes",
  bigram: "what follows one token",
  trigram: "what follows two tokens",
};
const SMALL = 200; // tokens of a bin, of the reliability plot, that is drawn at half size

export function ScoreStage() {
  void train.tick.value;
  const found = train.session.value;
  const scores = found?.scores ?? [];
  const last = scores.find(({ step }) => step === found?.step) ?? scores.at(-1);
  const doing = train.scoring.value;
  return (
    <div class="score">
      <div class="panel">
        <h2>How good is it?</h2>
        <p class="dim">
          The last tenth of the text was held back: the model has never seen it. Here it predicts each of its tokens, as do
          predictors that only count. <code>glgpt eval RUN --suite</code> prints the same for the same model.
        </p>
        <div class="buttons">
          <button class="primary" disabled={!found || doing !== null || train.preparing.value !== null} onClick={() => void train.score()}>
            Score it now
          </button>
          {scores.length > 0 && (
            <>
              <button onClick={() => train.offerFile(JSON.stringify(scores, null, 1), "application/json", "scores.json")}>JSON</button>
              <button onClick={() => train.offerFile(asCsv(scores), "text/csv", "scores.csv")}>CSV</button>
            </>
          )}
          {!found && <span class="dim">Start a training first.</span>}
        </div>
        {doing && (
          <p role="status" class="busy">
            {doing.what}…
            <progress value={doing.share ?? undefined} max={1} aria-label={doing.what} />
          </p>
        )}
        {last && <Verdict score={last} />}
      </div>
      {!last && <Foreseen />}
      {last && (
        <>
          <div class="panel">
            <h2>Step {last.step}, beside others</h2>
            <Beside score={last} />
          </div>
          <div class="panel">
            <h2>Does it know what it knows?</h2>
            <Reliability row={last.figures[0]!} />
          </div>
          <div class="panel">
            <h2>Does it copy?</h2>
            <Copied score={last} />
          </div>
          {scores.length > 1 && (
            <div class="panel">
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
  ["Beside others", "Bits a byte, perplexity and how often it is right, beside chance, models that only count tokens, and this page's own model."],
  ["Does it know what it knows?", "Where it is 80% sure, is it right 80% of the time? A dot for each degree of confidence shows it."],
  ["Does it copy?", "How many of its words the training text has, and the longest run of characters taken from there."],
  ["Over the steps", "Score it again later: a line shows how each figure moved, and you can download them as JSON or CSV."],
];

/** What a score will say, before there is one. */
function Foreseen() {
  return (
    <>
      {FORESEEN.map(([title, text]) => (
        <div class="panel foreseen" key={title}>
          <h2>{title}</h2>
          <p class="dim">{text}</p>
        </div>
      ))}
    </>
  );
}

const percent = (share: number | null | undefined) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)}%`);

/** The score in a sentence. */
function Verdict({ score }: { score: Score }) {
  const [own, ...others] = score.figures;
  const beaten = others.filter((row) => row.bits_per_byte > own!.bits_per_byte).map((row) => row.name);
  const better = ["trigram", "bigram", "unigram", "chance"].find((name) => beaten.includes(name));
  return (
    <p class="verdict">
      At step {score.step} it wavers between <b>{own!.perplexity.toFixed(1)}</b> equally likely next tokens (perplexity) and is
      right about the next one <b>{percent(own!.top_1)}</b> of the time.{" "}
      {better ? `That is better than ${better === "chance" ? "chance" : `a ${better} model`}` : "Chance would do as well"}
      {beaten.includes("embedded") && " and than this page's own model"}.
      {score.task && (
        <>
          {" "}
          Of {score.task.lines} questions it has not seen, it answers <b>{percent(score.task.exact_match)}</b> exactly right.
        </>
      )}
    </p>
  );
}

function Beside({ score }: { score: Score }) {
  const widest = Math.max(...score.figures.map((row) => row.bits_per_byte));
  return (
    <div class="scroll">
      <table class="figures">
        <thead>
          <tr>
            <th>Predictor</th>
            <th title="Bits needed for each byte of the text; comparable between models with different tokens">Bits/byte</th>
            <th title="Of how many equally likely tokens it is as unsure">Perplexity</th>
            <th title="The mean loss">Nats/token</th>
            <th title="How often its likeliest token is the next one">Top 1</th>
            <th title="How often the next token is among its five likeliest">Top 5</th>
            <th title="Mean distance of its confidence from how often it is right">Calibration error</th>
          </tr>
        </thead>
        <tbody>
          {score.figures.map((row) => (
            <tr key={row.name} class={row.name === "model" ? "own" : ""}>
              <th scope="row">
                {NAMES[row.name]} <small class="dim">{COUNTS[row.name]}</small>
              </th>
              <td>
                <span class="bar" style={{ width: `${(4 * row.bits_per_byte) / widest}rem` }} /> {row.bits_per_byte.toFixed(3)}
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
      <p class="dim">
        On {score.tokens.toLocaleString("en")} tokens ({score.bytes.toLocaleString("en")} bytes) spread over the held-back text.
        {score.figures.some(({ name }) => name === "embedded") && " The page's own model has tokens of its own: compare its bits a byte only."}
      </p>
    </div>
  );
}

/** Confidence across, accuracy up: on the diagonal a model is right as often as it says. */
function Reliability({ row }: { row: Figures }) {
  return (
    <div class="reliability">
      <svg viewBox="-12 -4 116 116" role="img" aria-label={`Reliability: ${row.bins.map(([c, a]) => `${percent(c)} sure, ${percent(a)} right`).join("; ")}`}>
        <path d="M0 0V100H100" class="axis" />
        <path d="M0 100L100 0" class="diagonal" />
        {row.bins.map(([confidence, accuracy, held], i) => (
          <circle key={i} cx={100 * confidence} cy={100 - 100 * accuracy} r={held < SMALL ? 1.6 : 3.2}>
            <title>
              {`${percent(confidence)} sure, right ${percent(accuracy)} of the time, ${held} tokens`}
            </title>
          </circle>
        ))}
        <text x="50" y="110" text-anchor="middle">
          how sure it is
        </text>
        <text x="-5" y="50" text-anchor="middle" transform="rotate(-90 -5 50)">
          how often right
        </text>
      </svg>
      <p class="dim">
        Each dot holds the tokens of which it was about as sure. On the line it is right as often as it says; below, it is too
        sure of itself. It is off by {percent(row.calibration_error)} on average.
      </p>
    </div>
  );
}

function Copied({ score: { copies, sample, task } }: { score: Score }) {
  return (
    <>
      {copies && (
        <dl class="facts">
          <div>
            <dt>Words of its text that the training text has</dt>
            <dd>{percent(copies.known_words)}</dd>
          </div>
          <div>
            <dt>Longest run copied from there</dt>
            <dd>{copies.longest_copy} characters</dd>
          </div>
          <div>
            <dt>Runs of 20 characters that are copies</dt>
            <dd>{percent(copies.copied_runs)}</dd>
          </div>
          {task && (
            <div>
              <dt>Answers right, by character</dt>
              <dd>{task.by_position.map(percent).join(", ")}</dd>
            </div>
          )}
        </dl>
      )}
      <pre class="sample" tabIndex={0}>{sample}</pre>
    </>
  );
}

function OverSteps({ scores }: { scores: readonly Score[] }) {
  const own = scores.map(({ figures: [row] }) => row!);
  const lines = scores.at(-1)!.figures.slice(1).map(({ name, bits_per_byte: at }) => ({ name, at }));
  return (
    <>
      <Curves
        label="Bits a byte over the steps"
        steps={scores.map(({ step }) => step)}
        measure="bits a byte"
        log={false}
        height={180}
        lines={lines}
        curves={[{ name: "bits/byte", color: "--accent", values: own.map((row) => row.bits_per_byte), sparse: true }]}
      />
      <div class="scroll">
        <table class="figures">
          <thead>
            <tr>
              {["Step", "Bits/byte", "Perplexity", "Top 1", "Top 5", "Known words", "Longest copy", "Exact match"].map((title) => (
                <th key={title}>{title}</th>
              ))}
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
