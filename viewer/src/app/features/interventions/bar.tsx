// The bar over the bottom of every view: the active changes, and the first difference that they make to the text.

import { Scissors, X } from "lucide";
import { useEffect } from "preact/hooks";
import { parseIntervention, scales } from "../../../runtime/engine/interventions";
import { generation, type Tok } from "../../stores/generation";
import { INTERVENTION_PARAMS, interventions } from "../../stores/interventions";
import { route, type Addition } from "../../stores/route";
import { Icon } from "../../ui/icon";
import ui from "../../ui/shared.module.css";
import { bothWritten, parting, Verdict } from "./compared";
import { named, Strength } from "./controls";
import style from "./style.module.css";

const SOME = 8; // tokens of each text that the bar quotes
const SOON = 300; // ms before the effect of a change is computed, so that the view draws first

/** Starts computing a change's effect when both texts are complete. Only the bar uses it, so that it runs once. */
function useWeighed(whole: readonly Tok[] | null): void {
  const still = bothWritten();
  useEffect(() => {
    if (!still || !whole || !interventions.applied.value || interventions.shifts.value) return;
    const timer = setTimeout(() => void interventions.weighShifts(), SOON);
    return () => clearTimeout(timer);
  }, [still, whole, interventions.applied.value, route.view.value]);
}

/** Quotes the first difference between the texts before and after the change, on views that do not show the texts. */
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

/** Lists the active changes. */
function InterventionBar() {
  const parts = interventions.parts.value;
  if (!parts.length && !interventions.status.value) return null;
  return (
    <div class={style.bar} data-interventions="" role="status">
      <span>{interventions.status.value || "Changed model:"}</span>
      {parts.map((part) => (
        <span key={part} class={style.change}>
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
