// Names the calls that few pages make. A module loads them with the first of these calls.

export { parity } from "./runtime/engine/parity";
export { TrainingCalls } from "./training-calls";
