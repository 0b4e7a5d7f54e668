import { expect, test } from "vitest";
import { peakOf } from "../../benchmarks/web/page";

test("a peak is the highest sample, and is sure only if the second highest is close to it", () => {
  expect(peakOf([565, 1840, 1850, 1790])).toEqual({ rate: 1850, sure: true }); // 565: at a low clock rate
  expect(peakOf([565, 1850, 900])).toEqual({ rate: 1850, sure: false });
  expect(peakOf([1850])).toEqual({ rate: 1850, sure: false });
  expect(peakOf([])).toEqual({ rate: 0, sure: false });
});
