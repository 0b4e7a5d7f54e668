// Generates tokens together with a server: runs the first blocks in the page, sends hidden states and receives tokens.

import { must, PageError } from "../gl/errors";
import { writeState } from "./capture";
import { entryOf, type Chunk } from "./chunks";
import { draft } from "./drafts";
import type { Stretch } from "./generate";
import { unpack } from "./layout";
import type { Model } from "./model";
import { alternatives, type Sampler, type Token } from "./sampling";
import { MAX_FROM_SERVER, MAX_GUESSES, MAX_REPLAYS } from "../generated/protocols";
import type { Ask } from "../generated/split-messages";
import { Forgotten, type Crossing, type Stepped } from "./split";

/** Returns one token's share of the cost of a round trip for `tokens` tokens. */
function shared(crossing: Crossing, tokens: number): Crossing {
  if (tokens === 1) return crossing; // with its number of rows, which exceeds 1 for a chunk of a prompt
  const share = (x: number) => x / tokens;
  const { blocks, sent, received, localMs, networkMs, remoteMs } = crossing;
  const ms = { localMs: share(localMs), networkMs: share(networkMs), remoteMs: share(remoteMs) };
  return { blocks, rows: 1, sent: share(sent), received: share(received), ...ms };
}

export class SplitGenerator {
  constructor(private readonly model: Model) {}

  private get split() {
    return must(this.model.split, "a server");
  }

  /**
   * Generates tokens with the server: sends hidden states and receives tokens. If the head (the final norm and the
   * logits) is local, receives hidden states and samples the tokens.
   */
  async *generate({ text, count, run, sampler, drawn }: Stretch): AsyncGenerator<Token> {
    const { temperature, topK, topP, minP, seed } = sampler.settings;
    const top = Math.min(run.alternatives ?? 0, MAX_FROM_SERVER);
    const ask = { temperature, top_k: topK, top_p: topP, min_p: minP ?? 0, seed, alternatives: top };
    const { split } = this;
    const { headHere } = this.model.placement;
    for (let taken = 0; taken < count;) {
      try {
        const guesses = split.guesses && !headHere ? draft(text, Math.min(MAX_GUESSES, count - taken - 1)) : [];
        const found = await this.cross(text, { ...ask, draw: drawn + taken }, run.signal, guesses);
        if (headHere) {
          yield await this.finished(found, sampler, drawn + taken, run.alternatives);
          taken++;
          continue;
        }
        const share = shared(found.crossing, found.chosen.length);
        for (const token of found.chosen) {
          taken++;
          yield token;
          split.report(share);
        }
      } catch (error) {
        if (run.signal?.aborted) return; // stopped while the server was offline
        throw error;
      }
    }
  }

  /** Returns the logits after the last of `ids`. */
  async logits(ids: readonly number[]): Promise<Float32Array> {
    const ask = { temperature: 0, top_k: null, top_p: null, min_p: 0, seed: 0, draw: 0, alternatives: 0, logits: true };
    const { chosen, hidden } = await this.cross(ids, ask);
    if (!hidden) return must(chosen[0]?.logits, "logits from the server");
    this.playHead(hidden);
    return this.model.sampling.logits();
  }

  /** Reports a token that this page computed alone, with `blocks` blocks in `localMs` milliseconds. */
  report(blocks: number, localMs: number): void {
    this.model.split?.report({ blocks, rows: 1, sent: 0, received: 0, localMs, networkMs: 0, remoteMs: 0 });
  }

  /**
   * Computes the rows of `ids` that the page or the server does not hold yet. Resolves to the server's answer. If the
   * page has the head, the answer is the server's hidden states. Otherwise, it is the token after `ids`, and the token
   * after each of `guesses` up to the first wrong guess. If the server has lost rows, sends their hidden states again.
   */
  private async cross(
    ids: readonly number[],
    ask: Ask,
    signal?: AbortSignal,
    guesses: readonly number[] = [],
  ): Promise<Stepped> {
    const { split } = this;
    for (let replays = 0; ; replays++) {
      if (replays > MAX_REPLAYS) {
        throw new PageError(
          `The server lost the text ${MAX_REPLAYS} times while reading it. Check the connection to the server.`,
        );
      }
      // the caller catches this error and continues in the page
      if (!this.model.placement.server) throw new PageError("All blocks run in this page now.");
      await split.connect(signal);
      try {
        const answers = await this.send(ids, ask, guesses);
        const found = await split.unlessStopped(Promise.all(answers), signal);
        const { vocab_size } = this.model.manifest.config;
        if (found.some(({ chosen }) => chosen.some(({ id }) => id >= vocab_size))) {
          throw new PageError("The server answered with a token that is not in the model's vocabulary.");
        }
        for (const earlier of found.slice(0, -1)) split.report(earlier.crossing);
        return must(found.at(-1), "an answer from the server");
      } catch (error) {
        if (!(error instanceof Forgotten) || signal?.aborted) throw error;
      }
    }
  }

