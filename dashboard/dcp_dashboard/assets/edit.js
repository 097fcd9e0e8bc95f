// The page /edit: a text, what is wrong with it, its picture on a sample, and what it costs on a cluster. The checker,
// the pictures and the plans are the server's; this file tells them what changed and shows what they answer.
"use strict";

window.dcp = window.dcp || {};
window.dcp.edit = window.dcp.edit || {};

(() => {
  const CHECK_MS = 40;
  const PREVIEW_MS = 150;
  const ADDRESS_MS = 400;
  const SMALL = 64; // tokens of a sample on which the windows of practice cannot be seen
  let shown = null;

  class EditPage {
    constructor(host) {
      this.host = host;
      this.start = JSON.parse(host.dataset.start);
      this.findings = [];
      this.isUsable = false;
    }

    part(name) {
      return this.host.querySelector(`[data-part="${name}"]`);
    }

    async open() {
      const edit = window.dcp.edit;
      const [{ createEditor }, address] = await Promise.all([
        import(this.host.dataset.bundle), edit.readAddress(),
      ]);
      if (!this.host.isConnected) return;
      this.address = address;
      this.compose();
      const text = address.text ?? this.start.text;
      this.editor = createEditor(this.part("text"), text, JSON.parse(this.host.dataset.patterns), {
        changed: () => this.typed(),
        describe: (now, at) => this.ask("hover", now, at, "markdown"),
        propose: (now, at) => this.ask("complete", now, at, "proposals"),
        fix: (at) => this.fixAt(at),
      });
      if (address.isDamaged) this.tell("The address holds a damaged text; this is the one it started from.");
      this.host.dataset.state = "drawn";
      performance.mark("dcp drawn: editor");
      this.checkSoon();
    }

    compose() {
      const edit = window.dcp.edit;
      this.checkSoon = edit.later(edit.latest(() => this.check()), CHECK_MS);
      this.pictureNow = edit.latest(() => this.draw());
      this.previewSoon = edit.later(edit.latest(() => this.preview()), PREVIEW_MS);
      this.addressSoon = edit.later(() => this.writeAddress(), ADDRESS_MS);
      this.list = new edit.Findings(this.part("findings"), {
        goTo: (finding) => this.editor.goTo(finding.from),
        fix: (finding) => this.fix([finding]),
        fixAll: () => this.fix(this.findings),
      });
      this.picture = new edit.Picture(this.part("picture"));
      const settings = { ...this.start.settings, ...this.address.settings };
      const choices = JSON.parse(this.host.dataset.choices);
      this.settings = new edit.Settings(this.part("settings"), choices, this.start.settings, this.address.settings, () => this.set());
      this.cards = new edit.Cards(this.part("cards"));
      this.bars = new edit.Bars(this.part("bars"));
      this.planner = new edit.Planner(this.part("plan"), settings, () => { this.addressSoon(); this.previewSoon(); });
      this.planner.start.addEventListener("click", () => this.planner.run({ ...this.request(), ...this.settings.request() }));
      this.chooser(settings);
      this.part("start").addEventListener("change", ({ target }) => {
        if (target.value) window.dcp.navigation.open(`/edit?spec=${encodeURIComponent(target.value)}`);
      });
      this.part("format").addEventListener("click", () => this.format());
      this.part("download").addEventListener("click", () => this.download());
      this.part("svg").addEventListener("click", () => this.saveSvg());
    }

    // The pickers of mask and sample; what can be picked follows the text.
    chooser(settings) {
      const { el, field, select } = window.dcp.edit;
      const input = (id, placeholder, value) => el("input", { id, placeholder, value: value || "", spellcheck: "false" });
      this.mask = select([], "", { id: "edit-mask" });
      this.call = input("edit-arguments", "", settings.call);
      this.expression = input("edit-expression", "causal and q - k < 1k", settings.expression);
      this.sample = select([], "", { id: "edit-sample" });
      this.own = input("edit-own", '4096 or {"lens": [3, 4]}', settings.own);
      this.wanted = { mask: settings.mask, sample: settings.sample };
      this.fields = {
        call: field("Arguments", this.call), expression: field("Expression", this.expression),
        own: field("Tokens, or columns as JSON", this.own),
      };
      this.part("chooser").append(field("Mask", this.mask), this.fields.call, this.fields.expression, field("Sample", this.sample), this.fields.own);
      for (const control of [this.mask, this.call, this.expression, this.sample, this.own]) {
        control.addEventListener("input", () => {
          this.wanted = { mask: this.mask.value, sample: this.sample.value };
          if (control === this.mask) this.offer(this.outline);
          this.set();
        });
      }
    }

    // Fills the pickers from an outline; keeps the choice if it still exists, else takes the first sample that fits.
    offer(outline) {
      const { fill } = window.dcp.edit;
      this.outline = outline;
      const { masks, samples } = outline;
      const isOther = this.wanted.mask === "other" || !masks.length;
      const mask = isOther ? null : masks.find(({ name }) => name === this.wanted.mask) || masks[0];
      fill(this.mask, [...masks.map(({ name }) => [name, name]), ["other", "other: an expression"]], mask?.name || "other");
      this.call.placeholder = mask?.example || mask?.parameters.map((name) => `${name} = …`).join(", ") || "";
      const columns = mask?.columns || [];
      const fitting = samples.filter((sample) => sample.tokens && columns.every((name) => sample.columns.includes(name)));
      const options = [...samples.map(({ name, tokens, error }) => [name, error ? name : `${name} (${tokens} tokens)`, error]),
        ["own", columns.length ? `other: ${columns.join(", ")} …` : "other: a length"]];
      if (this.start.batch) options.unshift(["batch", "the batch of the plan"]);
      const chosen = options.some(([name]) => name === this.wanted.sample) ? this.wanted.sample : fitting[0]?.name || "own";
      fill(this.sample, options, chosen);
      if (!this.own.value && chosen === "own") this.own.value = columns.length ? "" : "16";
      this.reveal();
    }

    // Shows the fields that the choices ask for.
    reveal() {
      const mask = this.outline?.masks.find(({ name }) => name === this.mask.value);
      this.fields.call.hidden = !mask?.parameters.length;
      this.fields.expression.hidden = this.mask.value !== "other";
      this.fields.own.hidden = this.sample.value !== "own";
    }

    typed() {
      this.checkSoon();
      this.addressSoon();
    }

    set() {
      this.reveal();
      this.addressSoon();
      if (!this.isUsable) return;
      this.pictureNow();
      this.previewSoon();
    }

    // The mask with its arguments. Where none were typed, the picture of a small sample takes those of an example, which
    // show what the mask does; the plan takes the defaults.
    request(isPicture = false) {
      const mask = this.outline?.masks.find(({ name }) => name === this.mask.value);
      const sample = this.outline?.samples.find(({ name }) => name === this.sample.value);
      const isSmall = isPicture && sample && sample.tokens <= SMALL;
      let call = mask?.parameters.length ? this.call.value.trim() || (mask.wants || isSmall ? mask.example : "") : "";
      if (call && !call.startsWith("(")) call = `(${call})`;
      const isBatch = this.sample.value === "batch";
      return {
        text: this.editor.text(), home: this.start.home, batch: isBatch ? this.start.batch : null,
        mask: mask ? `${mask.name}${call}` : this.expression.value.trim(),
        sample: this.sample.value === "own" ? this.own.value : this.sample.value,
      };
    }

    async ask(task, text, at, name) {
      try {
        const offset = window.dcp.edit.charactersOf(text, at);
        return (await window.dcp.edit.post(task, { text, home: this.start.home, offset }))[name];
      } catch {
        return ""; // whoever types on gets the answer for the next place
      }
    }

    async check() {
      const { post, quoted, unitsOf, sentence } = window.dcp.edit;
      const text = this.editor.text();
      let answer;
      try {
        answer = await post("check", { text, home: this.start.home });
      } catch (error) {
        this.list.fail(error.message);
        return;
      }
      if (!this.host.isConnected || text !== this.editor.text()) return;
      const unit = unitsOf(text);
      this.findings = answer.findings.map((finding) => ({
        ...finding, from: unit(finding.start), to: unit(finding.end),
        edits: finding.fix && finding.fix.edits.map(({ start, end, text: insert }) => ({ from: unit(start), to: unit(end), insert })),
      }));
      this.editor.show(this.findings.map((finding) => ({
        ...finding, message: quoted(finding.hint ? `${finding.message}\n${finding.hint}` : finding.message),
        fix: finding.fix && { title: quoted(sentence(finding.fix.title)), apply: () => this.fix([finding]) },
      })));
      performance.mark("dcp checked");
      this.list.show(this.findings, answer.claims);
      this.isUsable = answer.is_usable;
      this.host.dataset.checked = String(Number(this.host.dataset.checked || 0) + 1);
      if (!this.isUsable) {
        this.picture.keep("The text has errors.");
        this.note("The figures are those of the last text without errors.");
        return;
      }
      this.offer(answer);
      this.pictureNow();
      this.previewSoon();
    }

    async draw() {
      try {
        const payload = window.dcp.columns.decode(await window.dcp.edit.post("picture", this.request(true)));
        if (this.host.isConnected) this.picture.show(payload);
      } catch (error) {
        this.picture.keep(error.message);
      }
    }

    async preview() {
      if (!this.isUsable || !this.host.isConnected) return;
      const panel = this.part("cards");
      panel.setAttribute("aria-busy", "true");
      try {
        const figures = await window.dcp.edit.post("preview", { ...this.request(), ...this.settings.request() });
        this.cards.show(figures, this.planner.pinned());
        this.bars.show(figures);
        const count = (value) => value.toLocaleString("en-US");
        const told = `Preview of ${count(figures.tokens)} tokens in ${count(figures.blocks)} blocks of up to ${count(figures.block)}, `
          + `${count(figures.tiles)} tiles, on ${figures.devices} devices by ${figures.placed_by}; planned in ${(1000 * figures.seconds).toFixed(0)} ms.`;
        this.note([told, ...figures.warnings].join(" "), false);
        panel.dataset.tokens = figures.tokens;
        panel.dataset.devices = figures.devices;
      } catch (error) {
        this.note(`No preview: ${error.message}`);
      }
      panel.removeAttribute("aria-busy");
    }

    note(text, isOld = true) {
      this.part("preview").textContent = text;
      for (const name of ["cards", "bars"]) this.part(name).classList.toggle("dcp-old", isOld);
    }

    tell(text) {
      const place = this.part("told");
      place.textContent = text;
      place.hidden = !text;
    }

    fixAt(at) {
      const found = this.findings.find(({ from, to, edits }) => edits && from <= at && at <= to);
      if (found) this.fix([found]);
      return Boolean(found);
    }

    // Makes the changes of findings that touch different places; the earlier one wins, as `dcpm check --fix` does.
    fix(findings) {
      const chosen = [];
      let end = -1;
      for (const { edits } of findings.filter((finding) => finding.edits).sort((a, b) => a.edits[0].from - b.edits[0].from)) {
        if (edits[0].from <= end) continue;
        chosen.push(...edits);
        end = Math.max(...edits.map(({ to }) => to));
      }
      if (chosen.length) this.editor.change(chosen);
    }

    async format() {
      try {
        const { text } = await window.dcp.edit.post("format", { text: this.editor.text() });
        if (text !== this.editor.text()) this.editor.setText(text);
        this.tell("");
      } catch {
        this.tell("Only a text that parses can be formatted; the findings say what is in the way.");
      }
    }

    download() {
      const name = this.start.name.split("/").at(-1).replace(/\.dcpplan.*$|\.dcpm$/, "");
      save(this.editor.text(), "text/plain", `${name || "mask"}.dcpm`);
    }

    async saveSvg() {
      try {
        const { svg, name } = await window.dcp.edit.post("svg", this.request(true));
        save(svg, "image/svg+xml", name);
        this.tell("");
      } catch (error) {
        this.tell(`No picture to save: ${error.message}`);
      }
    }

    async writeAddress() {
      if (!this.host.isConnected) return;
      const text = this.editor.text();
      const { a, b } = this.planner.keys;
      const chosen = {
        mask: this.wanted.mask, call: this.call.value, expression: this.expression.value, sample: this.wanted.sample,
        own: this.sample.value === "own" ? this.own.value : "", a, b: b || (this.start.settings.b ? "none" : ""),
      };
      const kept = Object.entries(chosen).filter(([name, value]) => value && value !== this.start.settings[name]);
      kept.push(...Object.entries(this.settings.address()));
      const fits = await window.dcp.edit.writeAddress(text === this.start.text ? null : text, Object.fromEntries(kept));
      this.tell(fits ? "" : "This text is too long for the address of the page: download it to keep it.");
    }

    recolour() {
      this.picture?.draw();
      this.bars?.draw();
    }

    close() {
      this.editor?.destroy();
      for (const part of [this.picture, this.bars, this.planner]) part?.dispose();
    }
  }

  function save(text, type, name) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    window.dcp.edit.el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  function sweep() {
    if (shown && !shown.host.isConnected) {
      shown.close();
      shown = null;
    }
    const host = document.getElementById("edit");
    if (!host || shown?.host === host) return;
    shown = new EditPage(host);
    host.dataset.state = "loading";
    shown.open().catch((error) => {
      host.dataset.state = "failed";
      const place = host.querySelector('[data-part="told"]');
      place.hidden = false;
      place.textContent = `The editor cannot start: ${error.message}`;
    });
  }

  new MutationObserver((changes) => {
    if (changes.some(({ type }) => type === "childList")) sweep();
    if (changes.some(({ attributeName }) => attributeName === "data-mantine-color-scheme")) shown?.recolour();
  }).observe(document.documentElement, {
    subtree: true, childList: true, attributes: true, attributeFilter: ["data-mantine-color-scheme"],
  });
})();
