// The text field in which the user writes messages to the model.

import { SendHorizontal, Square } from "lucide";
import { createRef, type RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../../ui/icon";
import { isWide } from "../../ui/tools";
import ui from "../../ui/shared.module.css";
import { chat } from "./store";
import style from "./style.module.css";

const message = createRef<HTMLTextAreaElement>();

/** Focuses the field for a message, except on touch screens, where the focus opens a keyboard. */
export function focusMessage(): void {
  if (matchMedia("(hover: hover)").matches) message.current?.focus({ preventScroll: true });
}

interface FieldProps {
  label: string;
  value: string;
  placeholder?: string;
  focused?: boolean;
  onInput: (text: string) => void;
  onEnter: () => void;
  onEscape?: () => void;
  self?: RefObject<HTMLTextAreaElement | null>;
}

/** Shows a text field that grows with its text. Enter sends the text; Shift-Enter begins a new line. */
export function Field({ label, value, placeholder = "", focused = false, onInput, onEnter, ...more }: FieldProps) {
  const own = useRef<HTMLTextAreaElement>(null);
  const { self = own, onEscape } = more;
  useLayoutEffect(() => {
    const { current } = self;
    if (!current) return;
    current.style.height = "auto";
    current.style.height = `${current.scrollHeight + 2}px`;
  }, [value]);
  useLayoutEffect(() => {
    if (focused) self.current?.focus();
  }, []);
  return (
    <textarea
      ref={self}
      rows={1}
      aria-label={label}
      placeholder={placeholder}
      value={value}
      onInput={(event) => onInput(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.isComposing) return; // the key belongs to an input method (IME): Enter confirms a word
        if (event.key === "Escape" && onEscape) {
          event.preventDefault(); // otherwise, the view would also stop the answer
          onEscape();
        }
        if (event.key !== "Enter" || event.shiftKey) return;
        event.preventDefault();
        onEnter();
      }}
    />
  );
}

/** Shows the field for a message, fixed at the bottom of the window. */
export function Composer() {
  const answering = chat.answering.value;
  const { tokens, limit } = chat.context.value;
  const notice = chat.status.value || chat.warning.value;
  const send = () => void chat.send(chat.draft.value);
  const stop = () => {
    void chat.stop();
    focusMessage(); // the focused Stop button becomes the Send button, which is disabled and cannot keep the focus
  };
  return (
    <form
      class={style.composer}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <p class={style.status} role="status">
        {notice}
      </p>
      <div class={style.row}>
        <Field
          label="Message"
          placeholder="Message"
          value={chat.draft.value}
          onInput={(text) => (chat.draft.value = text)}
          onEnter={send}
          focused={isWide()}
          self={message}
        />
        {answering ? (
          <button type="button" class={ui.primary} onClick={stop}>
            <Icon of={Square} /> Stop
          </button>
        ) : (
          <button class={ui.primary} disabled={!chat.draft.value.trim()}>
            <Icon of={SendHorizontal} /> Send
          </button>
        )}
      </div>
      <small class={ui.dim}>
        {answering ? "Escape stops the answer" : "Enter sends, Shift-Enter begins a new line"}
        {tokens > 0 && ` · ${tokens} of ${limit} tokens of the context`}
      </small>
    </form>
  );
}
