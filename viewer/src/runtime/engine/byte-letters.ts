// The letters of byte-level vocabularies.

const printed = (byte: number) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
let others = 0x100;

/** The letter of each byte in vocab.json: the byte itself if Latin-1 prints it, else one from U+0100 on. */
export const LETTERS: readonly string[] = Array.from({ length: 256 }, (_, byte) =>
  String.fromCharCode(printed(byte) ? byte : others++),
);
