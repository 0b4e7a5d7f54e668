// Exports the code of calls that few pages make. The embed module loads it with the first of these calls.

export { parity } from "./runtime/engine/parity";
export { TrainingCalls } from "./training-calls";
