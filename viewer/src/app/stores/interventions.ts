// Interventions on the model, the unchanged model's text, and the effect of the interventions on that text.

import { batch, computed, signal } from "@preact/signals";
import { checkIntervention, parseIntervention } from "../../runtime/engine/interventions";
import { reason } from "../../runtime/gl/errors";
import { generation, type Tok } from "./generation";
import { param } from "./link";
import { engine, models } from "./model";
import { route } from "./route";
import { settings } from "./settings";

class InterventionStore {
  /** Requested interventions (see `Glgpt.intervene`), and those that the engine has applied. */
  readonly parts = signal<readonly string[]>([]);
  readonly applied = computed(() => models.ready?.interventions.parts.join() ?? "");
  /** The unchanged model's text; null: there is none, or the current text has another prompt or settings. */
  readonly before = computed(() => {
    const { value: found } = this.original;
    if (found?.sampling !== JSON.stringify(settings.sampling())) return null;
    return given(found.tokens) === given(generation.tokens.value) ? found.tokens : null;
  });
  private readonly original = signal<{ tokens: readonly Tok[]; sampling: string } | null>(null);
  /** True while a change of the model is being applied. */
  readonly busy = signal(false);
  /** The error message of the last change; "": it succeeded, or the visitor has dismissed the message. */
  readonly problem = signal("");
  /** The progress of the change that is being applied, or the last change's error message. */
  readonly status = computed(() => (this.busy.value ? models.compilingOr("Changing the model…") : this.problem.value));
  /**
   * For each token of the original text, by how many nats the interventions change its log-probability (NaN in the
   * prompt); null: not computed yet.
   */
  readonly shifts = signal<readonly number[] | null>(null);

  /** Adds or removes an intervention, and generates the text again with the same seed, to compare with the original. */
  async toggle(part: string): Promise<void> {
    const { value } = this.parts;
    await this.set(value.includes(part) ? value.filter((p) => p !== part) : [...value, part]);
  }

  /** Replaces all interventions; with `again`, generates the text again. A later call cancels a waiting one. */
  async set(parts: readonly string[], again = true): Promise<void> {
    this.parts.value = parts; // set before any await, because `toggle` adds to these parts
    const replaced = () => this.parts.value !== parts;
    await generation.stop();
    if (replaced()) return;
    if (parts.length && !this.applied.value)
      this.original.value = { tokens: generation.tokens.value, sampling: JSON.stringify(settings.sampling()) };
    batch(() => {
      this.problem.value = "";
      this.busy.value = parts.length > 0;
    });
    let problem = "";
    await engine()
      .intervene(parts)
      .catch((error: unknown) => (problem = reason(error)));
    if (replaced()) return;
    if (problem) this.parts.value = engine().model.interventions.parts;
    this.problem.value = problem;
    this.busy.value = false;
    if (!this.applied.value) this.original.value = null;
    this.shifts.value = null;
    if (again) await generation.again();
  }

  /** Drops all interventions of a link if one of them changes a part that the model does not have. */
  fit(): void {
    const { manifest } = engine().model;
    this.problem.value = "";
    try {
      for (const part of this.parts.value) checkIntervention(manifest, parseIntervention(part));
    } catch (error) {
      [this.parts.value, this.problem.value] = [[], reason(error)];
    }
  }

  /** Generates the text of the link. If the link has interventions, first generates the unchanged model's text. */
  async begin(): Promise<void> {
    const { parts, problem } = this;
    const [requested, refused] = [parts.value, problem.value];
    if (this.applied.value || this.busy.value) await this.set([], false); // also undoes a change in progress
    problem.value = refused;
    const { value: first } = this.parts;
    if (!generation.keepRecorded()) await generation.write();
    // skipped if the visitor changed the model or opened another link while the text was written
    if (requested.length && this.parts.value === first) await this.set(requested);
  }

  /** Shows the interventions of a model after a switch to this model. */
  reset(): void {
    const { parts } = engine().model.interventions;
    // cancels a requested change that is not applied yet, which would otherwise be applied to the new model
    if (this.busy.value) void engine().intervene(parts);
    batch(() => {
      this.parts.value = parts;
      this.busy.value = false;
      this.problem.value = "";
      this.original.value = null;
    });
  }

  /** Computes `shifts`: scores the original text with the changed model. A new change, text or view aborts scoring. */
  async weighShifts(): Promise<void> {
    const [whole, of, seen] = [this.before.value, this.applied.value, route.view.value];
    const first = whole?.findIndex((tok) => !tok.given && tok.p !== undefined) ?? -1;
    if (!whole || first < 1 || generation.running.value) return;
    const ids = whole.map((tok) => tok.id);
    const going = () =>
      this.applied.value === of &&
      this.before.value === whole &&
      !generation.running.value &&
      route.view.value === seen;
    const found = await engine().logProbabilities(ids, first, going);
    if (going())
      this.shifts.value = whole.map((tok, i) => (i < first ? NaN : found[i - first]! - Math.log(tok.p ?? NaN)));
  }
}

/** Returns the token ids of a text's prompt as a string, for comparisons. */
const given = (tokens: readonly Tok[]) => String(tokens.filter((tok) => tok.given).map(({ id }) => id));

export const interventions = new InterventionStore();

function isIntervention(text: string): boolean {
  try {
    return Boolean(parseIntervention(text).part);
  } catch {
    return false; // a link may contain any text
  }
}

export const INTERVENTION_PARAMS = [
  param<readonly string[]>({
    key: "interventions",
    signal: interventions.parts,
    parse: (text) => text.split(",").filter(isIntervention),
    format: (parts) => parts.join() || null,
    default: () => [],
    history: false,
  }),
];
