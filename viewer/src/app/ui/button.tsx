// A button that keeps the focus while it is disabled.

import type { ComponentProps } from "preact";

interface ButtonProps extends Omit<ComponentProps<"button">, "disabled" | "onClick"> {
  off: boolean;
  onClick: () => void;
}

/**
 * Shows a button that does nothing while `off` is true. Unlike a disabled button, it does not lose the keyboard focus.
 * Use it for an action that turns its own button off until the action ends.
 */
export function Button({ off, onClick, ...rest }: ButtonProps) {
  return <button {...rest} aria-disabled={off} onClick={() => !off && onClick()} />;
}
