// What has been learnt: text from it, files of it.

import * as train from "./train-state";

export function WriteStage() {
  return (
    <div class="panel">
      <h2>Take it with you</h2>
      <SaveAndLoad />
    </div>
  );
}

function SaveAndLoad() {
  const found = train.session.value;
  return (
    <div class="save">
      <div class="buttons">
        <button disabled={!found || train.preparing.value !== null} onClick={() => void train.download()}>
          Download
        </button>
        <label class="as-button">
          Load…
          <input
            type="file"
            multiple
            accept=".zip,.safetensors,.json,.txt"
            onChange={(e) => {
              void train.take(e.currentTarget.files ?? []);
              e.currentTarget.value = "";
            }}
          />
        </label>
      </div>
      <p class="dim">
        The download is a folder that <code>glgpt generate DIR</code> and <code>transformers</code> load; either comes back
        with Load.
      </p>
    </div>
  );
}
