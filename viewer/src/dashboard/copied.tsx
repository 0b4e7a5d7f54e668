// Shows a read-only text with a button that copies the text.

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import ui from "../app/ui/shared.module.css";
import style from "./copied.module.css";

const SAID_MS = 2000;

export function Copied({ label, text }: { label: string; text: string }) {
  const said = useSignal("");
  const input = useRef<HTMLInputElement>(null);
  const copy = async () => {
    input.current!.select();
    try {
      await navigator.clipboard.writeText(text);
      said.value = "Copied";
    } catch {
      said.value = "Press Ctrl+C"; // the browser forbids copying, or plain http has no clipboard
    }
    setTimeout(() => (said.value = ""), SAID_MS);
  };
  return (
    <div class={style.copied}>
      <label class={ui.field}>
        <span>{label}</span>
        <input ref={input} readOnly value={text} onFocus={(e) => e.currentTarget.select()} />
      </label>
      <button onClick={() => void copy()}>Copy</button>
      <span class={ui.dim} role="status">
        {said.value}
      </span>
    </div>
  );
}
