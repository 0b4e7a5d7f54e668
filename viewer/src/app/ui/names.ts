// Readable names of passes, of parts of a model, and of interventions.

import { headIn, parseIntervention } from "../../runtime/engine/interventions";
import { joined, type Names } from "../../runtime/engine/names";

/** Returns what a pass does, in one or two words. */
export function caption(names: Names, label: string): string {
  return (
    names.title(label) ||
    joined(label)
      .map((name) => name.replace(/^.*\./, ""))
      .join(", ")
  );
}

/** Describes an intervention in words. */
export function interventionName(names: Names, change: string): string {
  const { part, factor, steering, patch, pattern } = parseIntervention(change);
  const name = partName(names, part);
  if (pattern)
    return `${name} attends to ${pattern === "uniform" ? "all earlier tokens equally" : `the ${pattern} token`}`;
  if (patch) return `${name} at token ${patch.position} as in “${patch.text}”`;
  if (steering) {
    const away = steering.away && ` from “${steering.away}”`;
    return `${name}${away} towards “${steering.towards}” × ${factor}`;
  }
  return `${name}${factor ? ` × ${factor}` : ""}`;
}

function partName(names: Names, part: string): string {
  const [whole, found] = [names.whole(part), headIn(names, part)];
  if (whole >= 0) return `block ${whole}`;
  const block = names.block(part);
  return found ? `head ${found.head} of block ${block}` : `${caption(names, part)} of block ${block}`;
}
