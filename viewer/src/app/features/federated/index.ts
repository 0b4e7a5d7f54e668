// The parts of federated training that other features may use.

export { Together } from "./panel";
