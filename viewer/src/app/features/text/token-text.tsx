// Shows the tokens of a text, and the alternatives to the chosen token. Generated tokens are shaded by how much they
// surprise the model.

import { Component, type ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { generation, type Tok } from "../../stores/generation";
import { models } from "../../stores/model";
import { settings } from "../../stores/settings";
import { classes } from "../../ui/classes";
import { isWide, percent } from "../../ui/tools";
import style from "./style.module.css";

export const MAX_BITS = 8; // surprise in bits from which the colour is deepest
const GAP = 12; // pixels between a token and the sheet below it
const SLACK = 4; // a line of text counts as hidden if fewer than this many pixels of its height are visible

interface TokenTextProps {
  tokens: readonly Tok[];
  /** The position of `tokens[0]` in the whole text. */
  from: number;
  /** Generates the text again from a position on. The token id `instead` replaces the token at that position. */
  onContinue: (position: number, instead?: number) => void;
  /** Shown at the end of the popup with the alternatives. */
  footer?: ComponentChildren;
}

/** Shows a part of the text as tokens. */
export function TokenText({ tokens, from, onContinue, footer }: TokenTextProps) {
  const box = useRef<HTMLDivElement>(null);
  const chosen = generation.chosen.value;
  const tok = chosen === null ? undefined : tokens[chosen - from];
  return (
    <div class={style.part} onKeyDown={walk} onPointerLeave={unchoose}>
      <div class={style.tokens} ref={box}>
        {tokens.map((each, i) => (
          <Token
            key={i}
            tok={each}
            at={from + i}
            past={false}
            chosen={chosen === from + i}
            focusable={chosen === null && i === 0}
          />
        ))}
      </div>
      {tok && generation.weighing.value && <small role="status">Computing the alternatives…</small>}
      {tok?.top && (
        <Alternatives
          key={chosen}
          tok={tok}
          at={chosen! - from}
          box={box.current}
          onContinue={(_, instead) => onContinue(chosen!, instead)}
          footer={footer}
        />
      )}
    </div>
  );
}

interface TokenProps {
  tok: Tok;
  at: number;
  /** True if the token no longer fits the context. */
  past: boolean;
  chosen: boolean;
  focusable: boolean;
}

export class Token extends Component<TokenProps> {
  override shouldComponentUpdate(next: TokenProps): boolean {
    const { tok, past, chosen, focusable } = this.props;
    return next.tok !== tok || next.past !== past || next.chosen !== chosen || next.focusable !== focusable;
  }

  override render() {
    const { tok, at, past, chosen, focusable } = this.props;
    const pick = () => (generation.chosen.value = at);
    const point = () => {
      if (isWide()) pick(); // in a narrow window, the popup would cover the token
    };
    return (
      <span
        class={classes(
          style.token,
          tok.given && style.given,
          chosen && style.chosen,
          past && style.past,
          tok.text.startsWith("\n") && style.newline,
        )}
        style={
          tok.p === undefined || tok.given ? {} : { "--doubt": Math.min(1, surprise(tok.p) / MAX_BITS).toFixed(3) }
        }
        data-part="token"
        tabIndex={focusable || chosen ? 0 : -1}
        role="button"
        aria-label={`${tok.label}${tok.p === undefined ? "" : `, ${percent(tok.p)}`}`}
        onMouseEnter={point}
        onFocus={pick}
        onClick={pick}
      >
        {tok.text}
      </span>
    );
  }
}

interface AlternativesProps {
  tok: Tok;
  at: number;
  box: HTMLElement | null;
  /** Generates the text again from this token on. The token id `instead` replaces this token. */
  onContinue: (event: MouseEvent, instead?: number) => void;
  footer?: ComponentChildren;
}

/** Shows a popup with the likeliest tokens at a position: below the token, or above it if the popup fits only there. */
export function Alternatives({ tok, at, box, onContinue, footer }: AlternativesProps) {
  const self = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const place = () => {
      const over = box?.querySelectorAll<HTMLElement>("[data-part=token]")[at];
      if (!box || !over || !self.current) return;
      const { style: placed, offsetWidth, offsetHeight, offsetParent } = self.current;
      if (!offsetParent) return; // the popup is hidden
      const line = [...over.getClientRects()].at(-1)!;
      const [shown, frame] = [box.getBoundingClientRect(), offsetParent.getBoundingClientRect()];
      const above = line.bottom + offsetHeight > innerHeight && line.top > offsetHeight;
      placed.left = `${Math.max(0, Math.min(line.left, shown.right - offsetWidth - 4) - frame.left)}px`;
      placed.top = `${(above ? line.top - offsetHeight : line.bottom) - frame.top}px`;
      placed.visibility = line.top > shown.bottom - SLACK || line.bottom < shown.top + SLACK ? "hidden" : "";
    };
    place();
    reveal(box?.querySelectorAll<HTMLElement>("[data-part=token]")[at], self.current);
    box?.addEventListener("scroll", place);
    addEventListener("resize", place);
    return () => {
      box?.removeEventListener("scroll", place);
      removeEventListener("resize", place);
    };
  }, [at]);
  const best = tok.top?.[0]?.p ?? 1;
  const drawn = tok.sampled !== undefined; // false for a token of the prompt or of a stored answer
  const again = (event: MouseEvent) => {
    settings.reseed();
    onContinue(event);
  };
  return (
    <div
      class={classes(style.alternatives, drawn && style.drawn)}
      ref={self}
      role="group"
      aria-label={`Alternatives to ${tok.label}`}
    >
      <span class={style.heads} aria-hidden="true">
        <small>token</small>
        <small class={style.percent}>model</small>
        {drawn && <small class={style.sampled}>sampled</small>}
      </span>
      {tok.top?.map((c) => (
        <button
          key={c.id}
          disabled={models.phase.value !== "ready"}
          class={classes(c.id === tok.id && style.taken, c.sampled === 0 && style.cut)}
          title={c.id === tok.id ? "Generate again from here" : "Continue from here with this token"}
          onClick={(e) => onContinue(e, c.id)}
        >
          <span class={style.bar} style={{ width: `${(100 * c.p) / best}%` }} />
          <code>{generation.label(c.id)}</code>
          <Chances of={c} />
        </button>
      ))}
      {!tok.top?.some((c) => c.id === tok.id) && tok.p !== undefined && (
        <span class={style.taken}>
          <code>{tok.label}</code> <Chances of={{ ...tok, p: tok.p }} />
        </span>
      )}
      {drawn && (
        <small class={style.explain}>
          model: the model's own probability. sampled: after temperature, top-k, top-p and min-p; “–”: excluded.
        </small>
      )}
      <button class={style.again} disabled={models.phase.value !== "ready"} onClick={again}>
        Sample again from here
      </button>
      <button class={style.close} onClick={() => (generation.chosen.value = null)}>
        Close
      </button>
      {footer}
    </div>
  );
}

