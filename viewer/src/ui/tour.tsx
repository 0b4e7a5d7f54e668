// A guided tour: cards beside the real views, each with a question that looking answers; `#tour=3` opens the third.

import { useEffect } from "preact/hooks";
import * as state from "./state";

/** The hidden layer of a block's MLP: what the machine's last stage before an addition shows. */
function hiddenLayer(block: number): string {
  const { names } = state.engine().model;
  return names.inBlock(block, names.stages.findLast(({ adds }) => adds)!.shows[0]!);
}

const LISTED = 3; // words of the text that are split, in the answer

/** The text's words that several tokens make up, with those. */
function splitWords(): string {
  const text = state.tokens.value.map((tok) => tok.text).join("");
  const ends: number[] = []; // of each token, in characters
  state.tokens.value.forEach((tok) => ends.push((ends.at(-1) ?? 0) + tok.text.length));
  const found = new Map<string, string>();
  for (const { 0: word, index } of text.matchAll(/\p{L}{2,}/gu)) {
    const [first, last] = [index, index + word.length - 1].map((at) => ends.findIndex((end) => end > at)) as [number, number];
    const pieces = state.tokens.value.slice(first, last + 1).map((tok) => `“${tok.label}”`);
    if (last > first) found.set(word, `“${word}”: ${pieces.join(", ")}`);
    if (found.size === LISTED) break;
  }
  return found.size ? `${[...found.values()].join("; ")}.` : "None in this text. Try a rare word or a name.";
}

interface Card {
  title: string;
  text: string;
  /** Answered by looking. */
  question: string;
  answer: string;
  /** Where the card leads: a view, and a place in it. */
  go: () => void;
}

/** Where the text's last line ends: a token that looks back at who speaks. */
function lineEnd(): number | null {
  const at = state.tokens.value.findLastIndex((tok, i, all) => tok.text === "\n" && i < all.length - 1 && all[i + 1]!.text !== "\n");
  return at < 0 ? null : at;
}

/** True if the embedding also holds the position of a token. */
const addsPositions = () => state.engine().model.names.positions === "absolute";

const middle = (count: number) => Math.floor(count / 2);
const layers = () => state.engine().model.manifest.config.n_layer;

/** Made when a card is shown: some speak of the model and the text at hand. */
const CARDS: readonly (() => Card)[] = [
  () => ({
    title: "Tokens",
    text: "The model does not read letters. It reads tokens: pieces of text, each with a number. Point at the words: some are one token, rarer ones are several.",
    question: "Which words of this text are split into several tokens?",
    answer: splitWords(),
    go: () => state.showAt("text", ".written .token"),
  }),
  () => ({
    title: "Embedding",
    text: `Each token becomes a row of numbers, its vector${addsPositions() ? ", to which one for its position is added" : ""}. A row of this picture is a token of the text; blue is above zero, orange below.`,
    question: "Do two rows of the same token look the same?",
    answer: addsPositions()
      ? "Similar, not identical: each position adds numbers of its own."
      : "Yes, exactly. This model adds nothing for the position here: inside attention, it rotates queries and keys by their positions.",
    go: () => state.showTexture("embed"),
  }),
  () => ({
    title: "Attention",
    text: "To know what comes next, a token looks back: each head of each layer lets it take something from the tokens before it. The arcs show from which. In a square each row is a token and says how much it takes from which tokens; it adds up to 100%.",
    question: "Which head looks only one token back?",
    answer: "It has a bright line right below the diagonal. Look in the first layers.",
    go: () => {
      state.show("attention");
      state.place.kind.value = "pattern";
    },
  }),
  () => {
    const { head, config } = state.engine().model.manifest;
    return {
      title: "A head with a job",
      text: head?.text ?? "Some heads look for something: the token before, the first one, the last comma, the end of a line. Point at a row to see which tokens it attends to.",
      question: head?.question ?? "What does this head look for?",
      answer: head?.answer ?? "Compare some of its rows. Where the bright columns stand under tokens of one kind, those are what it looks for. Many heads rest on the first token.",
      go: () => {
        state.show("attention");
        state.chosen.value = lineEnd();
        if (head) state.chooseHead(Math.min(head.layer, config.n_layer - 1), Math.min(head.head, config.n_head - 1));
        else state.place.sought.value = true; // the view opens the sharpest
      },
    };
  },
  () => ({
    title: "MLP",
    text: "After attention each token goes through an MLP by itself: many small detectors, of which few respond. What they add up to is what the block knows.",
    question: "How many of the detectors respond to one token?",
    answer: "Few: most of a row is close to zero.",
    go: () => state.showTexture(hiddenLayer(middle(layers()))),
  }),
  () => ({
    title: "The residual stream",
    text: "Every block adds to the same stream of numbers. Read after each block as if it were the last, the stream says what the model would write by then.",
    question: "In which block does the model make up its mind?",
    answer: "Follow a column down: in the first blocks the guess is the token itself or a common one, in the last ones it is often the token that came, which is framed.",
    go: () => state.show("blocks"),
  }),
  () => ({
    title: "Logits",
    text: "At the end every token of the vocabulary has a score. This is the program of one token, pass by pass: step through it and watch the textures fill.",
    question: "How sure is the model of its best token?",
    answer: "See the last pass: it lists the five likeliest tokens.",
    go: () => {
      state.place.entry.value = "decode";
      state.place.pass.value = Infinity; // the last
      state.showAt("passes", ".passes .outcome", "nearest");
    },
  }),
  () => ({
    title: "Sampling",
    text: "The scores become probabilities, and one token is drawn. Temperature makes the draw bolder or safer; top-k and top-p cut the unlikely ones off. Move the sliders in the settings and watch the bars.",
    question: "At which temperature is the likeliest token almost certain?",
    answer: "Close to 0. At 0 nothing is drawn: the likeliest is taken.",
    go: () => state.showAt("text", ".text .sampling"),
  }),
  () => ({
    title: "Training",
    text: `All these numbers were found by training: the model guesses each next token of a text and is moved a little towards the right answer, thousands of times.${state.engine().model.manifest.training ? " You can do it here." : ""}`,
    question: "How long does it take until the samples look like words?",
    answer: "A few hundred steps for the smallest size: first come letters and spaces, then short words.",
    go: () => state.show(state.engine().model.manifest.training ? "train" : "text"),
  }),
  () => ({
    title: "Now break it",
    text: "A part of a machine is understood by what fails without it. Press “Cut head” and compare the texts. Any change makes some draw fall differently, so look at what the comparison says: how much less likely the same words have become.",
    question: "Which part can this model not do without?",
    answer: "Hardly any single head is missed: the others make up for it. Cut the MLP of block 0, in Blocks, and the text falls apart.",
    go: () => {
      state.showAt("attention", ".one .ablate", "nearest");
      state.chooseHead(0, Math.max(0, state.place.head.value));
    },
  }),
];

