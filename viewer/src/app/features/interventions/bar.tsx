// The bar at the bottom of every view. It lists the active interventions, which change the model, and quotes the first
// difference that they make to the text.

import { Scissors, X } from "lucide";
import { useEffect } from "preact/hooks";
import { parseIntervention, scales } from "../../../runtime/engine/interventions";
import { generation, type Tok } from "../../stores/generation";
import { INTERVENTION_PARAMS, interventions } from "../../stores/interventions";
import { route, type Addition } from "../../stores/route";
import { Dismiss } from "../../ui/dismiss";
import { Icon } from "../../ui/icon";
import ui from "../../ui/shared.module.css";
import { bothWritten, parting, Verdict } from "./compared";
import { named, Strength } from "./controls";
import style from "./style.module.css";

const SOME = 8; // number of tokens quoted from each text, from the first difference on
const SOON = 300; // ms to wait before computing the effect of a change, so that the view draws first

/**
 * Computes how the change affects the probability of the original text, once the texts of the original and of the
 * changed model are complete. Only the bar calls this hook, so that the computation runs once.
 */
function useWeighed(whole: readonly Tok[] | null): void {
  const still = bothWritten();
  useEffect(() => {
    if (!still || !whole || !interventions.applied.value || interventions.shifts.value) return;
    const timer = setTimeout(() => void interventions.weighShifts(), SOON);
    return () => clearTimeout(timer);
  }, [still, whole, interventions.applied.value, route.view.value]);
}

/**
 * Quotes the first difference between the texts before and after the change. In the Text view, quotes nothing, because
 * that view shows both texts.
 */
function Parting() {
  const [whole, now] = [interventions.before.value, generation.tokens.value];
  useWeighed(whole);
  if (!whole || !interventions.applied.value || route.view.value === "text") return null;
  const differsAt = parting(whole, now);
  let word = differsAt; // first token of the word that contains the first difference
  const inside = (at: number) => [whole[at]!, now[at]!].some(({ text, given }) => !given && !/^\s/.test(text));
  while (word > 0 && inside(word)) word--;
  const after = (list: readonly Tok[]) =>
    list
      .slice(word, differsAt + SOME)
      .map((tok) => tok.text)
      .join("")
      .replace(/\s+/g, " ")
      .trim();
  return (
    <>
      {differsAt >= 0 && (
        <span class={style.parting}>
          the text was “{after(whole)} …” and is now “{after(now)} …”.
        </span>
      )}
      {differsAt < 0 && !generation.running.value && <span>the text is the same.</span>}
      {interventions.shifts.value && <Verdict whole={whole} differs={false} />}
      <button onClick={() => route.showAt("text", "[data-part=compared]")}>Compare the texts</button>
    </>
  );
}

function InterventionBar() {
  const parts = interventions.parts.value;
  if (!parts.length && !interventions.status.value) return null;
  return (
    <div class={style.bar} data-interventions="" role="status">
      <span>
        {interventions.status.value || (interventions.applied.value ? "Changed model:" : "Changed after this text:")}
      </span>
      {interventions.problem.value && <Dismiss message={interventions.problem} />}
      {parts.map((part, i) => (
        // If the key contained the strength, a change of the strength would render a new menu, without the focus.
        <span key={i} class={style.change}>
          <button class={ui.quiet} title="Undo this change" onClick={() => void interventions.toggle(part)}>
            {scales(part) && parseIntervention(part).factor === 0 && <Icon of={Scissors} />} {named(part)}{" "}
            <Icon of={X} />
          </button>
          {!parseIntervention(part).patch && !parseIntervention(part).pattern && <Strength of={part} />}
        </span>
      ))}
      {parts.length > 1 && (
        <button class={ui.quiet} onClick={() => void interventions.set([])}>
          Undo all
        </button>
      )}
      <Parting />
    </div>
  );
}

export const addition: Addition = { params: INTERVENTION_PARAMS, dock: InterventionBar };
