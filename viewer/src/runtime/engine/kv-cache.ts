// Manages the KV cache: tracks which tokens the cache holds, reads texts into it, and decodes tokens with it.

import { must } from "../gl/errors";
import { entryOf, plan, sizes, writeIds, writeToken, type Chunk } from "./chunks";
import type { Model } from "./model";

/** States (textures whose values persist) with which tokens are chosen. Other states hold caches, one row per token. */
export const LOGIT_STATES = ["logits", "token"];

/** Inspects a token's textures while its passes are played. */
export interface Watcher {
  /** True if the token that begins now is to be inspected. */
  wants(): boolean;
  /** Passes of `decode` after which `look` is called, in order. */
  readonly stops: readonly number[];
  /** Called when one of these passes has been issued. */
  look(pass: number): void;
  /** Called when all passes have been issued, to show the results. */
  done(): void;
  /** Called when a text begins: the time since the previous token must not be counted as the time of a token. */
  rest(): void;
}

export class KvCache {
  /** Ids of the tokens whose rows the caches hold. */
  ids: number[] = [];
  /** Ids of the tokens whose rows the caches of the local blocks hold, if the split point is movable. */
  front: number[] = [];
  /** If the player keeps queries: the first position whose query may be missing. Only the page's views need queries. */
  private queries = Infinity;
  /** Number of views that show queries or values computed from them. Generating keeps queries while this is above 0. */
  shown = 0;
  /** Chunk sizes whose shaders are compiled, greatest first; the last is 1 (`decode`). */
  known: number[] = [];
  watcher: Watcher | null = null;

  constructor(private readonly model: Model) {}

  clear(): void {
    this.queries = Infinity;
    this.ids = [];
    this.front = [];
  }

  /** Marks the queries from `position` on as missing: a step that checks guesses stores only keys and values. */
  lacksQueries(position: number): void {
    this.queries = Math.min(this.queries, position);
  }

  /** Marks the rows from `position` on as invalid. */
  forget(position: number): void {
    if (position <= this.queries) this.queries = Infinity;
    this.ids.length = Math.min(this.ids.length, position);
    this.front.length = Math.min(this.front.length, position);
  }

  /** True if the queries of the first `count` positions are known. */
  hasQueries(count: number): boolean {
    return this.model.player.separated && count <= this.queries;
  }

  /** Gives the queries of each layer a separate texture if a view shows queries. Otherwise all layers share one. */
  keepQueriesIfShown(): void {
    const { player } = this.model;
    if (!this.shown) player.share();
    else this.keepQueries();
  }

  private keepQueries(): void {
    const { player } = this.model;
    if (player.separated) return;
    player.separate();
    this.queries = Math.max(this.ids.length, this.front.length) ? 0 : Infinity;
  }

  /** Returns how many leading tokens of `ids` the caches hold. Never counts the last: its logits must be computed. */
  held(ids: readonly number[], cached: readonly number[] = this.ids): number {
    let held = 0;
    while (held < ids.length - 1 && held < cached.length && ids[held] === cached[held]) held++;
    return held;
  }

  /** Returns the cheapest chunks for the positions from `from` to `tokens` - 1. */
  chunks(tokens: number, from: number): Chunk[] {
    const { config, tuning } = this.model.manifest;
    return plan(tokens, config.n_positions, this.known, tuning, from);
  }

  /** Waits for the shaders with which `prefill` reads `ids`: see `Compilation.forTokens` (compilation.ts). */
  prepare(ids: readonly number[]): Promise<void> {
    return this.model.compilation.forTokens(ids.length - this.held(ids));
  }

  /** Plays the tokens of `ids` that the caches do not hold. The device then holds the logits after the last token. */
  prefill(ids: readonly number[]): void {
    this.watcher?.rest();
    const held = this.held(ids);
    if (held <= this.queries) this.queries = Infinity;
    const chunks = this.chunks(ids.length, held);
    const last = chunks.pop();
    for (const chunk of chunks) this.playChunk(ids, chunk, this.watcher ? Infinity : this.rowPasses(chunk));
    if (last) this.playChunk(ids, last);
    this.ids = [...ids];
    this.front = [];
  }

