// What a page that embeds the module loads with the first call that needs it.

export { parity } from "./runtime/engine/parity";
export { TrainingCalls } from "./training-calls";
