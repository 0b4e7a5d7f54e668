// What other views use of the Text view.

export { Sliders } from "./sampling";
export { TokenText } from "./token-text";
