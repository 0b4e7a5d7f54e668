// The Chat view: a conversation with the model, whose answers open to their tokens.

import { Check, Copy, Download, MessageSquare, Pencil, Plus, RefreshCw, SendHorizontal, Square, Trash2 } from "lucide";
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { ChatMessage } from "../../../runtime/chat/template";
import { generation } from "../../stores/generation";
import { engine } from "../../stores/model";
import { route, type View, type ViewName } from "../../stores/route";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import { NumberField } from "../../ui/number";
import { isWide, offerFile, useCopy } from "../../ui/tools";
import ui from "../../ui/shared.module.css";
import { Sliders, TokenText } from "../text";
import { Markdown } from "./markdown";
import { chat, params } from "./store";
import style from "./style.module.css";

const VERSION = 1; // of a saved conversation; the same as on the desktop
const END = 60; // pixels from the end of the page within which it follows an answer
const INSIDE: readonly [ViewName, string][] = [
  ["attention", "Attention"],
  ["blocks", "Blocks"],
  ["passes", "Passes"],
];

function ChatView() {
  return (
    <section class={style.chat} aria-label="Chat">
      <div class={style.main}>
        <Messages />
        <Composer />
      </div>
      <aside class={style.side}>
        <List />
        <Settings />
      </aside>
    </section>
  );
}

/** The messages of the conversation, or what a visitor may ask. */
function Messages() {
  const { messages } = chat.current.value;
  const end = useRef<HTMLDivElement>(null);
  const follows = useRef(true); // scrolls with the answer, unless the reader has scrolled up
  const length = generation.tokens.value.length;
  useEffect(() => {
    const scrolled = () => (follows.current = document.documentElement.scrollHeight - scrollY - innerHeight < END);
    addEventListener("scroll", scrolled, { passive: true });
    return () => removeEventListener("scroll", scrolled);
  }, []);
  useLayoutEffect(() => {
    if (chat.answering.value && follows.current) end.current?.scrollIntoView({ block: "end" });
  }, [length, messages.length]);
  if (!messages.length) return <Welcome />;
  return (
    <>
      <ol class={style.messages} aria-label="Messages">
        {messages.map((message, i) => (
          <li key={i} class={style[message.role]}>
            {message.role === "user" ? <Question message={message} at={i} /> : <AnswerOf message={message} at={i} />}
          </li>
        ))}
      </ol>
      <div class={style.end} ref={end} />
    </>
  );
}

function Welcome() {
  const { model, prompts, split } = engine().model.manifest;
  return (
    <div class={style.welcome}>
      <h2>Chat with {model}</h2>
      <p class={ui.dim}>
        {split
          ? "A part of the model runs on a server, which could read what you type."
          : "The model runs in your browser: nothing you type leaves this page. Every answer opens to its tokens, with their alternatives and what they attend to."}
      </p>
      <div class={ui.buttons} role="group" aria-label="Questions to try">
        {prompts.map(({ title, text }) => (
          <button key={text} title={text} onClick={() => void chat.send(text)}>
            {title}
          </button>
        ))}
      </div>
    </div>
  );
}

/** A message of the user, which can be edited. */
function Question({ message, at }: { message: ChatMessage; at: number }) {
  const text = useSignal(message.content);
  if (chat.editing.value === at) {
    const save = () => text.value.trim() && void chat.edit(at, text.value);
    return (
      <form
        class={style.edit}
        onSubmit={(event) => {
          event.preventDefault();
          save();
        }}
      >
        <Field
          label="Edit the message"
          value={text.value}
          onInput={(value) => (text.value = value)}
          onEnter={save}
          onEscape={() => (chat.editing.value = null)}
          focused
        />
        <div class={ui.buttons}>
          <button class={ui.primary} disabled={!text.value.trim()}>
            Send again
          </button>
          <button type="button" onClick={() => (chat.editing.value = null)}>
            Cancel
          </button>
          <small class={ui.dim}>This replaces the messages after it.</small>
        </div>
      </form>
    );
  }
  return (
    <>
      <div class={style.bubble} data-part="message">
        {message.content}
      </div>
      <div class={style.actions}>
        <CopyButton text={message.content} />
        <button
          class={style.action}
          aria-label="Edit"
          title="Edit the message and answer it again"
          onClick={() => {
            text.value = message.content;
            chat.editing.value = at;
          }}
        >
          <Icon of={Pencil} />
        </button>
      </div>
    </>
  );
}

/** An answer: formatted, or as tokens if the text of the other views holds it. */
function AnswerOf({ message, at }: { message: ChatMessage; at: number }) {
  const written = chat.written.value?.message === at ? chat.written.value : null;
  const last = at === chat.current.value.messages.length - 1;
  const running = last && chat.answering.value;
  const { speeds } = generation;
  return (
    <>
      <div class={style.bubble} data-part="message" aria-busy={running}>
        {!message.content && running ? (
          <span class={style.waiting}>{written ? "Reading the conversation…" : "Preparing…"}</span>
        ) : written && chat.asTokens.value ? (
          <TokenText
            tokens={written.tokens}
            from={written.from}
            onContinue={(position, instead) => void generation.go(chat.length.value, position, instead)}
            footer={<Inside />}
          />
        ) : (
          <Markdown text={message.content} />
        )}
      </div>
      <div class={style.actions}>
        <CopyButton text={message.content} />
        {last && !running && (
          <button
            class={style.action}
            aria-label="Regenerate"
            title="Regenerate the answer with another seed"
            onClick={() => void chat.regenerate()}
          >
            <Icon of={RefreshCw} />
          </button>
        )}
        {written && (
          <button
            class={classes(style.action, style.toggle)}
            aria-pressed={chat.asTokens.value}
            title="Shade the tokens by surprise and show their alternatives"
            onClick={() => (chat.asTokens.value = !chat.asTokens.value)}
          >
            Tokens
          </button>
        )}
        {written && !running && <Inside />}
        {written && !running && speeds.value && (
          <small class={ui.dim}>
            {written.tokens.length} tokens
            {speeds.value.decode ? `, ${speeds.value.decode.toFixed(1)} tokens/s` : ""}
          </small>
        )}
      </div>
    </>
  );
}

