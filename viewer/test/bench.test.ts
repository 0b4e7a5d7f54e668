import { expect, test } from "vitest";
import { peakOf } from "../../benchmarks/web/page";

test("a peak is the best of its samples, and unsure unless the second best is close", () => {
  expect(peakOf([565, 1840, 1850, 1790])).toEqual({ rate: 1850, sure: true }); // the first ran at a low clock rate
  expect(peakOf([565, 1850, 900])).toEqual({ rate: 1850, sure: false });
  expect(peakOf([1850])).toEqual({ rate: 1850, sure: false });
  expect(peakOf([])).toEqual({ rate: 0, sure: false });
});
