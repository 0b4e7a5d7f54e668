// Colour palettes for values: one palette with a hue for each sign, in which zero is transparent, and palettes that
// interpolate eight colours.

/** Colours of values above and below zero (red, green, blue; 0 to 255). The closer to zero, the more transparent. */
export const BLUE = [51, 120, 245];
export const ORANGE = [237, 115, 33];

export interface Palette {
  name: string;
  /** True if positive values have one hue and negative ones another, and zero is transparent. */
  signed: boolean;
  /** Eight colours, each red, green and blue from 0 to 1. */
  colors: Float32Array;
}

function ladder(name: string, hex: string): Palette {
  const colors = hex.split(" ").flatMap((c) => [0, 2, 4].map((i) => parseInt(c.slice(i, i + 2), 16) / 255));
  return { name, signed: false, colors: Float32Array.from(colors) };
}

export const PALETTES: readonly [Palette, ...Palette[]] = [
  { name: "sign: blue +, orange −", signed: true, colors: new Float32Array(24) },
  ladder("sea", "1a0d4d 1f387a 1a618a 1a8587 38a875 80c754 ccdb40 fced66"),
  ladder("embers", "050208 400a33 801a33 bf331a eb6b0d ffa826 ffdb73 fffae6"),
  ladder("grey", "000000 242424 494949 6d6d6d 929292 b6b6b6 dbdbdb ffffff"),
];

/** Returns the palette as a CSS gradient from its lowest to its highest value. */
export function gradient(palette: Palette): string {
  if (palette.signed) return `linear-gradient(90deg, rgb(${ORANGE.join(" ")}), transparent, rgb(${BLUE.join(" ")}))`;
  const stops = Array.from({ length: 8 }, (_, i) => {
    const [r, g, b] = Array.from(palette.colors.subarray(3 * i, 3 * i + 3), (x) => Math.round(255 * x));
    return `rgb(${r} ${g} ${b})`;
  });
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}
