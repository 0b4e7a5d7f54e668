// What other features may use of the tour.

export { CARD, openCard } from "./tour";
