// Exports the code of rarely used calls. The embed module loads this code when one of them is called first.

export { parity } from "./runtime/engine/parity";
export { TrainingCalls } from "./training-calls";
