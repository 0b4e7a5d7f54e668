// The Data step: the text to train on, its clean-up, and the part of the text that is held out.

import { Facts } from "../../ui/facts";
import { useSignal } from "@preact/signals";
import { CLEANING, type CleaningStep } from "../../../training/cleaning";
import { train } from "./store";
import { LONG } from "./text-store";
import { thousands } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const SHOWN = 1200; // characters shown of the start of the text, and of the start of the held-out part

export function TextStage() {
  const over = useSignal(false);
  const fixed = train.fixed.value;
  const drop = (event: DragEvent) => {
    event.preventDefault();
    over.value = false;
    void dropped(event.dataTransfer).then((files) => train.take(files));
  };
  return (
    <div
      class={classes(style.textStage, over.value && style.over)}
      onDragOver={(event) => {
        event.preventDefault();
        over.value = true;
      }}
      onDragLeave={() => (over.value = false)}
      onDrop={drop}
    >
      <div class={classes(ui.panel, ui.controls, style.controls)}>
        <h2>Choose a text</h2>
        <p class={ui.dim}>
          A model starts with random weights and learns, step by step, to write like this text. Nothing leaves this
          browser.
        </p>
        <Sets fixed={fixed} />
        <Own fixed={fixed} />
        <Fetched fixed={fixed} />
        {train.session.value && <p class={ui.dim}>Reset the training to choose another text.</p>}
      </div>
      <div class={classes(ui.panel, style.preview)}>
        <h2>What it will learn from</h2>
        <Inspected />
        <Cleaning fixed={fixed} />
        <Preview />
      </div>
    </div>
  );
}

function Sets({ fixed }: { fixed: boolean }) {
  return (
    <div class={style.sets} role="group" aria-label="Sets">
      {train.index.value!.texts.map(({ name, title, about, bytes }) => (
        <button
          key={name}
          disabled={fixed}
          aria-pressed={train.set.value === name}
          onClick={() => void train.takeSet(name)}
        >
          <b>{title}</b>
          <span class={ui.dim}>
            {about}, {(bytes / 1000).toFixed(0)} kB
          </span>
        </button>
      ))}
    </div>
  );
}

function Own({ fixed }: { fixed: boolean }) {
  const [first = ""] = train.documents.value;
  const long = train.documents.value.length !== 1 || first.length > LONG;
  return (
    <div class={style.ownText}>
      <label class={ui.prompt}>
        <span>{train.source.value || "Your own text"}</span>
        <textarea
          rows={5}
          readOnly={fixed || long}
          value={long ? `${first.slice(0, 2000)}…` : first}
          onInput={(e) => void train.type(e.currentTarget.value)}
        />
      </label>
      <div class={ui.buttons}>
        <Choose label="Files…" fixed={fixed} />
        <Choose label="A folder…" fixed={fixed} folder />
        <span class={ui.dim}>or drop files here, or paste a text above.</span>
      </div>
    </div>
  );
}

const ENCODINGS = { "utf-8": "UTF-8", "windows-1252": "Latin-1", "utf-16le": "UTF-16" };

/**
 * Shows buttons that fetch books, and a form that fetches a text from an address. Nothing is fetched before the visitor
 * presses a button or submits the form.
 */
