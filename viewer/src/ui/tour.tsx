// A guided tour: cards beside the real views, each with a question that looking answers; `#tour=3` opens the third.

import { useEffect } from "preact/hooks";
import { inBlock } from "./names";
import * as state from "./state";

/** What a part of a block computes last but its output. */
function beforeOutput(part: string): string {
  const names = Object.keys(state.engine().model.manifest.activations).filter((name) => name.startsWith(`${part}.`));
  return names.at(-2) ?? part;
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

const middle = (count: number) => Math.floor(count / 2);
const layers = () => state.engine().model.manifest.config.n_layer;

const CARDS: readonly Card[] = [
  {
    title: "Tokens",
    text: "The model does not read letters. It reads tokens: pieces of text, each with a number. Point at the words: some are one token, rarer ones are several.",
    question: "Which words of the prompt are cut into two tokens?",
    answer: "In the first prompt “Romeo”, of “·Rome” and “o”, and “wherefore”, of “·where” and “fore”.",
    go: () => state.showAt("text", ".written .token"),
  },
  {
    title: "Embedding",
    text: "Each token becomes a row of numbers, its vector, to which one for its position is added. A row of this picture is a token of the text; blue is above zero, orange below.",
    question: "Do two rows of the same token look the same?",
    answer: "Similar, not identical: each position adds numbers of its own.",
    go: () => state.showTexture("embed"),
  },
  {
    title: "Attention",
    text: "To know what comes next, a token looks back: each head of each layer lets it take something from the tokens before it. The arcs show from which. In a square each row is a token and says how much it takes from which tokens; it adds up to 100%.",
    question: "Which head looks only one token back?",
    answer: "It has a bright line right below the diagonal. Look in the first layers.",
    go: () => {
      state.show("attention");
      state.place.kind.value = "pattern";
    },
  },
  {
    title: "A head with a job",
    text: "Some heads look for something: the name of who speaks, the last comma, the end of a line. Point at a row to see which tokens it looks at.",
    question: "Which head looks at the speaker?",
    answer: "At the end of a line, this one: layer 3, head 5, in the model that comes with the page. Its bright columns stand under names in capitals.",
    go: () => {
      state.show("attention");
      state.chosen.value = lineEnd();
      state.chooseHead(Math.min(3, layers() - 1), Math.min(5, state.engine().model.manifest.config.n_head - 1));
    },
  },
  {
    title: "MLP",
    text: "After attention each token goes through an MLP by itself: many small detectors, of which few respond. What they add up to is what the block knows.",
    question: "How many of the detectors respond to one token?",
    answer: "Few: most of a row is close to zero.",
    go: () => state.showTexture(beforeOutput(inBlock(middle(layers()), "mlp"))),
  },
  {
    title: "The residual stream",
    text: "Every block adds to the same stream of numbers. Read after each block as if it were the last, the stream says what the model would write by then.",
    question: "In which block does the model make up its mind?",
    answer: "Follow a column down: in the first blocks the guess is the token itself or a common one, in the last ones it is often the token that came, which is framed.",
    go: () => state.show("blocks"),
  },
  {
    title: "Logits",
    text: "At the end every token of the vocabulary has a score. This is the program of one token, pass by pass: step through it and watch the textures fill.",
    question: "How sure is the model of its best token?",
    answer: "See the last pass: it lists the five likeliest tokens.",
    go: () => {
      state.place.entry.value = "decode";
      state.place.pass.value = Infinity; // the last
      state.showAt("passes", ".passes .outcome", "nearest");
    },
  },
  {
    title: "Sampling",
    text: "The scores become probabilities, and one token is drawn. Temperature makes the draw bolder or safer; top-k and top-p cut the unlikely ones off. Move the sliders in the settings and watch the bars.",
    question: "At which temperature is the likeliest token almost certain?",
    answer: "Close to 0. At 0 nothing is drawn: the likeliest is taken.",
    go: () => state.showAt("text", ".text .sampling"),
  },
  {
    title: "Training",
    text: "All these numbers were found by training: the model guesses each next token of a text and is moved a little towards the right answer, thousands of times. You can do it here.",
    question: "How long does it take until the samples look like words?",
    answer: "A few hundred steps for the smallest size: first come letters and spaces, then short words.",
    go: () => state.show(state.engine().model.manifest.training ? "train" : "text"),
  },
  {
    title: "Now break it",
    text: "A part of a machine is understood by what fails without it. Press “Cut head” and compare the texts. Any change makes some draw fall differently, so look at what the comparison says: how much less likely the same words have become.",
    question: "Which part can this model not do without?",
    answer: "Hardly any single head is missed: the others make up for it. Cut the MLP of block 0, in Blocks, and the text falls apart.",
    go: () => {
      state.showAt("attention", ".one .cut-it", "nearest");
      state.chooseHead(0, Math.max(0, state.place.head.value));
    },
  },
];

/** Cards that other views open. */
export const CARD = { attention: CARDS.findIndex((card) => card.title === "Attention") + 1, cut: CARDS.length };

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
  const card = CARDS[number - 1]!;
  const move = (to: number) => openCard(to);
  const alone = state.tourAlone.value;
  return (
    <aside class={`tour${number === CARD.cut ? " breaks" : ""}`} aria-label="Tour">
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
  const more = number === CARD.attention && state.engine().model.recording.cut;
  return (
    <div class="buttons">
      <button class="primary" onClick={() => (more ? openCard(CARD.cut, true) : (state.tour.value = 0))}>
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
  CARDS[state.tour.value - 1]!.go();
}
