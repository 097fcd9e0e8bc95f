// Names of the sequences along an edge of the mask, as many as stand there without touching.

/** A name, its sequence, and the pixel along the edge that is its middle. */
export interface EdgeLabel { readonly sequence: number; readonly text: string; readonly at: number }

interface Edge { readonly start: number; readonly end: number; readonly span: number; readonly size: number }

const GAP = 6; // CSS pixels between two names

/** The sequence of a token, negative past the last; `borders` as `cu_seqlens` of a plan. */
export function sequenceAt(borders: readonly number[], token: number): number {
  return borders.findIndex((border, at) => at > 0 && token < border) - 1;
}

/** "3 · row 17: chat-9f3a", "seq 3" or "3", the longest that a sequence has room for; nothing where it would touch the name before. */
export function edgeLabels(
  borders: readonly number[], names: readonly string[], { start, end, span, size }: Edge, measure: (text: string) => number,
): EdgeLabel[] {
  const labels: EdgeLabel[] = [];
  let free = 0;
  for (let sequence = 0; sequence + 1 < borders.length; sequence++) {
    const [from, to] = [Math.max(start, borders[sequence]), Math.min(end, borders[sequence + 1])];
    const at = (((from + to) / 2 - start) / span) * size;
    if (from >= to || at < free) continue;
    const room = ((to - from) / span) * size - GAP;
    const text = wordings(sequence, names).find((words) => measure(words) <= room) ?? String(sequence);
    const half = measure(text) / 2;
    if (at - half < free || at + half > size) continue;
    labels.push({ sequence, text, at });
    free = at + half + GAP;
  }
  return labels;
}

/** What a sequence may be called, the longest first. */
function wordings(sequence: number, names: readonly string[]): string[] {
  const name = sequence < names.length ? names[sequence] : "";
  const [row] = name.split(":");
  return [...name ? [`${sequence} · ${name}`, `${sequence} · ${row}`] : [], `seq ${sequence}`];
}
