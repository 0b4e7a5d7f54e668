// Makes the properties of objects observable.

import { signal } from "@preact/signals-core";

/** Turns properties into signals: an effect, computed signal or component that reads a property follows its changes. */
export function observe<T extends object>(target: T, names: readonly (keyof T)[]): void {
  for (const name of names) {
    const value = signal(target[name]);
    Object.defineProperty(target, name, {
      enumerable: true,
      get: () => value.value,
      set: (next: T[typeof name]) => (value.value = next),
    });
  }
}
