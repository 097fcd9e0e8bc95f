// Names of the sequences along an edge of the mask, as many as stand there without touching.

/** A name, its sequence, and the pixel along the edge that is its middle. */
export interface EdgeLabel { readonly sequence: number; readonly text: string; readonly at: number }

interface Edge { readonly start: number; readonly end: number; readonly span: number; readonly size: number }

const GAP = 6; // CSS pixels between two names

/** The sequence of a token, negative past the last; `borders` as `cu_seqlens` of a plan. */
export function sequenceAt(borders: readonly number[], token: number): number {
  return borders.findIndex((border, at) => at > 0 && token < border) - 1;
}

/** "seq 3" where a sequence has room for it, "3" where it has less; nothing where it would touch the name before. */
export function edgeLabels(borders: readonly number[], { start, end, span, size }: Edge, measure: (text: string) => number): EdgeLabel[] {
  const labels: EdgeLabel[] = [];
  let free = 0;
  for (let sequence = 0; sequence + 1 < borders.length; sequence++) {
    const [from, to] = [Math.max(start, borders[sequence]), Math.min(end, borders[sequence + 1])];
    const at = (((from + to) / 2 - start) / span) * size;
    if (from >= to || at < free) continue;
    const long = `seq ${sequence}`;
    const text = measure(long) + GAP <= ((to - from) / span) * size ? long : String(sequence);
    const half = measure(text) / 2;
    if (at - half < free || at + half > size) continue;
    labels.push({ sequence, text, at });
    free = at + half + GAP;
  }
  return labels;
}
