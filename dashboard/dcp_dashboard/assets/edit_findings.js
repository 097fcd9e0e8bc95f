// What the checker found, as a list below the text: place, code, message, hint, and the change that mends it.
"use strict";

window.dcp = window.dcp || {};
window.dcp.edit = window.dcp.edit || {};

(() => {
  const { el } = window.dcp.edit;

  // The server counts characters, JavaScript UTF-16 units: give the unit of a character.
  function unitsOf(text) {
    if (/^[\0-\uD7FF\uE000-\uFFFF]*$/.test(text)) return (at) => at;
    const starts = [];
    let unit = 0;
    for (const character of text) {
      starts.push(unit);
      unit += character.length;
    }
    return (at) => (at < starts.length ? starts[at] : unit);
  }

  function charactersOf(text, unit) {
    return [...text.slice(0, unit)].length;
  }

  // actions: {goTo(finding), fix(finding), fixAll()}
  class Findings {
    constructor(host, actions) {
      this.actions = actions;
      this.status = el("p", { class: "dcp-edit-status", role: "status" }, "checking…");
      this.list = el("ul", { class: "dcp-edit-findings", "aria-label": "Findings" });
      host.replaceChildren(this.status, this.list);
    }

    show(findings, claims) {
      const errors = findings.filter(({ severity }) => severity === "error").length;
      const warnings = findings.length - errors;
      const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
      const parts = [errors ? count(errors, "error") : "no errors"];
      if (warnings) parts.push(count(warnings, "warning"));
      if (claims) parts.push(claims);
      const fixable = findings.filter(({ fix }) => fix);
      this.status.className = `dcp-edit-status ${errors ? "dcp-bad" : "dcp-good"}`;
      this.status.replaceChildren(parts.join(" · "));
      if (fixable.length > 1) {
        this.status.append(" ", el("button", { type: "button", class: "dcp-button", onclick: () => this.actions.fixAll() },
          `Make all ${fixable.length} changes`));
      }
      this.list.replaceChildren(...findings.map((finding) => this.item(finding)));
    }

    item(finding) {
      const place = finding.file ? finding.file : `line ${finding.line}, column ${finding.column}`;
      const row = el("li", { class: `dcp-finding dcp-finding-${finding.severity}` },
        el("button", { type: "button", class: "dcp-place", onclick: () => this.actions.goTo(finding) },
          `${finding.severity} ${finding.code}`, el("span", { class: "dcp-muted" }, ` ${place}`)),
        el("span", {}, ...coded(finding.message)), finding.hint ? el("span", { class: "dcp-muted" }, ...coded(finding.hint)) : null);
      if (finding.fix) {
        row.append(el("button", { type: "button", class: "dcp-button dcp-fix", onclick: () => this.actions.fix(finding) },
          ...coded(sentence(finding.fix.title))));
      }
      return row;
    }

    fail(message) {
      this.status.className = "dcp-edit-status dcp-bad";
      this.status.textContent = `Not checked: ${message}`;
    }
  }

  // `words` of the language as code.
  function coded(text) {
    return text.split(/(`[^`]*`)/).map((part) => (/^`.*`$/.test(part) ? el("code", {}, part.slice(1, -1)) : part));
  }

  // The same where only plain text can be shown.
  function quoted(text) {
    return text.replace(/`([^`]*)`/g, "\u2018$1\u2019");
  }

  function sentence(text) {
    return text.slice(0, 1).toUpperCase() + text.slice(1);
  }

  Object.assign(window.dcp.edit, { Findings, unitsOf, charactersOf, quoted, sentence });
})();
