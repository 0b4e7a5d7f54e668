// Generates several continuations of one prompt in a batch, so that each weight is read once for all texts. The program
// is `several_program` of glgpt/page/programs.py. Its caches hold the prompt's rows once. Then follow the rows of the
// first token that each text adds, of the second token, and so on.

import { must, PageError } from "../gl/errors";
import type { Player } from "../gl/player";
import { sizes } from "./chunks";

const ONE_TEXT = Infinity; // value of `prompt` if all tokens are from one text: the token at position n then has row n

export class Several {
  /** Number of texts. */
  readonly size: number;
  private readonly adopted: number[]; // numbers of rows that one `adopt_` entry can copy, greatest first
  private prompt = 0; // number of cache rows that all texts share

  /** `player` shares weights and states with "the other player": the model's player, whose caches hold the prompt. */
  constructor(
    readonly player: Player,
    private readonly context: number,
  ) {
    const entries = Object.keys(player.program.entries);
    this.size = sizes(entries, "decode_")[0] ?? 0;
    this.adopted = sizes(entries, "adopt_");
  }

  /** Returns the names of the entries that batches play. `restore_` entries only serve speculation. */
  static played(entries: readonly string[]): string[] {
    return entries.filter((name) => !name.startsWith("restore_"));
  }

  /** Bytes of the textures that only the batch uses. */
  get bytes(): number {
    return this.player.ownBytes();
  }

  /** Returns how many tokens each text may add to a prompt of `prompt` tokens. The last token needs no cache row. */
  room(prompt: number): number {
    const rows = Math.floor((this.rows - prompt) / this.size);
    return Math.min(rows, this.context - prompt) + 1;
  }

  /** Copies the first `tokens` rows of the prompt, and uploads the table that lists the cache rows of each text. */
  begin(tokens: number): void {
    this.adopt(0, tokens);
    this.prompt = tokens;
    this.writeTable();
  }

  /** Copies the cache rows from..to-1 of the other player's text to the batch's caches. */
  adopt(from: number, to: number): void {
    for (let row = from; row < to;) {
      const size = this.adopted.find((n) => n <= to - row) ?? this.adopted.at(-1)!;
      this.move(`adopt_${size}`, row);
      row += size;
    }
  }

  /** Copies `count` rows, starting at row `from`, back to the caches of the other player. */
  restore(from: number, count: number): void {
    for (let row = from; row < from + count; row++) this.move("restore_1", row);
  }

  /** Plays an entry that copies cache rows, from `row` on, to the rows with the same numbers in the other caches. */
  private move(entry: string, row: number): void {
    this.player.set("pos", row);
    this.player.set("row", row);
    this.player.play(entry);
  }

  /** Computes the cache rows of `tokens`, from position `first` on. `adopt` must have copied the earlier rows. */
  check(first: number, tokens: readonly number[]): void {
    if (this.prompt !== ONE_TEXT) {
      this.prompt = ONE_TEXT;
      this.writeTable();
    }
    const ids = Array.from({ length: this.size }, (_, i) => tokens[i] ?? tokens[0]!);
    this.decode(
      ids,
      ids.map((_, i) => first + i),
      first,
    );
  }

  private writeTable(): void {
    const { player } = this;
    const name = `table.${this.size}`;
    const width = 4 * player.spec(name).width;
    const table = new Float32Array(this.size * width);
    for (let text = 0; text < this.size; text++) {
      for (let position = 0; position < width; position++) {
        table[text * width + position] = Math.min(this.rowOf(text, position), this.rows - 1);
      }
    }
    this.write(name, table);
  }

  /** Decodes one token of each text; `step` counts the tokens after the prompt, from 0. */
  step(step: number, tokens: readonly number[]): void {
    const { size, prompt } = this;
    if (tokens.length !== size) throw new PageError(`${tokens.length} tokens were given for ${size} texts.`);
    this.decode(
      tokens,
      tokens.map(() => prompt + step),
      this.rowOf(0, prompt + step),
    );
  }

  /** Decodes tokens at the positions `places` into adjacent cache rows, from `row` on. */
  private decode(tokens: readonly number[], places: readonly number[], row: number): void {
    const { player, size } = this;
    this.write(`token.${size}`, this.first(`token.${size}`, tokens));
    this.write(`places.${size}`, this.first(`places.${size}`, places));
    player.set("row", row);
    player.play(`decode_${size}`);
  }

  /** Copies a text's logits to the textures from which the other player samples. */
  take(text: number): void {
    this.player.set("row", text);
    this.player.play(`take_${this.size}`);
  }

  close(): void {
    this.player.close();
  }

  /** Number of rows of the caches. */
  private get rows(): number {
    const first = must(
      this.player.program.entries[`adopt_${this.adopted[0]}`]?.passes[0]?.outputs[0],
      "a pass that adopts rows",
    );
    return this.player.spec(first[0]).height;
  }

  private rowOf(text: number, position: number): number {
    return position < this.prompt ? position : this.prompt + this.size * (position - this.prompt) + text;
  }

  /** Returns texels with one row per value. The first component of a row is the value; the others are 0. */
  private first(name: string, values: readonly number[]): Float32Array {
    const width = 4 * this.player.spec(name).width;
    const texels = new Float32Array(values.length * width);
    values.forEach((value, i) => (texels[i * width] = value));
    return texels;
  }

  private write(name: string, values: Float32Array): void {
    this.player.write(name, 0, 0, this.player.spec(name).height, new Uint8Array(values.buffer));
  }
}
