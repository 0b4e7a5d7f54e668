// A number input.

import type { Signal } from "@preact/signals";
import ui from "./shared.module.css";

interface NumberProps {
  label: string;
  of: Signal<number>;
  min: number;
  max?: number;
  step: number | "any";
  hint: string;
  fixed?: boolean;
  onSet?: () => void;
}

/** Shows a number input. Clamps an entered number to `min` and `max`; other input leaves the value unchanged. */
export function NumberField({ label, of, min, max = Infinity, step, hint, fixed = false, onSet }: NumberProps) {
  return (
    <label class={ui.field} title={hint}>
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        disabled={fixed}
        min={min}
        {...(max < Infinity ? { max } : {})}
        step={step}
        value={of.value}
        onChange={(e) => {
          const value = e.currentTarget.valueAsNumber;
          if (Number.isFinite(value)) of.value = Math.min(max, Math.max(min, value));
          onSet?.();
          e.currentTarget.value = String(of.value);
        }}
      />
    </label>
  );
}
