// The guided tour: each card opens a view and asks a question that the view answers; `#tour=3` opens the third card.

import { Compass } from "lucide";
import { useEffect } from "preact/hooks";
import { selection } from "../attention/store";
import { passes } from "../passes/store";
import { textures } from "../textures/store";
import { tour } from "./store";
import { generation } from "../../stores/generation";
import { engine, models } from "../../stores/model";
import { route, type Addition } from "../../stores/route";
import frame from "../../ui/band.module.css";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

/**
 * Returns the name of the activation that holds the hidden layer of a block's MLP. `adds` marks the stages with
 * which attention and the MLP end. The last of these stages shows the hidden layer.
 */
function hiddenLayer(block: number): string {
  const { names } = engine().model;
  return names.inBlock(block, names.stages.findLast(({ adds }) => adds)!.shows[0]!);
}

const LISTED = 3; // maximum number of split words in the answer

/** Lists words of the text that consist of several tokens, with these tokens. */
function splitWords(): string {
  const text = generation.tokens.value.map((tok) => tok.text).join("");
  const ends: number[] = []; // the character position at which each token ends
  generation.tokens.value.forEach((tok) => ends.push((ends.at(-1) ?? 0) + tok.text.length));
  const found = new Map<string, string>();
  for (const { 0: word, index } of text.matchAll(/\p{L}{2,}/gu)) {
    const [first, last] = [index, index + word.length - 1].map((at) => ends.findIndex((end) => end > at)) as [
      number,
      number,
    ];
    const pieces = generation.tokens.value.slice(first, last + 1).map((tok) => `“${tok.label}”`);
    if (last > first) found.set(word, `“${word}”: ${pieces.join(", ")}`);
    if (found.size === LISTED) break;
  }
  return found.size
    ? `${[...found.values()].join("; ")}.`
    : "None in this text. Try a prompt with a rare word or a name.";
}

interface Card {
  title: string;
  text: string;
  /** A question whose answer the reader can see in the view. */
  question: string;
  answer: string;
  /** Opens the card's view and selects what the card is about. */
  go: () => void;
}

/**
 * Returns the position of the last newline token after which the next line is not empty; null: there is none. In a
 * play, some heads visibly attend from this token to the name of the speaker.
 */
function lineEnd(): number | null {
  const at = generation.tokens.value.findLastIndex(
    (tok, i, all) => tok.text === "\n" && i < all.length - 1 && all[i + 1]!.text !== "\n",
  );
  return at < 0 ? null : at;
}

/** True if the model adds a vector for a token's position to the token's embedding. */
const addsPositions = () => engine().model.names.positions === "absolute";

const middle = (count: number) => Math.floor(count / 2);
const layers = () => engine().model.manifest.config.n_layer;

/** Functions that return the cards, because some cards mention the current model and text. */
const CARDS: readonly (() => Card)[] = [
  () => ({
    title: "Tokens",
    text:
      "The model does not read letters. It reads tokens: pieces of text, each with a number. Point at the words: " +
      "common ones are a single token, rarer ones are several.",
    question: "Which words of this text are split into several tokens?",
    answer: splitWords(),
    go: () => route.showAt("text", "[data-part=token]"),
  }),
  () => ({
    title: "Embedding",
    text:
      "Each token becomes a row of numbers, its vector" +
      (addsPositions() ? ", to which a vector for its position is added" : "") +
      ". Each row of this picture is a token of the text; blue is above zero, orange below.",
    question: "Do two rows of the same token look the same?",
    answer: addsPositions()
      ? "Similar, but not identical: each position adds its own vector."
      : "Yes, exactly. This model adds nothing for the position here: inside attention, it rotates queries and " +
        "keys by their positions.",
    go: () => textures.show("embed"),
  }),
  () => ({
    title: "Attention",
    text:
      "To predict the next token, a token gathers information from earlier tokens; " +
      "each head does so in its own way. The arcs show which tokens the chosen token attends to. " +
      "In a square, each row is a token and shows how much it attends to each earlier one; a row adds up to 100%.",
    question: "Which head attends only to the previous token?",
    answer: "The one with a bright line just below the diagonal. Look in the first layers.",
    go: () => {
      route.show("attention");
      selection.kind.value = "pattern";
    },
  }),
  () => {
    const { head, config } = engine().model.manifest;
    return {
      title: "A head with a job",
      text:
        head?.text ??
        "Some heads attend to something specific: the previous token, the first one, the last comma, the end " +
          "of a line. Point at a row to see which tokens the row's token attends to.",
      question: head?.question ?? "What does this head attend to?",
      answer:
        head?.answer ??
        "Compare some of its rows. If the bright columns belong to tokens of one kind, the head attends to " +
          "that kind. Many heads attend to the first token if no other token is relevant.",
      go: () => {
        route.show("attention");
        generation.chosen.value = lineEnd();
        if (head)
          selection.chooseHead(Math.min(head.layer, config.n_layer - 1), Math.min(head.head, config.n_head - 1));
        else selection.sought.value = true; // the view selects the head with the sharpest attention
      },
    };
  },
  () => ({
    title: "MLP",
    text:
      "After attention, an MLP processes each token separately. It has many small detectors, of which only a few " +
      "respond to a token. The sum of their responses is added to the stream.",
    question: "How many of the detectors respond to one token?",
    answer: "Only a few: most of a row is close to zero.",
    go: () => textures.show(hiddenLayer(middle(layers()))),
  }),
  () => ({
    title: "The residual stream",
    text:
      "Every block adds to the same stream of numbers. Decoding the stream after each block, as if it were the " +
      "last one, shows what the model would predict at that point.",
    question: "In which block does the model settle on its prediction?",
    answer:
      "Follow a column down: after the first blocks, the prediction is the token itself or a common one; " +
      "after the last ones, it is often the token that actually came next, which is framed.",
    go: () => route.show("blocks"),
  }),
  () => ({
    title: "Logits",
    text:
      "At the end, every token of the vocabulary has a score, its logit. " +
      "This list is the program that computes one token, pass by pass: " +
      "step through it and watch the textures fill.",
    question: "How confident is the model in its best token?",
    answer: "Look at the last pass: it lists the five likeliest tokens with their probabilities.",
    go: () => {
      passes.select("decode");
      route.showAt("passes", "[data-part=outcome]", "nearest");
    },
  }),
  () => ({
    title: "Sampling",
    text:
      "The scores become probabilities, and one token is drawn at random. " +
      "A higher temperature makes unlikely tokens likelier; top-k and top-p exclude unlikely tokens. " +
      "Move the sliders in the settings and watch the bars.",
    question: "At which temperature is the likeliest token almost certain?",
    answer: "Close to 0. At 0 the draw is not random: it always takes the likeliest token.",
    go: () => route.showAt("text", "[data-part=sampling]"),
  }),
  () => ({
    title: "Training",
    text:
      "All weights were found by training: the model predicts each next token of a text, and its weights are " +
      "moved a little towards the correct answer, thousands of times." +
      (engine().model.manifest.training ? " You can do it here." : ""),
    question: "How long does it take until the samples look like words?",
    answer: "A few hundred steps with the smallest size: letters and spaces come first, then short words.",
    go: () => route.show(engine().model.manifest.training ? "train" : "text"),
  }),
  () => ({
    title: "Now break it",
    text:
      "To learn what a part does, switch it off. Press “Ablate head” and compare the texts. " +
      "Any change alters some random draw, so the texts will differ: what counts is how much less likely the " +
      "original text has become.",
    question: "Which part can this model not do without?",
    answer:
      "Losing any one head rarely matters; the others compensate. Ablate the MLP of block 0, in the Blocks " +
      "view, and the text becomes nonsense.",
    go: () => {
      route.showAt("attention", "[data-part=one] [data-ablate]", "nearest");
      selection.chooseHead(0, Math.max(0, selection.head.value));
    },
  }),
];

