// The parts of the Text view that other features may use.

export { Sliders } from "./sampling";
export { TokenText } from "./token-text";
