// Small helpers of the page /edit: elements with their attributes, controls with their labels, requests of which
// only the latest counts.
"use strict";

window.dcp = window.dcp || {};
window.dcp.edit = window.dcp.edit || {};

(() => {
  // el("button", {type: "button", onclick}, "text", node, ...)
  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  // A control with an id under its label; `note` is an element that says its value, for sliders. Without `for` the
  // label would belong to the note, which browsers take for a control too.
  function field(label, control, note = null) {
    const head = el("span", { class: "dcp-field-label" }, label, note);
    return el("label", { class: "dcp-field", for: control.id }, head, control);
  }

  function select(options, value, attributes = {}) {
    const made = el("select", attributes);
    fill(made, options, value);
    return made;
  }

  // options: [[value, label, reason it cannot be chosen], ...]
  function fill(box, options, value) {
    box.replaceChildren(...options.map(([name, label, reason]) =>
      el("option", { value: name, disabled: Boolean(reason), title: reason }, label)));
    if (options.some(([name]) => name === value)) box.value = value;
  }

  const TAB = Math.random().toString(36).slice(2); // each tab has a checker of its own

  // Gives the JSON object or the bytes of the answer; a refusal becomes an error with its message.
  async function post(task, body, signal) {
    const response = await fetch(`/api/edit/${task}`, {
      method: "POST", signal, credentials: "same-origin",
      headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...body, tab: TAB }),
    });
    if (!response.ok || response.headers.get("Content-Type") === "application/json") {
      const answer = await response.json().catch(() => ({}));
      if (answer.error || !response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
      return answer;
    }
    return response.arrayBuffer();
  }

  // Runs `work(value)` for the latest value only: one at a time, the values in between are skipped.
  function latest(work) {
    let wanted = null;
    let isBusy = false;
    return async function run(value) {
      wanted = { value };
      if (isBusy) return;
      isBusy = true;
      while (wanted) {
        const { value: next } = wanted;
        wanted = null;
        await work(next, () => wanted === null);
      }
      isBusy = false;
    };
  }

  function later(action, pause_ms) {
    let timer = 0;
    return (...values) => {
      clearTimeout(timer);
      timer = setTimeout(() => action(...values), pause_ms);
    };
  }

  Object.assign(window.dcp.edit, { el, field, select, fill, post, latest, later });
})();