/** Numbers, from 1, of the cards that other parts of the page open. */
export const CARD = { attention: 3, ablate: CARDS.length };

function Tour() {
  const at = tour.card.value;
  const moves = tour.moves.value && models.phase.value === "ready";
  useEffect(() => {
    if (!moves) return;
    tour.moves.value = false;
    openCard(at);
  }, [moves]);
  if (at === 0 || models.phase.value !== "ready") return null;
  const number = Math.min(at, CARDS.length);
  const card = CARDS[number - 1]!();
  const move = (to: number) => openCard(to);
  const alone = tour.alone.value;
  return (
    <aside class={classes(style.tour, number === CARD.ablate && style.breaks)} aria-label="Tour">
      <div>
        <h2>
          {!alone && (
            <small class={ui.dim}>
              {number} of {CARDS.length}{" "}
            </small>
          )}
          {card.title}
        </h2>
        <p>{card.text}</p>
      </div>
      <div>
        <p class={style.question}>{card.question}</p>
        <details key={number}>
          <summary>Answer</summary>
          <p>{card.answer}</p>
        </details>
      </div>
      {alone ? (
        <Alone number={number} />
      ) : (
        <div class={classes(ui.buttons, style.buttons)}>
          <button disabled={number === 1} onClick={() => move(number - 1)}>
            Back
          </button>
          <button class={ui.primary} onClick={() => (number === CARDS.length ? tour.close() : move(number + 1))}>
            {number === CARDS.length ? "Done" : "Next card"}
          </button>
          <button class={ui.quiet} onClick={() => tour.close()}>
            Leave the tour
          </button>
        </div>
      )}
    </aside>
  );
}

/** Shows the buttons of a card that was opened alone. */
function Alone({ number }: { number: number }) {
  const more = number === CARD.attention && engine().model.recording.interventions;
  return (
    <div class={classes(ui.buttons, style.buttons)}>
      <button class={ui.primary} onClick={() => (more ? openCard(CARD.ablate, true) : tour.close())}>
        {more ? "Next: switch off a head" : "Done"}
      </button>
      <button class={ui.quiet} onClick={() => openCard(1)}>
        The whole tour
      </button>
      {more && (
        <button class={ui.quiet} onClick={() => tour.close()}>
          Close
        </button>
      )}
    </div>
  );
}

/** Opens card `number`, counted from 1, and its view. With `alone`, the card is not shown as part of the tour. */
export function openCard(number: number, alone = false): void {
  generation.chosen.value = null;
  tour.open(Math.min(Math.max(1, number), CARDS.length), alone);
  CARDS[tour.card.value - 1]!().go();
}

function Begin() {
  if (tour.card.value !== 0 || models.phase.value !== "ready") return null;
  return (
    <button
      class={classes(ui.quiet, frame.action, frame.offer)}
      title="Ten short cards that explain the views"
      onClick={() => openCard(1)}
    >
      <Icon of={Compass} />
      Take the tour
    </button>
  );
}

export const addition: Addition = { params: tour.params, header: Begin, dock: Tour };
