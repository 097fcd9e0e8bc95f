// What the address of /edit holds behind its "#": the text, compressed, if it differs from the one that `?spec=` gives,
// and every setting that is not at its default. The part behind "#" is never sent to the server.
"use strict";

window.dcp = window.dcp || {};
window.dcp.edit = window.dcp.edit || {};

(() => {
  const MOST = 12_000; // characters: longer addresses are cut by mail and chat programs

  async function through(stream, bytes) {
    return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
  }

  async function pack(text) {
    const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
    let plain = "";
    for (const byte of bytes) plain += String.fromCharCode(byte);
    return btoa(plain).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  }

  async function unpack(packed) {
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

  // -> {text: string | null, isDamaged, settings: {name: text}}
  async function readAddress() {
    const settings = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const { text: packed, ...rest } = settings;
    const text = packed ? await unpack(packed) : null;
    return { text, isDamaged: Boolean(packed) && text === null, settings: rest };
  }

  // Gives whether the text found room.
  async function writeAddress(text, settings) {
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

  Object.assign(window.dcp.edit, { readAddress, writeAddress });
})();