  /**
   * Returns the number of a chunk's passes after which all rows of the caches are written. Later passes only compute
   * the logits.
   */
  private rowPasses(chunk: Chunk): number {
    const { entries, textures } = this.model.programs.generate;
    const { passes } = must(entries[entryOf(chunk)], "an entry of the chunk");
    const isRow = (name: string) => textures[name]?.role === "state" && !LOGIT_STATES.includes(name);
    return passes.findLastIndex(({ outputs }) => outputs.some(([name]) => isRow(name))) + 1;
  }

  /** Fills the caches with the keys, values and queries of these tokens. */
  async fillWithQueries(ids: readonly number[]): Promise<void> {
    this.keepQueries();
    if (this.queries < ids.length) this.forget(this.queries);
    await this.fill(ids);
  }

  /** Fills the caches with the keys and values of these tokens. */
  async fill(ids: readonly number[]): Promise<void> {
    this.model.check(ids);
    if (this.ids.length >= ids.length && ids.every((id, i) => id === this.ids[i])) return;
    await this.prepare(ids);
    this.prefill(ids);
  }

  /** Plays a chunk, up to pass `end` of its entry. */
  playChunk(ids: readonly number[], chunk: Chunk, end = Infinity): void {
    const { player } = this.model;
    if (chunk.size === 1) {
      this.write(ids[chunk.start]!);
      this.decode(chunk.start, end);
    } else {
      writeIds(player, ids, chunk);
      player.set("pos", chunk.start);
      player.set("row", chunk.valid - 1);
      player.play(entryOf(chunk), 0, end);
    }
  }

  /** Writes the token that the next decode reads. */
  write(id: number): void {
    writeToken(this.model.player, id);
  }

  /** Plays `decode` for the token at `position`, up to pass `end`. */
  decode(position: number, end = Infinity): void {
    this.model.player.set("pos", position);
    if (this.watcher?.wants()) {
      this.watched("decode", this.watcher, end);
      this.watcher.done();
    } else {
      this.model.player.play("decode", 0, end);
    }
  }

  /** Decodes the last token of `ids` again, so that the device holds the logits after it. */
  again(ids: readonly number[]): void {
    this.write(must(ids.at(-1), "a last token"));
    this.decode(ids.length - 1);
  }

  /** Plays an entry up to pass `end` and calls the watcher after each of its stops. */
  watched(entry: string, watcher: Watcher, end = Infinity): void {
    const { player } = this.model;
    let from = 0;
    for (const stop of watcher.stops) {
      if (stop >= end) break;
      player.play(entry, from, stop + 1);
      watcher.look(stop);
      from = stop + 1;
    }
    player.play(entry, from, end);
  }

  /** Prepares scalars and inputs to play `entry` again for the last token (or chunk) of `ids` with the same result. */
  async rewind(ids: readonly number[], entry: string): Promise<void> {
    const { player, programs, sampling } = this.model;
    await this.fill(ids);
    const inputs = programs.generate.entries[entry]?.inputs ?? [];
    const size = Math.max(0, ...sizes(inputs, "ids."));
    if (size) {
      const from = Math.max(0, ids.length - size);
      const chunk = { start: from, valid: Math.min(size, ids.length - from), size };
      writeIds(player, ids, chunk);
      player.set("row", chunk.valid - 1);
      player.set("pos", from);
    } else {
      this.write(ids.at(-1)!);
      player.set("pos", ids.length - 1);
    }
    if (entry.startsWith("sample")) {
      player.play("decode"); // computes the logits and the best token
      sampling.setScalars(sampling.last, ids.length);
    }
  }
}
