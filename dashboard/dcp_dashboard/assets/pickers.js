// The two pickers of /compare: choosing a plan opens the comparison.
"use strict";

window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.dcp = window.dash_clientside.dcp || {};

// Each value is "<key>~<source>"; `shown` is what the page shows now, nothing happens while it is the same.
window.dash_clientside.dcp.compare = (a, b, shown) => {
  if (location.pathname === "/compare" && (a !== shown[0] || b !== shown[1])) {
    const query = new URLSearchParams();
    for (const [name, value] of [["a", a], ["b", b]]) {
      if (!value) continue;
      const [key, source] = value.split("~");
      query.set(name, key);
      query.set(`${name}s`, source);
    }
    window.dcp.navigation.open(`/compare?${query}`);
  }
  return window.dash_clientside.no_update;
};
