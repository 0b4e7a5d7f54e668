// Tests the page's button, which can have the focus while it is off (disabled).

import { expect, it, vi } from "vitest";
import { Button } from "../src/app/ui/button";

it("does nothing while it is off, but can have the focus", () => {
  const onClick = vi.fn();
  const shown = (off: boolean) => Button({ off, onClick }).props as unknown as Record<string, unknown>;
  const press = (off: boolean) => (shown(off)["onClick"] as () => void)();
  expect(shown(true)).toMatchObject({ "aria-disabled": true });
  expect(shown(true)).not.toHaveProperty("disabled");
  press(true);
  expect(onClick).not.toHaveBeenCalled();
  press(false);
  expect(onClick).toHaveBeenCalledOnce();
});
