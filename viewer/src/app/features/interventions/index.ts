// The parts of interventions that views use.

export { Compared } from "./compared";
export { AblateButton, AblateButtons, LooksAt } from "./controls";
