// The first step of a training: a text.

import { useSignal } from "@preact/signals";
import * as train from "./train-state";

export function TextStage() {
  const over = useSignal(false);
  const drop = (event: DragEvent) => {
    event.preventDefault();
    over.value = false;
    void train.take(event.dataTransfer?.files ?? []);
  };
  return (
    <div
      class={`panel controls${over.value ? " over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        over.value = true;
      }}
      onDragLeave={() => (over.value = false)}
      onDrop={drop}
    >
      <h2>A text to learn from</h2>
      <p class="dim">
        A model begins with random weights and learns to write like this text, in fragment shaders, step by step. Nothing
        leaves this browser.
      </p>
      <Text fixed={train.session.value !== null} />
    </div>
  );
}

function Text({ fixed }: { fixed: boolean }) {
  const text = train.text.value;
  const long = text.length > train.LONG;
  return (
    <div>
      <label class="prompt">
        <span>
          Text: {train.source.value ? `${train.source.value}, ` : ""}
          {text.length.toLocaleString("en")} characters
        </span>
        <textarea
          rows={6}
          readOnly={fixed || long}
          value={long ? `${text.slice(0, 2000)}…` : text}
          onInput={(e) => {
            train.text.value = e.currentTarget.value;
            train.source.value = "";
          }}
        />
      </label>
      <label class="file">
        <input
          type="file"
          multiple
          disabled={fixed}
          onChange={(e) => {
            void train.take(e.currentTarget.files ?? []);
            e.currentTarget.value = "";
          }}
        />
        <span class="dim">Paste, drop files here, or choose some. The last tenth is kept to judge by.</span>
      </label>
    </div>
  );
}
