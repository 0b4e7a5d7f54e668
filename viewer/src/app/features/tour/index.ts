// The parts of the tour that other features may use.

export { CARD, openCard } from "./tour";
