// Scores a training's model, and its baselines for comparison.

import { PageError } from "../runtime/gl/errors";
import { observe } from "./observed";
import { figures, sizeOf, type Figures } from "./predictions";
import { baselineFigures, judged, scored, WRITTEN, type Score, type ScoreProgress } from "./score";
import type { Session } from "./session";

export class Scorer {
  scores: Score[] = [];
  /** Metrics of chance and n-gram models on the held-back text; empty before `count`, or if the text is too short. */
  baselines: Figures[] = [];
  private counted: Promise<Figures[]> | null = null;

  constructor(private readonly session: Session) {
    observe(this, ["scores", "baselines"]);
  }

  /** Computes the baselines' metrics. Later calls return the same metrics. */
  count(progress: (share: number) => void = () => {}): Promise<Figures[]> {
    const { plan, writer } = this.session;
    return (this.counted ??= baselineFigures(plan, writer.bytes, progress).then((found) => {
      this.baselines = found;
      return found;
    }));
  }

  /** Scores the model with its current parameters. `other` returns the metrics of another model on the same text. */
  async score(
    progress: ScoreProgress = () => {},
    other: () => Promise<Figures | null> = () => Promise.resolve(null),
  ): Promise<Score> {
    const { session } = this;
    const { plan, writer } = session;
    if (session.status === "failed") throw new PageError("The training has failed; go back to a checkpoint first.");
    const { first, targets } = scored(plan);
    const { validation, offer } = plan;
    progress("Counting n-grams", null);
    const baselines = await this.count((share) => progress("Counting n-grams", share));
    const bytes = sizeOf(validation, targets, writer.bytes);
    const done: Score = {
      step: 0,
      window: offer.recipe.context,
      tokens: targets.length,
      bytes,
      figures: [],
      sample: "",
      copies: null,
      task: null,
    };
    let ranks: Int32Array = new Int32Array();
    await session.between(async () => {
      const found = await session.trainer.predict(validation, first, (share) =>
        progress("Predicting the held-back text", share),
      );
      done.figures = [figures("model", found, bytes), ...baselines];
      ranks = found.ranks;
      done.step = session.step;
      done.sample = await writer.compose((some) => progress("Writing", some / WRITTEN));
    });
    progress("Looking for copies", null);
    Object.assign(done, await judged(plan, writer.bytes, done.sample, ranks));
    const beside = await other();
    if (beside) done.figures.push(beside);
    this.scores = [...this.scores.filter(({ step }) => step !== done.step), done].sort((a, b) => a.step - b.step);
    await session.keepScores();
    return done;
  }
}
