// The reading half of the wire format in dcp_dashboard/api/columns.py: "DCPC", u32 header size, JSON header,
// then little-endian columns at multiples of 8. Typed arrays look straight into the response.
"use strict";

window.dcp = window.dcp || {};

window.dcp.columns = (() => {
  const TYPES = {
    u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, i4: Int32Array, f8: Float64Array,
  };

  // ArrayBuffer -> {header, columns: {name: typed array}}; throws when the buffer is something else.
  function decode(buffer) {
    const magic = String.fromCharCode(...new Uint8Array(buffer, 0, 4));
    if (magic !== "DCPC") throw new Error(`expected a DCPC payload, got ${JSON.stringify(magic)}`);
    const size = new DataView(buffer).getUint32(4, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
    const columns = {};
    for (const { name, dtype, length, offset } of header.columns) {
      columns[name] = new TYPES[dtype](buffer, 8 + size + offset, length);
    }
    return { header, columns };
  }

  // Fetches and decodes; a refusal's own message becomes the error's message.
  async function load(url, signal) {
    const response = await fetch(url, { signal, credentials: "same-origin" });
    if (!response.ok) {
      const refusal = await response.json().catch(() => ({}));
      throw new Error(refusal.error || `the server answered ${response.status}`);
    }
    return decode(await response.arrayBuffer());
  }

  return { decode, load };
})();
