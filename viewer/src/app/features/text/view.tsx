// The Text view: the prompt, the settings of the generation, and the generated text.

import { Lock, TextCursorInput } from "lucide";
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Compared } from "../interventions";
import { Machine, RecordedMachine } from "./machine";
import { generation } from "../../stores/generation";
import { engine, models } from "../../stores/model";
import { MAX_TOKENS, settings } from "../../stores/settings";
import { train } from "../train/store";
import { Sampling, Sliders } from "./sampling";
import { Several, SeveralButton } from "./several";
import { Alternatives, MAX_BITS, surprise, Token, unchoose, walk } from "./token-text";
import { CARD, openCard } from "../tour";
import { Button } from "../../ui/button";
import { Icon } from "../../ui/icon";
import { NumberField } from "../../ui/number";
import { route, type View } from "../../stores/route";
import { classes } from "../../ui/classes";
import { isWide } from "../../ui/tools";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const STILL = "(prefers-reduced-motion: reduce)";
const WORD = 25; // ms between two tokens of the recorded text
const END = 40; // the text scrolls to new tokens while fewer than this many pixels of it are below the visible part

function TextView() {
  return (
    <section class={style.text} data-view="text" aria-label="Text">
      <Machine />
      <Invitations />
      <Several />
      <Text />
      <Compared />
      <div class={style.side}>
        <Prompt />
      </div>
    </section>
  );
}

/** Shows grey shapes where the controls will be when the model is ready. */
function Skeleton() {
  return (
    <div class={style.skeleton} aria-hidden="true">
      <i style={{ height: "6.2rem" }} />
      <i style={{ height: "2.4rem" }} />
      <i style={{ height: "18rem" }} />
    </div>
  );
}

/** Shows the recorded generation. A reader can point at its tokens, but cannot continue the text. */
function RecordedText() {
  const { given } = generation.recorded.value!;
  const last = generation.tokens.value.length - 1;
  const at = useSignal(matchMedia(STILL).matches ? last : given - 1); // position of the last token shown so far
  const self = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    if (at.value === last) return;
    const tokens = self.current!.querySelectorAll<HTMLElement>("[data-part=token]");
    tokens.forEach((tok, i) => (tok.style.animationDelay = `${Math.max(0, i - given + 1) * WORD}ms`));
    const timer = setInterval(() => (at.value < last ? at.value++ : clearInterval(timer)), WORD);
    return () => clearInterval(timer);
  }, []);
  return (
    <section class={classes(style.text, style.recorded)} data-view="text" aria-label="Text" ref={self}>
      <RecordedMachine at={at} />
      <Invitations />
      <Text />
      <div class={classes(ui.panel, ui.controls, style.side)}>
        <p class={ui.dim}>
          The model wrote this text when the page was exported. You can continue the text, or write your own prompt, as
          soon as the model has loaded.
        </p>
        <Skeleton />
      </div>
    </section>
  );
}

/** Shows buttons for what a first-time visitor can try in a minute, and a button that leads to training a model. */
function Invitations() {
  const draw = async () => {
    await generation.go(1);
    // in a wide window, the sampling part is visible already
    if (!isWide()) document.querySelector("[data-part=sampling]")?.scrollIntoView({ block: "nearest" });
  };
  const train = (models.ready?.manifest ?? generation.recorded.value?.about)?.training;
  // until the model is ready, the buttons are shown disabled, so that the text below them does not move later
  const ready = models.phase.value === "ready";
  return (
    <div class={style.invitations} role="group" aria-label="Try this first">
      <span class={ui.dim}>Try this first:</span>
      <Button off={!ready || generation.running.value || !generation.tokens.value.length} onClick={() => void draw()}>
        <b>1</b> Draw the next token
      </Button>
      <button disabled={!ready} onClick={() => openCard(CARD.attention, true)}>
        <b>2</b> See what it attends to
      </button>
      {(!ready || engine().model.recording.interventions) && (
        <button disabled={!ready} onClick={() => openCard(CARD.ablate, true)}>
          <b>3</b> Switch off a head
        </button>
      )}
      {train && (
        <button class={style.hook} disabled={!ready} onClick={openTraining}>
          <Falling />
          Train your own and beat the dashed lines
        </button>
      )}
    </div>
  );
}

/** Opens the Train tab at the step that shows the loss curve. */
function openTraining(): void {
  train.stage.value = "train";
  route.show("train");
}

