// Numbers as texts: three digits and a unit, as dcp_dashboard/facts/quantities.py writes them.

export type Unit = readonly [name: string, factor: number];

const DURATIONS: readonly Unit[] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];
const SIZES: readonly Unit[] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
const NUMBER = new Intl.NumberFormat("en-US"); // made once: toLocaleString looks it up at every call

export function digits(value: number): string {
  if (value === 0) return "0";
  const decimals = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return String(Number(value.toFixed(Math.min(decimals, 12))));
}

const unitOf = (value: number, units: readonly Unit[]): Unit => units.find(([, f]) => Math.abs(value) >= f) ?? units[units.length - 1];

function scaled(value: number, units: readonly Unit[]): string {
  const [unit, factor] = unitOf(value, units);
  return `${digits(value / factor)}\u00a0${unit}`; // no line ends inside a quantity
}

/** How to write the times, or the bytes, of a column: in the unit of the largest. */
export const durationsLike = (most: number) => (ns: number): string => scaled(ns, [unitOf(most, DURATIONS)]);
export const sizesLike = (most: number) => (bytes: number): string => scaled(bytes, [unitOf(most, SIZES)]);

export const duration = (ns: number): string => scaled(ns, DURATIONS);
export const size = (bytes: number): string => scaled(bytes, SIZES);
export const count = (n: number): string => NUMBER.format(n);

/** A large number without a unit: "12,345", "1.23 M", "4.5 G". */
export function amount(value: number): string {
  return value < 1e6 ? count(Math.round(value)) : scaled(value, [["G", 1e9], ["M", 1e6]]);
}

/** Max/mean and the like with two decimals, three digits at least. */
export function ratio(value: number): string {
  const decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}
