// The Chat view: a conversation with the model. Each answer can be opened to show its tokens.

import { Check, Copy, MessageSquare, Pencil, RefreshCw, SendHorizontal } from "lucide";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { ChatMessage } from "../../../runtime/chat/template";
import type { Manifest } from "../../../runtime/engine/manifest";
import { generation } from "../../stores/generation";
import { engine } from "../../stores/model";
import { route, type View, type ViewName } from "../../stores/route";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import { useCopy, useDrop } from "../../ui/tools";
import ui from "../../ui/shared.module.css";
import { TokenText } from "../text";
import { Composer, Field, focusMessage } from "./composer";
import { Markdown } from "./markdown";
import { List, Settings } from "./side";
import { chat, params } from "./store";
import style from "./style.module.css";

const END = 60; // the page scrolls with an answer while fewer than this many pixels of the page are below the window
const INSIDE: readonly [ViewName, string][] = [
  ["attention", "Attention"],
  ["blocks", "Blocks"],
  ["passes", "Passes"],
];

function ChatView() {
  const over = useDrop((files) => void chat.openFiles(files));
  useEffect(() => {
    const escape = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
      if (generation.chosen.value !== null) generation.chosen.value = null;
      else void chat.stop();
    };
    addEventListener("keydown", escape);
    return () => removeEventListener("keydown", escape);
  }, []);
  return (
    <section class={classes(style.chat, over.value && style.over)} aria-label="Chat">
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

/** Shows the messages of the conversation. Before the first message, shows questions to try. */
function Messages() {
  const { messages, dropped } = chat.current.value;
  const end = useRef<HTMLDivElement>(null);
  const follows = useRef(true); // true if the page scrolls with the answer: the reader has not scrolled up
  const length = generation.tokens.value.length;
  useEffect(() => {
    const scrolled = () => (follows.current = document.documentElement.scrollHeight - scrollY - innerHeight < END);
    addEventListener("scroll", scrolled, { passive: true });
    return () => removeEventListener("scroll", scrolled);
  }, []);
  useLayoutEffect(() => {
    if (chat.answering.value && follows.current) end.current?.scrollIntoView({ block: "end" });
  }, [length, messages.length]);
  const { id } = chat.current.value;
  useLayoutEffect(() => {
    if (!chat.answering.peek()) end.current?.scrollIntoView({ block: "end" }); // an opened conversation shows its end
  }, [id]);
  if (!messages.length) return <Welcome about={engine().model.manifest} />;
  return (
    <>
      <ol class={style.messages} aria-label="Messages">
        {messages.map((message, i) => (
          <li key={i} class={style[message.role]}>
            {dropped > 0 && i === dropped && <p class={style.read}>The model reads from here on</p>}
            {message.role === "user" ? <Question message={message} at={i} /> : <AnswerOf message={message} at={i} />}
          </li>
        ))}
      </ol>
      <div class={style.end} ref={end} />
    </>
  );
}

/** Shows the view, with a disabled field for messages, until the model can run. */
function ComingChat() {
  return (
    <section class={style.chat} aria-label="Chat">
      <div class={style.main}>
        <Welcome about={generation.recorded.value!.about} coming />
        <div class={style.composer}>
          <div class={style.row}>
            <Field
              label="Message"
              placeholder="Message"
              value={chat.draft.value}
              onInput={(text) => (chat.draft.value = text)}
              onEnter={() => {}}
            />
            <button class={ui.primary} disabled>
              <Icon of={SendHorizontal} /> Send
            </button>
          </div>
          <small class={ui.dim}>You can send the message as soon as the model has loaded.</small>
        </div>
      </div>
      <aside class={style.side} />
    </section>
  );
}

function Welcome({ about: { model, prompts, split }, coming = false }: { about: Manifest; coming?: boolean }) {
  return (
    <div class={style.welcome}>
      <h2>Chat with {model}</h2>
      <p class={ui.dim}>
        {split
          ? "A part of the model runs on a server, which could read what you type."
          : "The model runs in your browser: nothing you type leaves this page. " +
            "You can open every answer to see its tokens, the alternatives to each token, and what it attends to."}
      </p>
      <div class={ui.buttons} role="group" aria-label="Questions to try">
        {prompts.map(({ title, text }) => (
          <button key={text} title={text} disabled={coming} onClick={() => void chat.send(text)}>
            {title}
          </button>
        ))}
      </div>
    </div>
  );
}

/** Shows a message of the user, which can be edited. */
function Question({ message, at }: { message: ChatMessage; at: number }) {
  const { value: editing } = chat.editing;
  if (editing?.at === at) {
    const { text } = editing;
    const save = () => {
      if (!text.trim()) return;
      void chat.edit(at, text);
      focusMessage();
    };
    const cancel = () => {
      chat.cancelEdit();
      focusMessage();
    };
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
          value={text}
          onInput={(value) => (chat.editing.value = { at, text: value })}
          onEnter={save}
          onEscape={cancel}
          focused
        />
        <div class={ui.buttons}>
          <button class={ui.primary} disabled={!text.trim()}>
            Send again
          </button>
          <button type="button" onClick={cancel}>
            Cancel
          </button>
          <small class={ui.dim}>Sending again replaces the messages after this one.</small>
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
          onClick={() => (chat.editing.value = { at, text: message.content })}
        >
          <Icon of={Pencil} />
        </button>
        {at === chat.current.value.messages.length - 1 && !chat.answering.value && (
          <button
            class={classes(style.action, style.toggle)}
            title="Answer this message, whose answer was cut off"
            onClick={answerAgain}
          >
            Answer
          </button>
        )}
      </div>
    </>
  );
}

/**
 * Shows an answer as formatted text, or as tokens if `chat.asTokens` is set. Only the answer that the other views show
 * at the end of their text has tokens.
 */
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
            onContinue={(position, instead) => void chat.continueAt(position, instead)}
            footer={
              <>
                <Inside at={at} />
                {!last && <small class={ui.dim}>Continuing from here replaces the messages after this answer.</small>}
              </>
            }
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
            onClick={answerAgain}
          >
            <Icon of={RefreshCw} />
          </button>
        )}
        {(written || !chat.answering.value) && (
          <button
            class={classes(style.action, style.toggle)}
            aria-pressed={Boolean(written) && chat.asTokens.value}
            title="Shade the tokens by surprise and show their alternatives"
            onClick={() => void showTokens(at)}
          >
            Tokens
          </button>
        )}
        {!chat.answering.value && <Inside at={at} />}
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

/** Answers the last message of the user, and replaces its previous answer if there is one. */
function answerAgain(): void {
  void chat.regenerate();
  focusMessage();
}

/** Switches an answer between tokens and formatted text. */
async function showTokens(at: number): Promise<void> {
  const shown = chat.written.value?.message === at && chat.asTokens.value;
  if (shown || (await chat.inspect(at))) chat.asTokens.value = !shown;
}

/** Shows links that open an answer in other views. A chosen token of this answer stays chosen in these views. */
function Inside({ at }: { at: number }) {
  const { manifest } = engine().model;
  return (
    <span class={style.inside} role="group" aria-label="Look inside">
      {INSIDE.map(([name, title]) => (
        <button
          key={name}
          class={ui.link}
          title={`${title} of this answer, in ${manifest.model}`}
          onClick={() => void chat.inspect(at).then((shown) => shown && route.show(name))}
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
  coming: ComingChat,
  alternatives: true,
  available: ({ chat_template }) => Boolean(chat_template),
  stays: true,
};
