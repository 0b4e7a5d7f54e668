// Colours for values: one by sign, which lets the page shine through, and ladders of eight colours.

/** Above and below zero, red, green and blue of 255, as shaders draw them: as transparent as a value is small. */
export const BLUE = [51, 120, 245];
export const ORANGE = [237, 115, 33];

export interface Palette {
  name: string;
  /** Positive in one hue, negative in another, zero transparent. */
  signed: boolean;
  /** Eight colours, red, green and blue from 0 to 1. */
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

/** The palette as a CSS gradient, from its lowest value to its highest. */
export function gradient(palette: Palette): string {
  if (palette.signed) return `linear-gradient(90deg, rgb(${ORANGE.join(" ")}), transparent, rgb(${BLUE.join(" ")}))`;
  const stops = Array.from({ length: 8 }, (_, i) => {
    const [r, g, b] = Array.from(palette.colors.subarray(3 * i, 3 * i + 3), (x) => Math.round(255 * x));
    return `rgb(${r} ${g} ${b})`;
  });
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}
