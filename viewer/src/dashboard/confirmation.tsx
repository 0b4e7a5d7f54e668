// The dialog that confirms an action before it runs.

import { useEffect, useRef } from "preact/hooks";
import { state } from "./state";
import { classes } from "../app/ui/classes";
import ui from "../app/ui/shared.module.css";
import shared from "./dashboard.module.css";
import style from "./confirmation.module.css";

export function Confirmation() {
  const dialog = useRef<HTMLDialogElement>(null);
  const asked = state.question.value;
  useEffect(() => {
    if (asked) dialog.current!.showModal();
    else dialog.current!.close();
  }, [asked]);
  const close = () => (state.question.value = null);
  return (
    <dialog ref={dialog} class={classes(ui.panel, style.dialog)} aria-labelledby="question" onClose={close}>
      <h2 id="question">{asked?.title}</h2>
      <p>{asked?.text}</p>
      <div class={ui.buttons}>
        <button autoFocus onClick={close}>
          Cancel
        </button>
        <button
          class={classes(shared.danger, style.act)}
          onClick={() => {
            void asked?.run();
            close();
          }}
        >
          {asked?.action}
        </button>
      </div>
    </dialog>
  );
}
