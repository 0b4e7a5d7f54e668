// The list of conversations that this browser stores, and the settings of the chat.

import { Download, FolderOpen, Plus, Trash2 } from "lucide";
import { useSignal } from "@preact/signals";
import type { TargetedEvent } from "preact";
import { useRef } from "preact/hooks";
import { engine } from "../../stores/model";
import { settings } from "../../stores/settings";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import { NumberField } from "../../ui/number";
import { isWide, offerFile } from "../../ui/tools";
import ui from "../../ui/shared.module.css";
import { Sliders } from "../text";
import { focusMessage } from "./composer";
import { savedText } from "./saved";
import { chat } from "./store";
import style from "./style.module.css";

/** Scrolls to the content of a `<details>` element when it is opened on a phone: the composer would cover it. */
function reveal({ currentTarget: details }: TargetedEvent<HTMLDetailsElement>): void {
  if (details.open && !isWide()) details.scrollIntoView({ block: "nearest" });
}

export function List() {
  const { all, problem } = chat.conversations;
  const open = useRef(isWide()).current;
  const input = useRef<HTMLInputElement>(null);
  const then = (work: Promise<void>) => void work.then(focusMessage);
  return (
    <details class={style.list} open={open} onToggle={reveal}>
      <summary>Conversations</summary>
      <div class={ui.buttons}>
        <button onClick={() => then(chat.begin())}>
          <Icon of={Plus} /> New chat
        </button>
        <button class={ui.quiet} title="Open a saved conversation" onClick={() => input.current?.click()}>
          <Icon of={FolderOpen} /> Open
        </button>
        {chat.current.value.messages.length > 0 && (
          <button class={ui.quiet} title="Save the conversation as a JSON file" onClick={() => save()}>
            <Icon of={Download} /> Save
          </button>
        )}
        <input
          ref={input}
          type="file"
          accept=".json,application/json"
          multiple
          hidden
          aria-label="Saved conversations"
          onChange={(event) => {
            void chat.openFiles(Array.from(event.currentTarget.files ?? []));
            event.currentTarget.value = "";
          }}
        />
      </div>
      <ul>
        {all.value.map((each) => (
          <li key={each.id}>
            <button
              class={classes(ui.link, style.pick)}
              aria-current={each.id === chat.current.value.id ? "true" : undefined}
              onClick={() => void chat.select(each)}
            >
              {each.title}
            </button>
            <Delete title={each.title} onSure={() => then(chat.remove(each))} />
          </li>
        ))}
      </ul>
      <p class={ui.dim}>
        {problem.value || "Stored in this browser only. A saved conversation can also be dropped on this page."}
      </p>
    </details>
  );
}

/** Shows a button that deletes a conversation when it is clicked a second time. */
function Delete({ title, onSure }: { title: string; onSure: () => void }) {
  const asked = useSignal(false);
  return (
    <button
      class={classes(style.action, asked.value && style.sure)}
      aria-label={asked.value ? `Really delete “${title}”` : `Delete “${title}”`}
      title="Delete"
      onBlur={() => (asked.value = false)}
      onClick={() => (asked.value ? onSure() : (asked.value = true))}
    >
      {asked.value ? "Delete?" : <Icon of={Trash2} />}
    </button>
  );
}

/** Offers the conversation as a JSON file in the format that `glgpt chat` reads and writes. */
function save(): void {
  offerFile(savedText(engine().model.manifest.model, chat.messages), "application/json", "conversation.json");
}

export function Settings() {
  const open = useRef(isWide()).current;
  return (
    <details class={ui.controls} open={open} onToggle={reveal}>
      <summary>Settings</summary>
      <label class={ui.prompt}>
        <span>System prompt</span>
        <textarea
          rows={3}
          placeholder="How the model should answer"
          value={chat.system.value}
          onInput={(event) => void chat.setSystem(event.currentTarget.value)}
        />
      </label>
      <Sliders />
      <div class={ui.fields}>
        <NumberField
          label="Longest answer"
          of={chat.length}
          min={1}
          max={4096}
          step={1}
          hint="Maximum number of tokens of an answer"
        />
        <NumberField
          label="Seed"
          of={settings.seed}
          min={0}
          max={Number.MAX_SAFE_INTEGER}
          step={1}
          hint="The same seed and settings give the same answer"
        />
      </div>
      <label
        class={`${ui.inline} ${style.guess}`}
        title="Checks several guesses in one step. The answer is the same, but faster if it repeats the conversation."
      >
        <input
          type="checkbox"
          checked={settings.speculate.value}
          onChange={(event) => (settings.speculate.value = event.currentTarget.checked)}
        />
        Guess tokens from the conversation
      </label>
    </details>
  );
}
