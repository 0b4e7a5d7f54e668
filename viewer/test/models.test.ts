// Tests which model the page uses after a switch, and after a switch that failed.

import { expect, it } from "vitest";
import type { Glgpt, Used } from "../src/api";
import { models } from "../src/app/stores/model";

it("opens the earlier file again, although another file could not be opened since", async () => {
  const opened: (readonly File[])[] = [];
  const use = (_: Used, files: readonly File[]) => {
    opened.push(files);
    return files[0]!.name === "bad.zip" ? Promise.reject(new Error("It is not a model.")) : Promise.resolve();
  };
  const own = { device: { compiling: { value: { compiled: 0, shaders: 0 } } } };
  models.engine = { own, training: {}, use } as unknown as Glgpt;
  const [good, bad] = ["good.zip", "bad.zip"].map((name) => [new File([], name)]);
  await models.use("file", good);
  await models.use("file", bad);
  expect(models.refused.value).toBe("It is not a model.");
  await models.use("file");
  expect(opened.at(-1)).toBe(good);
});
