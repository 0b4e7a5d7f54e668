// A number input.

import type { Signal } from "@preact/signals";
import ui from "./shared.module.css";

const DIGITS = 12; // significant digits of a shown number: the digits after these hold only rounding errors

interface NumberProps {
  label: string;
  of: Signal<number>;
  min: number;
  max?: number;
  /** 1: the field accepts only integers; "any": all numbers. */
  step: 1 | "any";
  hint: string;
  fixed?: boolean;
  onSet?: () => void;
}

/** Returns an entered number, rounded to an integer if `step` is 1, and clamped to `min` and `max`. */
export function fitted(value: number, { min, max = Infinity, step }: Pick<NumberProps, "min" | "max" | "step">) {
  return Math.min(max, Math.max(min, step === 1 ? Math.round(value) : value));
}

/** Returns a number with at most 12 digits, such as 0.0003 for 0.00030000000000000003. Integers have all digits. */
export const numberText = (value: number) =>
  String(Number.isInteger(value) ? value : Number(value.toPrecision(DIGITS)));

/** Shows a number input, which fits an entered number to its range. Other input leaves the value unchanged. */
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
        value={numberText(of.value)}
        onChange={(e) => {
          const value = e.currentTarget.valueAsNumber;
          if (Number.isFinite(value)) of.value = fitted(value, { min, max, step });
          onSet?.();
          e.currentTarget.value = numberText(of.value);
        }}
      />
    </label>
  );
}
