// The Tokens step: two vocabularies tokenize the same text, each with the number of merges that its slider sets.

import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { EOS, encodeText, extremes, firstMerges, SMALLEST, type Bpe } from "../../../training/bpe";
import { reason } from "../../../runtime/gl/errors";
import { tokenBytes } from "../../../training/tokenise";
import { vocabularyOf } from "../../../training/vocabulary";
import { train } from "./store";
import { HELD } from "./text-store";
import { Measurement, vocabularies } from "./tokens-store";
import { thousands } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const SHOWN = 900; // number of characters from the beginning of the text that are shown, coloured by token
const LISTED = 12; // number of longest and of rarest tokens listed
const REST = 250; // ms that a slider must rest before the whole text is tokenized

export function TokensStage() {
  const text = train.text.value;
  const problem = useSignal("");
  const most = Math.max(SMALLEST + 1, ...train.index.value!.sizes.map((size) => size.config.vocab_size));
  useEffect(() => {
    if (vocabularies.learnt.value?.text === text || !text) return;
    vocabularies.learnt.value = null;
    problem.value = "";
    let stale = false;
    vocabularyOf(text, HELD, most).then(
      (bpe) => {
        if (stale) return;
        vocabularies.learnt.value = { text, bpe };
        vocabularies.counts.second.value = Math.min(vocabularies.counts.second.value, bpe.merges.length);
      },
      (error: unknown) => {
        if (!stale) problem.value = reason(error);
      },
    );
    return () => (stale = true);
  }, [text]);
  const found = vocabularies.learnt.value;
  return (
    <div class={style.tokensStage}>
      <div class={ui.panel}>
        <h2>What the model reads: tokens</h2>
        <p class={ui.dim}>
          A vocabulary starts with the 256 bytes. Each merge adds a token that joins the most frequent pair of
          neighbouring tokens. With more merges, the text has fewer, longer tokens, so that the same context holds more
          text; but the model sees each token less often. <code>glgpt tokenizer inspect</code> shows the same.
        </p>
        {problem.value && (
          <p class={classes(ui.problem, style.problem)} role="alert">
            {problem.value}
          </p>
        )}
        {!found && !problem.value && <p role="status">Finding the merges of this text…</p>}
      </div>
      {found && <Vocabulary name="First vocabulary" found={found} count={vocabularies.counts.first} />}
      {found && <Vocabulary name="Second vocabulary" found={found} count={vocabularies.counts.second} />}
      {found && <Merges bpe={found.bpe} count={vocabularies.counts.second.value} />}
    </div>
  );
}

/**
 * Returns a token's bytes as text with visible spaces and line ends, or in hexadecimal if the bytes are not whole
 * characters.
 */
function label(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true })
      .decode(bytes)
      .replaceAll(" ", "·")
      .replaceAll("\n", "⏎")
      .replaceAll("\t", "⇥");
  } catch {
    return Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
  }
}

function Vocabulary({
  name,
  found,
  count,
}: {
  name: string;
  found: { text: string; bpe: Bpe };
  count: Signal<number>;
}) {
  const { text, bpe } = found;
  const n = Math.min(count.value, bpe.merges.length);
  const some = useMemo(() => firstMerges(bpe, n), [bpe, n]);
  const bytes = useMemo(() => tokenBytes(some), [some]);
  const measurement = useMemo(() => new Measurement(), []);
  useEffect(() => {
    const timer = setTimeout(() => void measurement.measure(text, some), REST);
    return () => clearTimeout(timer);
  }, [text, some]);
  const known = measurement.of(some);
  const { longest, rarest } = known ? extremes(some, known.counts, LISTED) : { longest: [], rarest: [] };
  const tokens = (ids: readonly number[], counted: boolean) =>
    ids.map((id) => (
      <li key={id}>
        <code>{label(bytes[id]!)}</code>
        {counted && <span class={ui.dim}> {known!.counts[id]}</span>}
      </li>
    ));
  return (
    <div class={ui.panel} data-part="vocabulary" data-merges={n} data-tokens={known?.tokens ?? ""}>
      <h2>{name}</h2>
      <label class={style.slider}>
        <span>
          {n} merges, {thousands(some.vocab.length)} tokens
        </span>
        <input
          type="range"
          min={0}
          max={bpe.merges.length}
          value={n}
          onInput={(e) => (count.value = e.currentTarget.valueAsNumber)}
        />
      </label>
      <p class={style.compression}>
        {known ? (
          <>
            <b>{(known.bytes / known.tokens).toFixed(2)}</b> bytes per token: {thousands(known.bytes)} bytes become{" "}
            {thousands(known.tokens)} tokens
          </>
        ) : (
          <span class={ui.dim}>Tokenizing the whole text…</span>
        )}
      </p>
      <Cuts text={text} bpe={some} bytes={bytes} />
      {n > 0 && known && (
        <>
          <h3>Longest</h3>
          <ul class={style.tokenList}>{tokens(longest, false)}</ul>
          <h3>Rarest, with the number of times they occur (0: only inside longer tokens)</h3>
          <ul class={style.tokenList}>{tokens(rarest, true)}</ul>
        </>
      )}
    </div>
  );
}

/** Shows the beginning of the text, in which neighbouring tokens have different colours. */
function Cuts({ text, bpe, bytes }: { text: string; bpe: Bpe; bytes: Uint8Array[] }) {
  const ids = useMemo(() => Array.from(encodeText(text.slice(0, SHOWN), bpe)), [text, bpe]);
  const decoder = new TextDecoder("utf-8");
  return (
    <p class={style.cuts}>
      {ids.map((id, i) => {
        // if a character's bytes are in several tokens, the token with the last byte shows the character
        const piece = decoder.decode(bytes[id], { stream: true });
        return (
          <span key={i} class={style[`t${i % 4}`]} title={`token ${id}`}>
            {piece.includes("\n") ? piece.replaceAll("\n", "⏎\n") : piece || "·"}
          </span>
        );
      })}
    </p>
  );
}

function Merges({ bpe, count }: { bpe: Bpe; count: number }) {
  const bytes = useMemo(() => tokenBytes(bpe), [bpe]);
  return (
    <div class={classes(ui.panel, style.merges)}>
      <h2>The merges, in order</h2>
      <ol>
        {bpe.merges.map(([left, right], i) => (
          <li key={i} class={classes(i < count && style.in)}>
            <code>{label(bytes[left]!)}</code> <code>{label(bytes[right]!)}</code>
          </li>
        ))}
      </ol>
      <p class={ui.dim}>
        Bold: merges of the second vocabulary. Each vocabulary also contains the 256 bytes and {EOS}, which marks the
        end of a text.
      </p>
    </div>
  );
}
