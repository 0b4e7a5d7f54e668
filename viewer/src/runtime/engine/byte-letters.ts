// Lists the letters with which byte-level vocabularies write bytes.

const printed = (byte: number) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
const bytes = Array.from({ length: 256 }, (_, byte) => byte);
const others = bytes.filter((byte) => !printed(byte));

/** The letter of each byte in vocab.json: its Latin-1 character if that is printable, else a letter from U+0100 on. */
export const LETTERS: readonly string[] = bytes.map((byte) =>
  String.fromCharCode(printed(byte) ? byte : 0x100 + others.indexOf(byte)),
);