function Fetched({ fixed }: { fixed: boolean }) {
  const address = useSignal("");
  const { books } = train.index.value!;
  const now = train.fetching.value;
  const busy = fixed || now !== null;
  return (
    <details class={style.fetched}>
      <summary>Fetch a book, or a text from an address</summary>
      {books.length > 0 && (
        <div class={ui.buttons}>
          {books.map(({ title, author, url }) => (
            <button
              key={url}
              disabled={busy}
              title={`${author}; fetched from ${new URL(url).host}`}
              onClick={() => void train.fetchFrom(url, title, "utf-8")}
            >
              {title}
            </button>
          ))}
        </div>
      )}
      <form
        class={ui.buttons}
        onSubmit={(e) => {
          e.preventDefault();
          void train.fetchFrom(address.value);
        }}
      >
        <label class={classes(ui.field, style.address)}>
          <span>Address</span>
          <input
            type="text"
            inputMode="url"
            placeholder="https://…/text.txt"
            value={address.value}
            disabled={busy}
            onInput={(e) => (address.value = e.currentTarget.value)}
          />
        </label>
        <label class={ui.field}>
          <span>Encoding</span>
          <select
            value={train.encoding.value}
            disabled={busy}
            onChange={(e) => (train.encoding.value = e.currentTarget.value)}
          >
            {Object.entries(ENCODINGS).map(([name, title]) => (
              <option key={name} value={name}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <button disabled={busy || !address.value.trim()}>Fetch</button>
      </form>
      {now && (
        <p role="status">
          {now.again ? `Trying again: ${now.again}. ` : ""}
          {now.what}: {megabytes(now.done)}
          {now.total > 0 && ` of ${megabytes(now.total)}`}
          <progress value={now.total ? now.done : undefined} max={now.total || 1} aria-label="Fetching" />
          <button onClick={train.cancelFetching}>Cancel</button>
        </p>
      )}
    </details>
  );
}

const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(2)} MB`;

function Choose({ label, fixed, folder = false }: { label: string; fixed: boolean; folder?: boolean }) {
  return (
    <label class={classes(ui.asButton, style.asButton, fixed && style.off)}>
      {label}
      <input
        type="file"
        multiple
        disabled={fixed}
        {...(folder ? { webkitdirectory: true } : {})}
        onChange={(e) => {
          void train.take(e.currentTarget.files ?? []);
          e.currentTarget.value = "";
        }}
      />
    </label>
  );
}

/** Returns the files that were dropped, including those within folders. */
async function dropped(data: DataTransfer | null): Promise<File[]> {
  const entries = Array.from(data?.items ?? []).flatMap((item) => item.webkitGetAsEntry() ?? []);
  const found: File[] = [];
  const walk = async (entry: FileSystemEntry): Promise<void> => {
    if (entry.isFile) {
      found.push(await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject)));
      return;
    }
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    for (;;) {
      const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) return; // the end; each call returns at most a hundred entries
      for (const inner of some) await walk(inner);
    }
  };
  for (const entry of entries) await walk(entry);
  return found.length ? found.sort((a, b) => (a.name < b.name ? -1 : 1)) : Array.from(data?.files ?? []);
}

function Inspected() {
  const found = train.inspection.value;
  if (!found) return <p class={ui.dim}>Reading the text…</p>;
  const scripts = Object.entries(found.scripts).filter(([, share]) => share >= 0.001);
  const facts: [string, string][] = [
    ["Bytes", thousands(found.bytes)],
    ["Characters", `${thousands(found.characters)} (${thousands(found.distinct)} distinct)`],
    ["Lines", thousands(found.lines)],
    [
      "Scripts",
      scripts.map(([name, share]) => `${name} ${(100 * share).toFixed(share > 0.99 ? 0 : 1)}%`).join(", ") || "none",
    ],
  ];
  return <Facts of={facts} />;
}

const SAID: Record<CleaningStep, string> = {
  headers: "remove the licence text around a book",
  lines: "normalise line endings",
  blanks: "remove extra blank lines and trailing spaces",
  duplicates: "remove duplicate documents",
};

function Cleaning({ fixed }: { fixed: boolean }) {
  return (
    <fieldset class={style.cleaning}>
      <legend>Clean-up</legend>
      {CLEANING.map((step) => {
        const done = train.removed.value.find((r) => r.step === step);
        return (
          <label key={step} class={ui.inline}>
            <input
              type="checkbox"
              disabled={fixed}
              checked={train.cleaning.value.includes(step)}
              onChange={(e) => void train.clean(step, e.currentTarget.checked)}
            />
            {SAID[step]}
            {done && done.places > 0 && (
              <span class={ui.dim}>
                {thousands(done.places)} {done.places === 1 ? "place" : "places"}, {thousands(done.characters)}{" "}
                characters
              </span>
            )}
          </label>
        );
      })}
    </fieldset>
  );
}

/** Shows the start of the text, and the place where the training text ends and the held-out part begins. */
function Preview() {
  const found = train.inspection.value;
  const text = train.text.value;
  if (!found || !text) return null;
  // approximate: multiplies the number of characters by a share of the bytes
  const at = Math.round(text.length * (1 - found.held_back / found.bytes));
  const learned = thousands(found.bytes - found.held_back);
  return (
    <>
      <div
        class={style.portions}
        role="img"
        aria-label={`${learned} bytes to train on, ${thousands(found.held_back)} held out`}
      >
        <span style={{ flexGrow: found.bytes - found.held_back }}>training text: {learned} bytes</span>
        <span class={style.held} style={{ flexGrow: found.held_back }}>
          held out
        </span>
      </div>
      <pre class={ui.sample} tabIndex={0}>
        {text.slice(0, Math.min(SHOWN, at))}
        {at > SHOWN && <i class={ui.dim}>{"\n⋯\n"}</i>}
        {at > 2 * SHOWN && text.slice(at - SHOWN / 4, at)}
        <mark>{text.slice(at, at + SHOWN)}</mark>
      </pre>
    </>
  );
}
