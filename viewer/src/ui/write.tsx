// The prompt, its settings, and the text as it comes.

import { Component } from "preact";
import type { Signal } from "@preact/signals";
import * as state from "./state";
import type { Tok } from "./state";

function NumberField(props: {
  label: string;
  of: Signal<number>;
  min: number;
  max: number;
  step: number;
  hint?: string;
}) {
  const { label, of, min, max, step, hint } = props;
  return (
    <label class="field" title={hint}>
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        {...{ min, max, step }}
        value={of.value}
        onChange={(e) => {
          const value = Number(e.currentTarget.value);
          of.value = Number.isFinite(value) ? Math.min(max, Math.max(min, value)) : of.value;
          e.currentTarget.value = String(of.value);
        }}
      />
    </label>
  );
}

export function Write() {
  const { settings, running } = state;
  const seeds = Number.MAX_SAFE_INTEGER;
  const busy = running.value;
  return (
    <section class="write" aria-label="Write">
      <div class="panel controls">
        <label class="prompt">
          <span>Prompt</span>
          <textarea
            rows={7}
            value={state.prompt.value}
            onInput={(e) => (state.prompt.value = e.currentTarget.value)}
            onKeyDown={(e) => {
              if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) void state.stop().then(state.write);
            }}
          />
        </label>
        <div class="fields">
          <NumberField label="Length" of={settings.tokens} min={1} max={100000} step={1} hint="Tokens to write" />
          <NumberField
            label="Temperature"
            of={settings.temperature}
            min={0}
            max={5}
            step={0.1}
            hint="0 always takes the likeliest token"
          />
          <NumberField
            label="Top-k"
            of={settings.topK}
            min={0}
            max={100000}
            step={1}
            hint="Choose among the k likeliest; 0: among all"
          />
          <NumberField
            label="Top-p"
            of={settings.topP}
            min={0.01}
            max={1}
            step={0.05}
            hint="Choose among the likeliest that make up p"
          />
          <NumberField label="Seed" of={settings.seed} min={0} max={seeds} step={1} hint="Same seed, same text" />
          <label class="field" title="Ends before this text">
            <span>Stop at</span>
            <input value={settings.stop.value} onChange={(e) => (settings.stop.value = e.currentTarget.value)} />
          </label>
        </div>
        <div class="buttons">
          {busy ? (
            <button class="primary" onClick={() => void state.stop()}>
              Stop
            </button>
          ) : (
            <button class="primary" onClick={() => void state.write()}>
              Write
            </button>
          )}
          <button disabled={busy} onClick={() => void state.go(1)}>
            One token
          </button>
          <button disabled={busy} onClick={() => void state.go(settings.tokens.value)}>
            Go on
          </button>
          <button
            disabled={busy}
            onClick={() => {
              settings.seed.value = Math.floor(Math.random() * 1e6);
              void state.write();
            }}
          >
            Another seed
          </button>
        </div>
      </div>
      <Text />
    </section>
  );
}

function Text() {
  const { speeds, note, running } = state;
  const rate = speeds.value;
  return (
    <div class="panel text">
      <div class="stream" onKeyDown={walk} onMouseLeave={() => {}}>
        {state.tokens.value.map((tok, i) => (
          <Token key={i} tok={tok} at={i} chosen={state.chosen.value === i} />
        ))}
        {running.value && <span class="caret" aria-hidden="true" />}
      </div>
      <div class="legend" role="status">
        <span class="scale" aria-hidden="true" />
        <span>unlikely to likely</span>
        <span class="spacer" />
        {rate && (
          <span>
            {((1000 * rate.given) / rate.prefill).toFixed(0)} tokens/s read, {rate.decode.toFixed(0)} tokens/s written
          </span>
        )}
        <span class="note">{note.value}</span>
      </div>
    </div>
  );
}

/** Arrow keys walk over the tokens, Escape leaves them. */
function walk(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (event.key === "Escape") state.chosen.value = null;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !target.classList.contains("token")) return;
  const next = (step < 0 ? target.previousElementSibling : target.nextElementSibling) as HTMLElement | null;
  if (next?.classList.contains("token")) {
    next.focus();
    event.preventDefault();
  }
}

class Token extends Component<{ tok: Tok; at: number; chosen: boolean }> {
  override shouldComponentUpdate(next: { tok: Tok; at: number; chosen: boolean }): boolean {
    return next.tok !== this.props.tok || next.chosen !== this.props.chosen;
  }

  override render() {
    const { tok, at, chosen } = this.props;
    const pick = () => (state.chosen.value = at);
    const percent = tok.p === undefined ? "" : `, ${(100 * tok.p).toFixed(1)}%`;
    const style = tok.p === undefined ? {} : { "--doubt": (1 - tok.p).toFixed(3) };
    return (
      <span
        class={`token${tok.given ? " given" : ""}${chosen ? " chosen" : ""}`}
        style={style}
        tabIndex={at === 0 || chosen ? 0 : -1}
        role="button"
        aria-label={`${tok.label}${percent}`}
        onMouseEnter={pick}
        onFocus={pick}
        onClick={pick}
      >
        {!tok.given && tok.text.startsWith("\n") && <i class="newline">⏎</i>}
        {tok.text}
        {chosen && !tok.given && <Alternatives tok={tok} at={at} />}
      </span>
    );
  }
}

function Alternatives({ tok, at }: { tok: Tok; at: number }) {
  const best = tok.top?.[0]?.p ?? 1;
  return (
    <span
      class="alternatives"
      role="group"
      aria-label={`Alternatives to ${tok.label}`}
      onMouseEnter={(e) => e.stopPropagation()}
    >
      {tok.top?.map((c) => (
        <button
          key={c.id}
          class={c.id === tok.id ? "taken" : ""}
          title={c.id === tok.id ? "Write on from here again" : "Write on from here with this token"}
          onClick={(e) => {
            e.stopPropagation();
            void state.go(state.settings.tokens.value, at, c.id);
          }}
        >
          <span class="bar" style={{ width: `${(100 * c.p) / best}%` }} />
          <code>{state.label(c.id)}</code>
          <span class="percent">{(100 * c.p).toFixed(c.p < 0.0995 ? 1 : 0)}%</span>
        </button>
      ))}
      <button class="again" onClick={(e) => (e.stopPropagation(), void state.go(state.settings.tokens.value, at))}>
        Write again from here
      </button>
    </span>
  );
}