/** Draws an icon of a loss curve that falls below two dashed lines. */
function Falling() {
  return (
    <svg class={style.falling} viewBox="0 0 48 22" aria-hidden="true">
      <path class={style.level} d="M1 9H47M1 15H47" />
      <path class={style.loss} d="M1 2C6 3 7 11 14 12S26 16 47 19" />
    </svg>
  );
}

/** Shows whether the server of a split model can read what the visitor types. */
function Private() {
  const { model } = engine();
  const { placement, manifest } = model;
  const whole = placement.movable && placement.here === manifest.config.n_layer;
  return (
    <p class={style.private} data-private={!model.split || whole}>
      <Icon of={Lock} />
      {!model.split
        ? "Nothing you type leaves this page."
        : whole
          ? "All blocks run here now: nothing you type leaves this page."
          : "The server that runs the other blocks can read what you type."}
    </p>
  );
}

/** Shows the prompt, its buttons, how the next token is chosen, and the settings (folded in a narrow window). */
function Prompt() {
  const { running } = generation;
  const seeds = Number.MAX_SAFE_INTEGER;
  const busy = running.value;
  const context = engine().model.manifest.config.n_positions;
  const given = settings.promptLength.value;
  const { chat } = engine().model.manifest;
  const open = useRef(isWide()).current;
  return (
    <div class={classes(ui.panel, ui.controls)}>
      <label class={ui.prompt} data-part="prompt">
        <span>
          Prompt{" "}
          <small class={classes(given > context && ui.problem)}>
            {given} of {context} tokens
          </small>
        </span>
        <textarea
          rows={3}
          value={settings.prompt.value}
          onInput={(e) => (settings.prompt.value = e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) void generation.write();
          }}
        />
      </label>
      <Private />
      {chat && <p class={ui.dim}>Sent as a message, in the format of this chat model.</p>}
      <div class={classes(ui.buttons, style.generate)}>
        {busy ? (
          <button class={ui.primary} onClick={() => void generation.stop()}>
            Stop
          </button>
        ) : (
          <button
            class={ui.primary}
            title="Start again from the prompt (Ctrl+Enter in the prompt)"
            onClick={() => void generation.write()}
          >
            Generate
          </button>
        )}
        <Button off={busy} title="Generate one more token" onClick={() => void generation.go(1)}>
          Step
        </Button>
        <Button
          off={busy}
          title="Generate more tokens, as many as “Length” sets"
          onClick={() => void generation.go(settings.tokens.value)}
        >
          Continue
        </Button>
        <Button
          off={busy}
          title="Generate again with another seed"
          onClick={() => {
            settings.reseed();
            void generation.write();
          }}
        >
          Reroll
        </Button>
      </div>
      <Examples />
      <Sampling />
      <SeveralButton />
      <details class={style.settings} open={open}>
        <summary>Settings</summary>
        <Sliders />
        <div class={classes(ui.fields, style.fields)}>
          <NumberField
            label="Length"
            of={settings.tokens}
            min={1}
            max={MAX_TOKENS}
            step={1}
            hint="Number of tokens to generate"
          />
          <NumberField
            label="Seed"
            of={settings.seed}
            min={0}
            max={seeds}
            step={1}
            hint="The same seed and settings give the same text"
          />
          <label class={ui.field} title="Generation stops before this text">
            <span>Stop at</span>
            <input value={settings.stop.value} onChange={(e) => (settings.stop.value = e.currentTarget.value)} />
          </label>
        </div>
        <p class={classes(ui.dim, style.room, given > context && ui.problem)}>
          {given > context
            ? `The prompt has ${given} tokens, but the context holds only ${context}: shorten the prompt.`
            : `The context holds ${context} tokens; the prompt takes ${given}. ` +
              "When the text outgrows the context, the model forgets the older half of the text."}
        </p>
      </details>
    </div>
  );
}

function Examples() {
  const { prompts } = engine().model.manifest;
  if (!prompts.length) return null;
  return (
    <nav class={style.examples} aria-label="Examples">
      <span class={ui.dim}>Try</span>
      {prompts.map(({ title, text }) => (
        <button
          key={text}
          class={ui.quiet}
          title={text}
          onClick={() => {
            settings.prompt.value = text;
            void generation.write();
          }}
        >
          {title}
        </button>
      ))}
    </nav>
  );
}