/** Opens the other views at the chosen token of the answer. */
function Inside() {
  const { manifest } = engine().model;
  return (
    <span class={style.inside} role="group" aria-label="Look inside">
      {INSIDE.map(([name, title]) => (
        <button
          key={name}
          class={ui.link}
          title={`${title} of this answer, in ${manifest.model}`}
          onClick={() => route.show(name)}
        >
          {title}
        </button>
      ))}
    </span>
  );
}

function CopyButton({ text }: { text: string }) {
  const { copied, copy } = useCopy(text);
  if (!copy) return null;
  return (
    <button class={style.action} aria-label={copied ? "Copied" : "Copy"} title="Copy" onClick={copy}>
      <Icon of={copied ? Check : Copy} />
    </button>
  );
}

interface FieldProps {
  label: string;
  value: string;
  placeholder?: string;
  focused?: boolean;
  onInput: (text: string) => void;
  onEnter: () => void;
  onEscape?: () => void;
}

/** A text field that grows with its text. Enter sends it, Shift-Enter begins a new line. */
function Field({ label, value, placeholder = "", focused = false, onInput, onEnter, onEscape }: FieldProps) {
  const self = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const { current } = self;
    if (!current) return;
    current.style.height = "auto";
    current.style.height = `${current.scrollHeight + 2}px`;
  }, [value]);
  useEffect(() => {
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
        if (event.isComposing) return; // Enter selects a word of an input method
        if (event.key === "Escape") onEscape?.();
        if (event.key !== "Enter" || event.shiftKey) return;
        event.preventDefault();
        onEnter();
      }}
    />
  );
}

/** The field for a message, fixed at the end of the window. */
function Composer() {
  const answering = chat.answering.value;
  const { tokens, limit } = chat.context.value;
  const send = () => void chat.send(chat.draft.value);
  return (
    <form
      class={style.composer}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {chat.status.value && (
        <p class={style.status} role="status">
          {chat.status.value}
        </p>
      )}
      <div class={style.row}>
        <Field
          label="Message"
          placeholder="Message"
          value={chat.draft.value}
          onInput={(text) => (chat.draft.value = text)}
          onEnter={send}
          focused={isWide()}
        />
        {answering ? (
          <button type="button" class={ui.primary} onClick={() => void chat.stop()}>
            <Icon of={Square} /> Stop
          </button>
        ) : (
          <button class={ui.primary} disabled={!chat.draft.value.trim()}>
            <Icon of={SendHorizontal} /> Send
          </button>
        )}
      </div>
      <small class={ui.dim}>
        Enter sends, Shift-Enter begins a new line
        {tokens > 0 && ` · ${tokens} of ${limit} tokens of the context`}
      </small>
    </form>
  );
}

/** The stored conversations. */
function List() {
  const { all, problem } = chat.conversations;
  const open = useRef(isWide()).current;
  return (
    <details class={style.list} open={open}>
      <summary>Conversations</summary>
      <div class={ui.buttons}>
        <button onClick={() => void chat.begin()}>
          <Icon of={Plus} /> New chat
        </button>
        {chat.current.value.messages.length > 0 && (
          <button class={ui.quiet} title="Save the conversation as a JSON file" onClick={() => save()}>
            <Icon of={Download} /> Save
          </button>
        )}
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
            <button
              class={style.action}
              aria-label={`Delete “${each.title}”`}
              title="Delete"
              onClick={() => void chat.remove(each)}
            >
              <Icon of={Trash2} />
            </button>
          </li>
        ))}
      </ul>
      <p class={ui.dim}>{problem.value || "Stored in this browser only."}</p>
    </details>
  );
}

/** Saves the conversation in the format of `glgpt chat`. */
function save(): void {
  const { model } = engine().model.manifest;
  const document = { version: VERSION, model, messages: chat.messages };
  offerFile(`${JSON.stringify(document, null, 2)}\n`, "application/json", "conversation.json");
}

function Settings() {
  const open = useRef(isWide()).current;
  const { settings } = generation;
  return (
    <details class={ui.controls} open={open}>
      <summary>Settings</summary>
      <label class={ui.prompt}>
        <span>System prompt</span>
        <textarea
          rows={3}
          placeholder="How the model should answer"
          value={chat.system.value}
          onInput={(event) => (chat.system.value = event.currentTarget.value)}
        />
      </label>
      <Sliders />
      <div class={ui.fields}>
        <NumberField
          label="Answer"
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
        class={ui.inline}
        title="Checks several guesses in one step. The answer is the same, sooner where it repeats the conversation."
      >
        <input
          type="checkbox"
          checked={generation.speculate.value}
          onChange={(event) => (generation.speculate.value = event.currentTarget.checked)}
        />
        Guess tokens from the conversation
      </label>
    </details>
  );
}

declare module "../../stores/route" {
  interface ViewNames {
    chat: true;
  }
}

export const view: View<"chat"> = {
  name: "chat",
  title: "Chat",
  group: "use",
  icon: MessageSquare,
  params,
  component: ChatView,
  available: ({ chat_template }) => Boolean(chat_template),
  stays: true,
};
