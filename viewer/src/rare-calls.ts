// Exports the code of rarely used calls. The embed module loads this code with the first of these calls.

export { parity } from "./runtime/engine/parity";
export { TrainingCalls } from "./training-calls";
