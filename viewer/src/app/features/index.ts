// The views, in the order of their tabs in each group, and what a link carries besides the text and a view's selection.

import { INTERVENTION_PARAMS } from "../stores/interventions";
import { TEXT_PARAMS } from "../stores/generation";
import type { View } from "../stores/route";
import { tour } from "./tour/store";
import { view as attention } from "./attention/view";
import { view as blocks } from "./blocks/view";
import { view as chat } from "./chat/view";
import { view as device } from "./device/view";
import { view as passes } from "./passes/view";
import { view as text } from "./text/view";
import { view as textures } from "./textures/view";
import { view as train } from "./train/view";

export const VIEWS: readonly View[] = [chat, text, attention, blocks, train, textures, passes, device];

/** The settings that the links to all views carry. */
export const PARAMS = [...TEXT_PARAMS, ...tour.params, ...INTERVENTION_PARAMS];

/** Keys of links that other pages of an export use. */
export const OTHER_KEYS = ["join", "boundary", "server"];
