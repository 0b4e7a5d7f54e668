// The parts of training together that other features may use.

export { Together } from "./panel";
