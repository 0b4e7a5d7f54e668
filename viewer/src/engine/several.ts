// Texts that continue one prompt side by side: each weight is read once for all of them. The program is that of
// glgpt/page/programs.py, `several_program`; its caches hold the prompt's rows once, and behind them by turns those of each text.

import { must, PageError } from "../gl/errors";
import type { Player } from "../gl/player";
import { sizes } from "./chunks";

export class Several {
  /** How many texts there are. */
  readonly size: number;
  private readonly adopted: number[];
  private prompt = 0;

  /** `player` shares weights and states with the player that read the prompt, whose caches hold it. */
  constructor(
    readonly player: Player,
    private readonly context: number,
  ) {
    const entries = Object.keys(player.program.entries);
    this.size = sizes(entries, "decode_")[0] ?? 0;
    this.adopted = sizes(entries, "adopt_");
  }

  /** Entries that it plays. */
  static played(entries: readonly string[]): string[] {
    return entries.filter((name) => !name.startsWith("restore_"));
  }

  /** Bytes of its own textures. */
  get bytes(): number {
    return this.player.ownBytes;
  }

  /** How many tokens each text may have behind a prompt of so many: the last one is not computed further from. */
  room(prompt: number): number {
    const rows = Math.floor((this.rows - prompt) / this.size);
    return Math.min(rows, this.context - prompt) + 1;
  }

  /** Takes over the prompt's first `tokens` rows, and says where each text's keys and values will be. */
  begin(tokens: number): void {
    const { player } = this;
    for (let row = 0; row < tokens;) {
      const size = this.adopted.find((n) => n <= tokens - row) ?? this.adopted.at(-1)!;
      player.set("pos", row);
      player.set("row", row);
      player.play(`adopt_${size}`);
      row += size;
    }
    this.prompt = tokens;
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

  /** Decodes a token of each text, the `step`th behind the prompt, from 0. */
  step(step: number, tokens: readonly number[]): void {
    const { player, size, prompt } = this;
    if (tokens.length !== size) throw new PageError(`${tokens.length} tokens are not one for each of ${size} texts.`);
    this.write(`token.${size}`, this.first(`token.${size}`, tokens));
    this.write(`places.${size}`, this.first(`places.${size}`, Array.from(tokens, () => prompt + step)));
    player.set("row", this.rowOf(0, prompt + step));
    player.play(`decode_${size}`);
  }

  /** Puts what may follow a text where the other player draws from. */
  take(text: number): void {
    this.player.set("row", text);
    this.player.play(`take_${this.size}`);
  }

  close(): void {
    this.player.close();
  }

  /** Rows of the caches. */
  private get rows(): number {
    const first = must(this.player.program.entries[`adopt_${this.adopted[0]}`]?.passes[0]?.outputs[0], "a pass that adopts rows");
    return this.player.spec(first[0]).height;
  }

  private rowOf(text: number, position: number): number {
    return position < this.prompt ? position : this.prompt + this.size * (position - this.prompt) + text;
  }

  /** Values of the first component of a texture's rows, a row a text. */
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
