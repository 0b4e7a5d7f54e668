// What other features may use of training together.

export { Together } from "./panel";
