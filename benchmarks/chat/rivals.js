// Runs a model with wllama or transformers.js. `run.py` opens rivals.html, which loads this file, and calls `measure`.

/** Loads the model with wllama and returns a function that streams a greedy continuation. */
async function wllama({ threads, context }) {
  const { Wllama, LoggerWithoutDebug } = await import("/npm/@wllama/wllama/esm/index.js");
  const paths = { default: "/npm/@wllama/wllama/esm/wasm/wllama.wasm" };
  const runner = new Wllama(paths, { logger: LoggerWithoutDebug });
  await runner.loadModelFromUrl(`${location.origin}/model.gguf`, {
    n_threads: threads,
    n_ctx: context,
    n_gpu_layers: 0,
    useCache: false,
  });
  return async (prompt, tokens, arrived) => {
    const options = { prompt, max_tokens: tokens, temperature: 0, stream: true, ignore_eos: true };
    for await (const { choices } of await runner.createCompletion(options)) arrived(choices[0]?.text ?? "");
  };
}

/** Loads the ONNX model with transformers.js on WebAssembly and returns a function like that of `wllama`. */
async function transformers({ threads, dtype }) {
  const { env, pipeline, TextStreamer } = await import("/npm/@huggingface/transformers/dist/transformers.web.js");
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/onnx/" });
  Object.assign(env.backends.onnx.wasm, { wasmPaths: "/npm/onnxruntime-web/dist/", numThreads: threads });
  const generator = await pipeline("text-generation", "model", { dtype, device: "wasm" });
  return async (prompt, tokens, arrived) => {
    const streamer = new TextStreamer(generator.tokenizer, {
      skip_prompt: true,
      token_callback_function: () => arrived(""),
      callback_function: (text) => arrived(text, false),
    });
    const length = { max_new_tokens: tokens, min_new_tokens: tokens };
    await generator(prompt, { ...length, do_sample: false, streamer });
  };
}

const ENGINES = { wllama, transformers };

/**
 * Returns the text and times in milliseconds. `loaded`: from the opening of the page until the model was loaded;
 * `first`: from when the model was loaded until the first token; `each`: from each token to the next. `generate` calls
 * the callback once for each token. transformers.js also calls it for each piece of text, with `counts` false.
 */
globalThis.measure = async ({ engine, prompt, tokens, ...options }) => {
  const generate = await ENGINES[engine](options);
  const loaded = performance.now();
  const times = [];
  let text = "";
  await generate(prompt, tokens, (piece, counts = true) => {
    if (counts) times.push(performance.now());
    text += piece;
  });
  return { loaded, first: times[0] - loaded, each: times.slice(1).map((time, i) => time - times[i]), text };
};
