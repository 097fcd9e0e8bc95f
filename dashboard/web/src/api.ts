// What the server is asked, and the reading half of the wire format in dcp_dashboard/api/encoding.py: "DCPC", u32 header
// size, JSON header, then little-endian columns at multiples of 8. Typed arrays look straight into the response.
import { isAbort } from "./kit/dom.ts";

export type Column = Uint8Array | Uint16Array | Uint32Array | Int16Array | Int32Array | Float64Array;

/** A decoded answer: the header, and columns by name. */
export interface Payload<Header = unknown, Name extends string = string> {
  readonly header: Header;
  readonly columns: Readonly<Record<Name, Column>>;
}

interface Layout { readonly columns: readonly { name: string; dtype: keyof typeof TYPES; length: number; offset: number }[] }

const TYPES = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, i4: Int32Array, f8: Float64Array,
} as const;

/** Decodes a payload; throws when the buffer is something else. What it holds is the server's word: `P` says what is expected. */
export function decode<P extends Payload>(buffer: ArrayBuffer): P {
  const magic = String.fromCharCode(...new Uint8Array(buffer, 0, 4));
  if (magic !== "DCPC") throw new Error(`expected a DCPC payload, got ${JSON.stringify(magic)}`);
  const size = new DataView(buffer).getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size))) as Layout;
  const columns: Record<string, Column> = {};
  for (const { name, dtype, length, offset } of header.columns) {
    columns[name] = new TYPES[dtype](buffer, 8 + size + offset, length);
  }
  return { header, columns } as unknown as P;
}

/** Fetches and decodes columns. */
export async function loadColumns<P extends Payload>(url: string, signal?: AbortSignal): Promise<P> {
  return decode<P>(await (await ask(url, signal ? { signal } : {})).arrayBuffer());
}

/** Fetches and decodes the columns of several addresses, spaces between them. */
export function loadEach<P extends Payload>(urls: string, signal: AbortSignal): Promise<P[]> {
  return Promise.all(urls.split(" ").map((url) => loadColumns<P>(url, signal)));
}

/** Fetches JSON. */
export async function loadJson<T>(url: string, options: RequestInit = {}): Promise<T> {
  return refused<T>(await (await ask(url, options)).json());
}

const TAB = Math.random().toString(36).slice(2); // each tab has a checker of its own

/** Sends JSON and gives the JSON or, where the server sends columns, their bytes. */
export async function post<T>(url: string, body: object): Promise<T> {
  const response = await ask(url, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...body, tab: TAB }),
  });
  if (response.headers.get("Content-Type") === "application/json") return refused<T>(await response.json());
  return (await response.arrayBuffer()) as T;
}

// A refusal's own message becomes the error's message.
async function ask(url: string, options: RequestInit): Promise<Response> {
  const response = await fetch(url, { credentials: "same-origin", ...options }).catch((error: unknown) => {
    throw isAbort(error) ? error : new Error("the server does not answer; start `dcpm dashboard` again and reload this page");
  });
  if (response.ok) return response;
  const refusal = await response.json().catch(() => ({})) as { error?: string };
  throw new Error(refusal.error ?? `the server answered ${response.status}`);
}

// The editor's refusals are answers with an `error`: a text that is being typed is mostly wrong.
function refused<T>(answer: unknown): T {
  const { error } = (answer ?? {}) as { error?: string };
  if (error) throw new Error(error);
  return answer as T;
}
