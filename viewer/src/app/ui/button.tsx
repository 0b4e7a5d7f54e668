// A button that keeps the focus while it is disabled.

import type { ComponentProps } from "preact";

interface ButtonProps extends Omit<ComponentProps<"button">, "disabled" | "onClick"> {
  off: boolean;
  onClick: () => void;
}

/**
 * Shows a button that does nothing while `off` is true. Unlike a disabled button, it keeps the keyboard focus then: use
 * it for an action during which the button is off.
 */
export function Button({ off, onClick, ...rest }: ButtonProps) {
  return <button {...rest} aria-disabled={off} onClick={() => !off && onClick()} />;
}
