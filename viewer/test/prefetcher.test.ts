// Tests which files are fetched before they are needed.

import { expect, test } from "vitest";
import { Prefetcher } from "../src/runtime/engine/prefetcher";

/**
 * Returns a prefetcher of files of these sizes, the files that it has begun to fetch, and for each file a function that
 * lets the file arrive. Files of at most `most` bytes in total are fetched ahead.
 */
function files(sizes: readonly number[], most: number) {
  const begun: number[] = [];
  const arrive: (() => Promise<void>)[] = [];
  const fetch = (file: number) => {
    begun.push(file);
    return new Promise<string>((resolve) => {
      arrive[file] = () => {
        resolve(`file ${file}`);
        return new Promise((next) => setTimeout(next));
      };
    });
  };
  return { prefetcher: new Prefetcher(sizes, most, fetch), begun, arrive };
}

test("files are fetched one at a time, while the files that wait have at most the allowed bytes", async () => {
  const { prefetcher, begun, arrive } = files([4, 4, 4, 4], 10);
  expect(begun).toEqual([0]);
  await arrive[0]!();
  expect(begun).toEqual([0, 1]);
  await arrive[1]!();
  expect(begun).toEqual([0, 1]); // a third file does not fit
  expect(await prefetcher.next()).toBe("file 0");
  expect(begun).toEqual([0, 1, 2]);
  expect(await prefetcher.next()).toBe("file 1");
  expect(begun).toEqual([0, 1, 2]); // the third file has not arrived
  await arrive[2]!();
  expect(begun).toEqual([0, 1, 2, 3]);
});

test("one file is fetched ahead, even if it has more than the allowed bytes", async () => {
  const { prefetcher, begun, arrive } = files([40, 40], 10);
  await arrive[0]!();
  expect(begun).toEqual([0]);
  expect(await prefetcher.next()).toBe("file 0");
  expect(begun).toEqual([0, 1]);
});

test("a file that cannot be fetched is reported when it is needed", async () => {
  const prefetcher = new Prefetcher([1, 1], 9, (file) =>
    file ? Promise.reject(new Error("offline")) : Promise.resolve("file 0"),
  );
  expect(await prefetcher.next()).toBe("file 0");
  await expect(prefetcher.next()).rejects.toThrow("offline");
});
