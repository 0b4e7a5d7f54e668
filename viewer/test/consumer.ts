// Uses the published types as another project would. `types.test.js` compiles this file with the built glgpt.d.ts.

import {
  CompletionError,
  open,
  type Answered,
  type ChatCompletion,
  type ChatMessage,
  type Constraint,
  type Generated,
  type Tool,
  type ToolCall,
} from "glgpt";

const schema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
const constraints: Constraint[] = [{ json_schema: schema }, { json_object: true }, { regex: /a+/ }, { choice: ["a"] }];
const messages: ChatMessage[] = [{ role: "user", content: "Hello" }];

export async function use(): Promise<string[]> {
  const glgpt = await open({ folder: "model/", onProgress: ({ done, total }) => console.log(done, total) });
  const signal = AbortSignal.timeout(1000);
  const text: Generated = await glgpt.generate({ prompt: "a", seed: 1, constraint: constraints[0]!, signal });
  // @ts-expect-error an unknown option
  await glgpt.generate({ prompt: "a", max_tokens: 1 });
  const answer: Answered = await glgpt.chat(messages, { constraint: null, onToken: ({ text }) => console.log(text) });
  const { completions } = glgpt.chat;
  const format = { type: "json_schema", json_schema: { name: "person", schema, strict: true } } as const;
  const whole: ChatCompletion = await completions.create({ messages, response_format: format, guided_regex: null });
  for await (const chunk of await completions.create({ messages, stream: true, guided_choice: ["a"] })) {
    console.log(chunk.choices[0]?.delta.content);
  }
  const tools: Tool[] = [{ type: "function", function: { name: "now", parameters: schema } }];
  const called = await completions.create({ messages, tools, tool_choice: "required" });
  const call: ToolCall | undefined = called.choices[0]!.message.tool_calls?.[0];
  // @ts-expect-error a format that does not exist
  await completions.create({ messages, response_format: { type: "xml" } });
  const session = await glgpt.languageModel({ topK: 3, temperature: 1 });
  const said: string = await session.prompt("a", { responseConstraint: schema, omitResponseConstraintInput: true });
  for await (const piece of session.promptStreaming("a", { responseConstraint: /yes|no/ })) console.log(piece);
  const values: Float32Array = (await glgpt.activation("h.0.attn.pattern")).data;
  await glgpt.dispose();
  return [
    text.text,
    answer.text,
    whole.choices[0]!.message.content ?? "",
    call?.function.name ?? "",
    said,
    String(values[0]),
  ];
}

/** Returns the name of a request's invalid field. */
export const fault = (error: unknown): string | null => (error instanceof CompletionError ? error.param : null);
