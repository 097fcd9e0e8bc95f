// What the address of /edit holds behind its "#": the text, compressed, if it differs from the one that `?spec=` gives,
// and every setting that is not at its default. The part behind "#" is never sent to the server.

const MOST = 12_000; // characters: longer addresses are cut by mail and chat programs

/** Sends bytes through a stream that packs or unpacks them. */
async function through(stream: CompressionStream | DecompressionStream, bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

export async function pack(text: string): Promise<string> {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
  let plain = "";
  for (const byte of bytes) plain += String.fromCharCode(byte);
  return btoa(plain).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The text, null for what is no packed text. */
export async function unpack(packed: string): Promise<string | null> {
  if (packed.length > MOST || !/^[\w-]*$/.test(packed)) return null;
  try {
    const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const text = new TextDecoder("utf-8", { fatal: true }).decode(
      await through(new DecompressionStream("deflate-raw"), bytes));
    return text.length <= 200_000 ? text : null;
  } catch {
    return null; // somebody cut the address short
  }
}

export interface Address { readonly text: string | null; readonly isDamaged: boolean; readonly settings: Readonly<Record<string, string>> }

export async function readAddress(): Promise<Address> {
  const settings = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const { text: packed = "", ...rest } = settings;
  const text = packed ? await unpack(packed) : null;
  return { text, isDamaged: packed !== "" && text === null, settings: rest };
}

/** Returns true if the text found room. */
export async function writeAddress(text: string | null, settings: Readonly<Record<string, string>>): Promise<boolean> {
  const path = location.pathname;
  const packed = text === null ? "" : await pack(text);
  const fits = packed.length <= MOST;
  const query = new URLSearchParams(settings);
  if (packed && fits) query.set("text", packed);
  const hash = query.toString();
  if (location.pathname === path) { // another page may have come meanwhile
    history.replaceState(history.state, "", location.pathname + location.search + (hash ? `#${hash}` : ""));
  }
  return fits;
}
