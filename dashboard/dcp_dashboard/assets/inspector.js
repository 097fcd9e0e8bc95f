// The panel that says everything about the selected thing: it asks the server for the facts (dcp.facts/1) and shows
// them as rows whose links select further.
"use strict";

window.dcp = window.dcp || {};

window.dcp.Inspector = (() => {
  function element(name, text = "", className = "") {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function clearing() {
    const button = element("button", "Clear", "dcp-quiet");
    button.type = "button";
    button.title = "Esc";
    button.addEventListener("click", () => window.dcp.state.set({ sel: null }));
    return button;
  }

  // Plain words, or a button that selects: nothing is loaded by it, so it is no link.
  function word({ text, sel, time, source }) {
    if (!sel) return document.createTextNode(text);
    const button = element("button", text, "dcp-link");
    button.type = "button";
    button.dataset.sel = sel;
    if (time) {
      button.dataset.time = time;
      button.dataset.source = source;
      button.title = "Select it and show this time in the timeline";
    }
    return button;
  }

  class Inspector {
    static load() { return null; }

    constructor(host) {
      this.host = host;
      this.hint = [...host.childNodes];
      // A page that needs no server brings what it knows along.
      const bundle = document.getElementById("dcp-bundle");
      this.isAlone = Boolean(bundle);
      this.known = new Map(bundle ? Object.entries(JSON.parse(bundle.textContent).facts) : []);
      window.dcp.finder(host);
      this.show();
      this.unfollow = window.dcp.state.follow((_, changed) => { if (changed.has("sel")) this.show(); });
    }

    dispose() {
      this.unfollow();
      this.asked?.abort();
    }

    resize() {}

    recolour() {}

    // The address of the facts about a selection, null if there is none.
    static address(key, sel) {
      if (!sel) return null;
      const base = `/api/plan/${key}`;
      const way = sel.backward ? "backward" : "forward";
      switch (sel.type) {
        case "tile": return `${base}/tile/${sel.tile}`;
        case "sequence": return `${base}/sequence/${sel.sequence}`;
        case "device": return `${base}/device/${sel.device}${sel.peer === undefined ? "" : `/${sel.peer}`}`;
        case "division":
          return `${base}/division/${way}/${sel.division}${sel.device === undefined ? "" : `?device=${sel.device}`}`;
        case "transfer":
          if (sel.transfer !== undefined) return `${base}/transfer/${sel.transfer}`;
          return `${base}/device/${sel.device}/${sel.peer}`;
        case "event": return sel.source ? `${base}/event/${sel.source}/${sel.event}` : `${base}/device/${sel.device}`;
        default: return null;
      }
    }

    async show() {
      this.asked?.abort();
      const address = this.constructor.address(this.host.dataset.key, window.dcp.state.get().sel);
      if (!address) {
        this.host.dataset.state = "empty";
        this.host.replaceChildren(...this.hint);
        return;
      }
      const known = this.known.get(address) || (this.isAlone && this.known.get(address.split("?")[0]));
      if (known) { this.draw(known); return; }
      if (this.isAlone) {
        const note = element("p", "This page knows devices and divisions; for tiles, events and messages open the "
          + "plan file with dcpm dashboard.", "dcp-hint");
        this.host.replaceChildren(note, clearing());
        this.host.dataset.state = "empty";
        return;
      }
      this.asked = new AbortController();
      this.host.dataset.state = "loading";
      try {
        const response = await fetch(address, { signal: this.asked.signal, credentials: "same-origin" });
        if (!response.ok) {
          const refusal = await response.json().catch(() => ({}));
          throw new Error(refusal.error || `the server answered ${response.status}`);
        }
        const answer = await response.json(); // an abort here must not be kept as an answer
        if (this.known.size > 200) this.known.clear();
        this.known.set(address, answer);
        this.draw(answer);
      } catch (error) {
        if (error.name === "AbortError") return;
        const note = element("p", `This selection cannot be shown: ${error.message}`);
        note.setAttribute("role", "alert");
        this.host.replaceChildren(note, clearing());
        this.host.dataset.state = "failed";
      }
    }

    draw(facts) {
      const head = element("div", "", "dcp-inspector-head");
      head.append(element("h3", facts.title), clearing());
      const parts = facts.sections.map(({ heading, rows }) => {
        const list = element("dl");
        for (const { label, parts: words } of rows) {
          list.append(element("dt", label));
          const text = element("dd");
          text.append(...words.map(word));
          list.append(text);
        }
        const section = element("section");
        if (heading) section.append(element("h4", heading));
        section.append(list);
        return section;
      });
      const body = element("div", "", "dcp-inspector-body");
      body.append(...parts);
      // Scrolls around the columns: columns of a limited height would go on to the right, out of sight.
      const scroll = element("div", "", "dcp-inspector-scroll");
      scroll.append(body);
      this.host.replaceChildren(head, scroll);
      this.host.dataset.state = "shown";
      this.host.dispatchEvent(new CustomEvent("dcp:facts", { bubbles: true, detail: facts }));
      performance.mark("dcp facts shown");
    }
  }

  return Inspector;
})();
window.dcp.views = { ...window.dcp.views, "dcp-inspector": "Inspector" };