/** Scrolls the page so that a sheet at the bottom of the window does not cover its token. */
function reveal(token: HTMLElement | undefined, sheet: HTMLElement | null): void {
  if (!token || !sheet || getComputedStyle(sheet).position !== "fixed") return;
  const covered = token.getBoundingClientRect().bottom + GAP - sheet.getBoundingClientRect().top;
  if (covered > 0) scrollBy({ top: covered });
}

/** Returns the surprise of a probability in bits: minus its binary logarithm. */
export function surprise(p: number): number {
  return -Math.log2(Math.max(p, 1e-9));
}

/** Closes the popup when the mouse leaves the text. After a tap, the popup stays. */
export function unchoose(event: PointerEvent): void {
  if (event.pointerType === "mouse") generation.chosen.value = null;
}

/** Moves the focus between tokens with the arrow keys. */
export function walk(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  const step = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  if (!step || target.dataset["part"] !== "token") return;
  const next = step < 0 ? target.previousElementSibling : target.nextElementSibling;
  if (next instanceof HTMLElement && next.dataset["part"] === "token") {
    next.focus();
    event.preventDefault();
  }
}

/** Shows the model's probability of a token and, for a sampled token, the sampler's probability. */
function Chances({ of: { p, sampled } }: { of: { p: number; sampled?: number } }) {
  return (
    <>
      <span class={style.percent}>{percent(p)}</span>
      {sampled !== undefined && (
        <span
          class={style.sampled}
          title={sampled ? "sampled with this probability" : "excluded by top-k, top-p or min-p, or by temperature 0"}
        >
          {sampled ? percent(sampled) : "–"}
        </span>
      )}
    </>
  );
}
