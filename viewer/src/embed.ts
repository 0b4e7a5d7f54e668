// Exports the scriptable object without a page. `glgpt export --embed` writes this module as `glgpt.js`.

import { effect, untracked } from "@preact/signals-core";
import { Glgpt, type Progress } from "./api";
import type { ModelOptions } from "./runtime/engine/model";
import { checkOptions, type Names } from "./runtime/engine/options";
import { HttpSource } from "./runtime/engine/source";

export { Glgpt };
export type {
  Answered,
  Chat,
  ChatOptions,
  Continuation,
  ContinuationsOptions,
  Generated,
  GenerateOptions,
  Progress,
} from "./api";
export { CompletionError } from "./completion-request";
export type { ChatCompletionMessage, ChatCompletionRequest } from "./completion-request";
export type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatLogprobs,
  Completions,
  CompletionUsage,
  TokenLogprob,
} from "./completions";
export type { LanguageModelOptions, LanguageModelSession, PromptInput, PromptOptions } from "./language-model";
export type { Constraint } from "./runtime/constraints/constraint";
export type { ChatMessage } from "./runtime/chat/template";
export type { Tool, ToolCall, ToolChoice } from "./runtime/chat/tools";
export type { Fitted } from "./runtime/chat/context";
export type { Values } from "./runtime/engine/capture";
export type { SpeculationStats } from "./runtime/engine/speculation";
export type { Candidate, Token } from "./runtime/engine/sampling";
export type { Federation, FederateOptions } from "./training/federate";
export type { Trained, TrainOptions } from "./training/training";
export { PageError } from "./runtime/gl/errors";

export interface OpenOptions extends ModelOptions {
  /** The folder of the model's files; by default the folder of this module. */
  folder?: string | URL;
  onProgress?: (progress: Progress) => void;
}

const RARE = { load: () => import("./rare-calls") };

const OPEN: Names<OpenOptions> = {
  folder: true,
  onProgress: true,
  fetch: true,
  drawFlops: true,
  drawBuffers: true,
  storage: true,
};

/** Fetches the model. Resolves to the scriptable object when it can be used. Rejects with a message for the user. */
export async function open(asked: OpenOptions = {}): Promise<Glgpt> {
  checkOptions("open", asked, OPEN);
  const { folder, onProgress, ...options } = asked;
  const base = folder ? new URL(folder, document.baseURI) : new URL(/* @vite-ignore */ ".", import.meta.url);
  const glgpt = new Glgpt(RARE, new HttpSource(base.href.endsWith("/") ? base : new URL(`${base.href}/`)), options);
  const unfollow = effect(() => {
    const { value } = glgpt.progress;
    untracked(() => onProgress?.(value));
  });
  await glgpt.ready.finally(unfollow);
  return glgpt;
}
