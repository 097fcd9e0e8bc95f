// Colours as pixels of a little-endian Uint32 buffer, mixed in whole steps.

/** The opaque pixel of "#rrggbb". */
export function pixel(hex: string): number {
  const rgb = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
}

/** A pixel some share of the way from one to another. */
export function mix(from: number, to: number, share: number): number {
  let mixed = 0xff000000;
  for (const shift of [0, 8, 16]) {
    const start = (from >>> shift) & 255;
    mixed |= Math.round(start + (((to >>> shift) & 255) - start) * share) << shift;
  }
  return mixed >>> 0;
}

/** `steps` pixels from the background to a colour: entry i is i/(steps-1) of the way. */
export function blend(background: number, colour: number, steps: number): Uint32Array {
  return Uint32Array.from({ length: steps }, (_, i) => mix(background, colour, i / (steps - 1)));
}

/** A custom property of tokens.css as "#rrggbb". */
export function themeColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
