// The views, in the order of their tabs in each group; the additions of other features; the settings in all links.

import type { Addition, View } from "../stores/route";
import { TEXT_PARAMS } from "../stores/settings";
import { addition as federated } from "./federated/panel";
import { addition as interventions } from "./interventions/bar";
import { addition as models } from "./models/switch";
import { addition as open } from "./open/screen";
import { addition as split } from "./split/strip";
import { addition as tour } from "./tour/tour";
import { view as attention } from "./attention/view";
import { view as blocks } from "./blocks/view";
import { view as chat } from "./chat/view";
import { view as device } from "./device/view";
import { view as passes } from "./passes/view";
import { view as text } from "./text/view";
import { view as textures } from "./textures/view";
import { view as train } from "./train/view";

export const VIEWS: readonly View[] = [chat, text, attention, blocks, train, textures, passes, device];

/** Additions to the page's frame. Their components in the same place are shown in this order. */
export const ADDITIONS: readonly Addition[] = [models, open, split, federated, interventions, tour];

/** The settings that the links to all views carry. */
export const PARAMS = [...TEXT_PARAMS, ...ADDITIONS.flatMap(({ params }) => params ?? [])];
