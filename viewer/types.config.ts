// Builds the scriptable object's types, for pages and editors that use TypeScript.
import { dts } from "rolldown-plugin-dts";

export default {
  input: { glgpt: "src/embed.ts" },
  plugins: [dts({ emitDtsOnly: true, compilerOptions: { stripInternal: true } })], // omits members marked @internal
  output: { dir: "dist/embed" },
};
