// The view that is shown, and the types of views and of other parts of the page.

import { signal } from "@preact/signals";
import type { IconNode } from "lucide";
import type { ComponentType } from "preact";
import type { Manifest } from "../../runtime/engine/manifest";
import type { AnyParam } from "./link";

/** The names of the views; the module of each view adds its own. */
// eslint-disable-next-line @typescript-eslint/no-empty-object-type -- filled by the features
export interface ViewNames {}
export type ViewName = keyof ViewNames;

/** The groups of tabs, in their order, with their titles. */
export const GROUPS = { use: "Use and learn", inspect: "Inspect" } as const;

/** A tab. */
export interface View<Name extends ViewName = ViewName> {
  name: Name;
  title: string;
  group: keyof typeof GROUPS;
  icon: IconNode;
  /** The settings that a link to this view carries. */
  params: readonly AnyParam[];
  component: ComponentType;
  /** The part of the view that is shown while the model is loading, if the page has a recorded generation. */
  recorded?: ComponentType;
  /** Replaces `recorded` in a view that cannot show a recorded generation. Without either, grey shapes are shown. */
  coming?: ComponentType;
  /** Returns true if this model has the view; by default, every model has it. */
  available?: (manifest: Manifest) => boolean;
  /** Restricts the view's selection to what the current model has. */
  fit?: () => void;
  /** True if the view shows the alternatives of the chosen token. They are computed only for such a view. */
  alternatives?: boolean;
  /** True if a phone shows the page's description of the model above the view. */
  introduced?: boolean;
  /** The target of the keyboard's skip link; by default, the view. */
  skipTo?: { title: string; selector: string };
  /** True if the view keeps its state when another model is selected; by default, the view starts again. */
  stays?: boolean;
}

/** The parts that a feature without a tab adds to the page's frame. Each part also decides when it is shown. */
export interface Addition {
  /** The settings that the links to all views carry. */
  params?: readonly AnyParam[];
  /** In the header, after the page's name. */
  header?: ComponentType;
  /** In the header, at the end of the description of the model. */
  about?: ComponentType;
  /** Next to the tabs. */
  corner?: ComponentType;
  /** Between the tabs and the view. */
  strip?: ComponentType;
  /** Over the bottom of the window. */
  dock?: ComponentType;
  /** Instead of the view while the visitor chooses a model. */
  choice?: ComponentType;
}

const OWN_ENTRY = "glgpt"; // marks history entries that this page created
const DRAWN_MS = 80; // ms until a view that was opened is rendered

class RouteStore {
  /** The name of the view that is shown; null until the address is read. */
  readonly view = signal<ViewName | null>(null);
  /** The keys of the last link that belong to no view and to no setting. */
  readonly unknown = signal<readonly string[]>([]);
  /** The link that was read last. */
  readonly link = signal(new URLSearchParams());

  /** Reads the address. */
  read(): URLSearchParams {
    return (this.link.value = new URLSearchParams(location.hash.slice(1)));
  }

  /** Writes the address of the current history entry. */
  write(fields: [string, string][]): void {
    history.replaceState(OWN_ENTRY, "", `#${new URLSearchParams(fields)}`);
  }

  /** Opens a view as a new history entry, so that the browser's back button returns to the previous view. */
  show(name: ViewName): void {
    if (name !== this.view.value) history.pushState(OWN_ENTRY, "");
    this.view.value = name;
    scrollTo({ top: 0 });
  }

  /** Opens a view and scrolls to a part of it once it is rendered. `nearest` scrolls only as far as needed. */
  showAt(name: ViewName, part: string, block: ScrollLogicalPosition = "start"): void {
    this.show(name);
    setTimeout(() => document.querySelector(part)?.scrollIntoView({ block }), DRAWN_MS);
  }
}

export const route = new RouteStore();
