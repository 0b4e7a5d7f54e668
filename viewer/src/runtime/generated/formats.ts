// Storage formats, as in glgpt/program/formats.py. Written by scripts/generate_schema.py.

export const FORMATS = {
  f32: { texture: "float", columnTiles: 1 },
  f16: { texture: "uint", columnTiles: 2 },
  q8: { texture: "uint", columnTiles: 4, memory: "i8", bits: 8, group: 32, scaleRows: 2, minimum: false, wide: false },
  q4: { texture: "uint", columnTiles: 8, memory: "u4", bits: 4, group: 32, scaleRows: 8, minimum: true, wide: false },
  q5_1: { texture: "uint", columnTiles: 4, memory: "u8", bits: 8, group: 32, scaleRows: 4, minimum: true, wide: false },
  q4_k: { texture: "uint", columnTiles: 8, memory: "u4", bits: 4, group: 32, scaleRows: 16, minimum: true, wide: true },
  q5_k: { texture: "uint", columnTiles: 4, memory: "u8", bits: 8, group: 32, scaleRows: 8, minimum: true, wide: true },
  q6_k: { texture: "uint", columnTiles: 4, memory: "i8", bits: 8, group: 16, scaleRows: 4, minimum: false, wide: true },
} as const;