function Text() {
  const { speeds, note, running, chosen } = generation;
  const stream = useRef<HTMLDivElement>(null);
  const count = generation.tokens.value.length;
  const rate = speeds.value;
  const own = generation.tokens.value.filter((t) => !t.given && t.p !== undefined);
  const mean = own.length ? own.reduce((sum, t) => sum + surprise(t.p!), 0) / own.length : null;
  const from = generation.readFrom.value;
  const tok = chosen.value === null ? undefined : generation.tokens.value[chosen.value];
  const focusNext = useRef<number | null>(null); // position of the token to focus once it is rendered
  useLayoutEffect(() => {
    const at = focusNext.current;
    const next = at === null ? undefined : stream.current?.querySelectorAll<HTMLElement>("[data-part=token]")[at];
    if (!next || !running.value) return;
    focusNext.current = null;
    next.focus();
  });
  useEffect(() => {
    // listens on the window, because pointing at a token chooses it without focusing it
    const leave = (event: KeyboardEvent) => {
      if (event.key === "Escape") chosen.value = null;
    };
    addEventListener("keydown", leave);
    return () => removeEventListener("keydown", leave);
  }, []);
  const follows = useRef(true); // scrolls to new tokens, unless the reader has scrolled up
  const wrote = useRef(false); // false: nothing was generated yet; a recorded text is shown from its beginning
  wrote.current ||= running.value;
  const written = useRef(0);
  useLayoutEffect(() => {
    const box = stream.current;
    if (count <= written.current) follows.current = true; // the text was replaced
    written.current = count;
    if (box && follows.current && wrote.current) box.scrollTop = box.scrollHeight;
  }, [count]);
  return (
    <div class={classes(ui.panel, style.written)} data-part="written" onKeyDown={walk} onPointerLeave={unchoose}>
      <div class={style.legend}>
        <span>surprise</span>
        <span class={style.scale} role="img" aria-label={`From 0 to ${MAX_BITS} bits and more`}>
          {[0, 2, 4, 6, MAX_BITS].map((bits) => (
            <small key={bits}>{bits === MAX_BITS ? `${bits}+` : bits}</small>
          ))}
        </span>
        <span
          title={
            "Surprise is −log2 of the probability that the model gave the token: " +
            "1 bit is as surprising as a coin toss"
          }
        >
          bits, on average {mean === null ? "–" : mean.toFixed(1)}
        </span>
        <span class={style.rate} role="status">
          {note.value && <b>{note.value} </b>}
          {count} tokens
          {running.value
            ? " · Writing…"
            : rate && (
                <>
                  <span class={style.prefill}>
                    {` · prefill ${((1000 * rate.given) / rate.prefill).toFixed(0)} tokens/s`}
                  </span>
                  {rate.decode ? ` · decode ${rate.decode.toFixed(0)} tokens/s` : ""}
                </>
              )}
        </span>
      </div>
      <div
        class={classes(ui.stream, style.stream)}
        ref={stream}
        onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) =>
          (follows.current = scrollHeight - scrollTop - clientHeight < END)
        }
      >
        {generation.tokens.value.map((t, i) => (
          <Token
            key={i}
            tok={t}
            at={i}
            past={i < from}
            chosen={chosen.value === i}
            focusable={chosen.value === null && i === 0}
          />
        ))}
        {running.value && <span key={`caret ${count}`} class={style.caret} aria-hidden="true" />}
      </div>
      {tok?.top && (
        <Alternatives
          key={chosen.value}
          tok={tok}
          at={chosen.value!}
          box={stream.current}
          onContinue={(event, instead) => {
            if (event.detail === 0) focusNext.current = chosen.value; // 0: by keyboard; the focus returns to the token
            void generation.go(settings.tokens.value, chosen.value!, instead);
          }}
        />
      )}
      {from > 0 && (
        <p class={ui.dim} data-part="slid" role="status">
          The text is longer than the context: the model reads the last {count - from} tokens. It has forgotten the
          first {from}, shown in italics.
        </p>
      )}
      <p class={classes(ui.dim, style.hint)}>
        Point at a token, or tap it, to see what else the model considered.{" "}
        <span class={style.more}>Click an alternative to continue from there.</span>
      </p>
    </div>
  );
}

declare module "../../stores/route" {
  interface ViewNames {
    text: true;
  }
}

export const view: View<"text"> = {
  name: "text",
  title: "Text",
  group: "use",
  icon: TextCursorInput,
  params: [],
  component: TextView,
  recorded: RecordedText,
  alternatives: true,
  introduced: true,
  skipTo: { title: "the prompt", selector: "[data-part=prompt] textarea" },
};