  /** Computes the rows that are not held yet, chunk by chunk, and sends their hidden states. Returns the answers. */
  private async send(ids: readonly number[], ask: Ask, guesses: readonly number[]): Promise<Promise<Stepped>[]> {
    const { split } = this;
    const { cache, placement } = this.model;
    const { here: blocks } = placement;
    const { reconnects } = split;
    const from = Math.min(cache.held(ids, placement.movable ? cache.front : cache.ids), split.common(ids));
    const answers: Promise<Stepped>[] = [];
    const guessed = guesses.length > 0 && from === ids.length - 1 ? this.guessed(from, 1 + guesses.length) : null;
    const fed = guessed ? [...ids, ...guesses] : ids;
    const asked = guessed ? { ...ask, guesses } : ask;
    const chunks = guessed ? [guessed] : cache.chunks(ids.length, from);
    for (const chunk of chunks) {
      const start = performance.now();
      const states = await this.hidden(fed, chunk);
      if (split.reconnects !== reconnects) throw new Forgotten(0); // an earlier chunk may be lost
      const last = chunk === chunks.at(-1) && !placement.headHere ? asked : null;
      const own = { blocks, ms: performance.now() - start };
      const answer = split.step(fed, chunk.start, chunk.valid, states, own, last);
      answer.catch(() => {}); // `cross` awaits the answer after all chunks are sent
      answers.push(answer);
    }
    return answers;
  }

  /** Returns one chunk for a token and its guesses; null if the chunk exceeds the context in the page or the server. */
  private guessed(start: number, valid: number): Chunk | null {
    const { cache, manifest } = this.model;
    const size = Math.min(...cache.known.filter((s) => s >= valid));
    return start + Math.max(size, MAX_GUESSES + 1) <= manifest.config.n_positions ? { start, valid, size } : null;
  }

  /** Samples in the page the token after the server's last hidden state. */
  private async finished({ hidden, crossing }: Stepped, sampler: Sampler, step: number, top = 0): Promise<Token> {
    const { sampling } = this.model;
    const start = performance.now();
    this.playHead(must(hidden, "hidden states from the server"));
    let token = await sampling.choose(sampler, step, top);
    if (!token) {
      const logits = await sampling.logits();
      const draw = sampler.draw(logits, step);
      token = { id: draw.id, ...(top ? alternatives(logits, top, draw.id, draw) : {}) };
    }
    this.split.report({ ...crossing, localMs: crossing.localMs + performance.now() - start });
    return token;
  }

  /** Plays the head for the last of these hidden states. The device then holds the logits of that state. */
  private playHead(states: Float32Array): void {
    const { player, programs } = this.model;
    const view = must(programs.generate.views["hidden.1"], "view hidden.1");
    writeState(player, view, states.subarray(states.length - view.cols));
    player.play("head");
  }

  /** Runs a chunk of `ids` through the local blocks and returns the hidden states after them, `[valid, n_embd]`. */
  private async hidden(ids: readonly number[], chunk: Chunk): Promise<Float32Array> {
    const { cache, placement, programs, player } = this.model;
    const name = entryOf(chunk);
    const entry = must(programs.generate.entries[name], `entry ${name}`);
    const rows = chunk.start + chunk.valid;
    const { stream } = this.split.settings;
    const output = placement.movable ? must(stream[placement.here], "a state of the residual stream") : "hidden";
    const view = must(entry.outputs[output], `output ${output}`);
    if (placement.movable) {
      cache.playChunk(
        ids,
        chunk,
        1 + entry.passes.findLastIndex((p) => p.outputs.some(([texture]) => texture === view.texture)),
      );
      cache.front = ids.slice(0, rows);
      cache.ids.length = cache.held(ids); // the later blocks' caches lack the other rows
    } else {
      cache.playChunk(ids, chunk);
      cache.ids = ids.slice(0, rows);
    }
    const states = unpack(view, await player.read(view.texture));
    return states.subarray(0, chunk.valid * view.cols);
  }
}