/** Cards that other views open. */
export const CARD = { attention: 3, ablate: CARDS.length };

export function Tour() {
  const at = state.tour.value;
  const moves = state.tourMoves.value && state.phase.value === "ready";
  useEffect(() => {
    if (!moves) return;
    state.tourMoves.value = false;
    openCard(at);
  }, [moves]);
  if (at === 0 || state.phase.value !== "ready") return null;
  const number = Math.min(at, CARDS.length);
  const card = CARDS[number - 1]!();
  const move = (to: number) => openCard(to);
  const alone = state.tourAlone.value;
  return (
    <aside class={`tour${number === CARD.ablate ? " breaks" : ""}`} aria-label="Tour">
      <div>
        <h2>
          {!alone && (
            <small class="dim">
              {number} of {CARDS.length}{" "}
            </small>
          )}
          {card.title}
        </h2>
        <p>{card.text}</p>
      </div>
      <div>
        <p class="question">{card.question}</p>
        <details key={number}>
          <summary>The answer</summary>
          <p>{card.answer}</p>
        </details>
      </div>
      {alone ? (
        <Alone number={number} />
      ) : (
        <div class="buttons">
          <button disabled={number === 1} onClick={() => move(number - 1)}>
            Back
          </button>
          <button class="primary" onClick={() => (number === CARDS.length ? (state.tour.value = 0) : move(number + 1))}>
            {number === CARDS.length ? "Done" : "Next card"}
          </button>
          <button class="quiet" onClick={() => (state.tour.value = 0)}>
            Leave the tour
          </button>
        </div>
      )}
    </aside>
  );
}

/** What leads on from a card that was asked for by itself. */
function Alone({ number }: { number: number }) {
  const more = number === CARD.attention && state.engine().model.recording.interventions;
  return (
    <div class="buttons">
      <button class="primary" onClick={() => (more ? openCard(CARD.ablate, true) : (state.tour.value = 0))}>
        {more ? "Next: cut a head" : "Done"}
      </button>
      <button class="quiet" onClick={() => openCard(1)}>
        The whole tour
      </button>
      {more && (
        <button class="quiet" onClick={() => (state.tour.value = 0)}>
          Close
        </button>
      )}
    </div>
  );
}

/** Opens a card, counted from 1, and the view it speaks of; `alone`: not as one of a tour. */
export function openCard(number: number, alone = false): void {
  state.chosen.value = null;
  state.tourAlone.value = alone;
  state.tour.value = Math.min(Math.max(1, number), CARDS.length);
  CARDS[state.tour.value - 1]!().go();
}
