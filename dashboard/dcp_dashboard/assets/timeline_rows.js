// Which rows a timeline has, where they are and how high: one per device, or one per node where devices would be too
// thin to see; with predicted and measured together each has two, one under the other.
"use strict";

window.dcp = window.dcp || {};

window.dcp.rows = (() => {
  const LANES = { compute: 0, send: 1, receive: 2, wait: 3 };
  // Top and bottom of each lane as shares of a row; what is left between rows is a gap.
  const BANDS = [];
  BANDS[LANES.compute] = [0.04, 0.56];
  BANDS[LANES.wait] = [0.2, 0.4];
  BANDS[LANES.send] = [0.58, 0.76];
  BANDS[LANES.receive] = [0.78, 0.96];
  const DRAWN = [LANES.compute, LANES.wait, LANES.send, LANES.receive];
  const THIN = 6; // CSS pixels; below that a row says nothing
  const HIGH = 56;

  // "all", "none" or "0,3" -> the nodes whose devices have rows; without a text all, unless that makes them thin.
  function openNodes(text, { nodeStarts, sources, room }) {
    const nodes = nodeStarts.length - 1;
    const devices = nodeStarts[nodes];
    if (text === "none") return new Set();
    if (text && text !== "all") return new Set(text.split(",").map(Number).filter((n) => n >= 0 && n < nodes));
    const all = new Set(Array.from({ length: nodes }, (_, node) => node));
    return text === "all" || devices * sources * THIN <= room || nodes === 1 ? all : new Set();
  }

  function textOf(open, nodes) {
    if (open.size === nodes) return "all";
    return open.size ? [...open].sort((a, b) => a - b).join(",") : "none";
  }

  // Rows from top to bottom: {source, node, devices: [first, past), isNode, y, height}, y in CSS pixels.
  function layout({ nodeStarts, sources, room, least, open }) {
    const rows = [];
    for (let node = 0; node + 1 < nodeStarts.length; node++) {
      const [first, past] = nodeStarts.slice(node, node + 2);
      if (!open.has(node)) {
        for (let source = 0; source < sources; source++) {
          rows.push({ source, node, devices: [first, past], isNode: true });
        }
        continue;
      }
      for (let device = first; device < past; device++) {
        for (let source = 0; source < sources; source++) {
          rows.push({ source, node, devices: [device, device + 1], isNode: false });
        }
      }
    }
    const height = Math.max(least, Math.min(HIGH, Math.floor(room / Math.max(1, rows.length))));
    rows.forEach((row, i) => { row.y = i * height; row.height = height; });
    return { rows, height, total: height * rows.length };
  }

  // The node of a device: the last one that starts at it or before.
  const nodeOf = (nodeStarts, device) => nodeStarts.findLastIndex((start) => start <= device);

  // Top and bottom of a lane of a row, in CSS pixels from the row's top.
  const band = (row, lane) => BANDS[lane].map((share) => share * row.height);

  // Lanes under a share of a row's height, the one to prefer last.
  function lanesAt(share) {
    if (share < 0.57) return [LANES.compute, LANES.wait];
    return [share < 0.77 ? LANES.send : LANES.receive];
  }

  return { BANDS, DRAWN, THIN, openNodes, textOf, layout, nodeOf, band, lanesAt };
})();
