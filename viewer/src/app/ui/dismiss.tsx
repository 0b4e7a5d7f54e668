// A button that removes a message.

import type { Signal } from "@preact/signals";
import { X } from "lucide";
import { Icon } from "./icon";
import ui from "./shared.module.css";

/** Shows a button that removes the message of this signal. */
export function Dismiss({ message }: { message: Signal<string> }) {
  return (
    <button class={ui.quiet} aria-label="Dismiss the message" title="Dismiss" onClick={() => (message.value = "")}>
      <Icon of={X} />
    </button>
  );
}
