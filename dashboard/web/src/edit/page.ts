// The page /edit: a text, what is wrong with it, its picture on a sample, and what it costs on a cluster. The checker,
// the pictures and the plans are the server's; this file tells them what changed and shows what they answer.
import type { createEditor, Pattern, Proposal } from "../../editor/editor.ts";
import { decode, post } from "../api.ts";
import { messageOf, part } from "../kit/dom.ts";
import { save } from "../kit/export.ts";
import * as format from "../kit/format.ts";
import { openPage } from "../page/navigation.ts";
import { type Address, readAddress, writeAddress } from "./address.ts";
import { Chooser, type Outline } from "./chooser.ts";
import { later, latest } from "./dom.ts";
import { Bars, type Figures, showCards } from "./figures.ts";
import { charactersOf, compatibleEdits, type Finding, Findings, placed, quoted, sentence, type ServerFinding, unitsOf } from "./findings.ts";
import { Picture, type PicturePayload } from "./picture.ts";
import { Planner } from "./plan.ts";
import { type Choices, Settings } from "./settings.ts";

const CHECK_MS = 40;
const PREVIEW_MS = 150;
const ADDRESS_MS = 400;

/** The state from which the page starts. */
interface Start {
  readonly text: string;
  readonly name: string;
  readonly home: string | null;
  readonly batch: string | null;
  readonly settings: Readonly<Record<string, string>>;
}

type Checked = { findings: ServerFinding[]; claims: string } & ({ is_usable: false } | ({ is_usable: true } & Outline));
type Editor = ReturnType<typeof createEditor>;

/** Asks the routes of the editor. */
const ask = <T>(task: string, body: object): Promise<T> => post<T>(`/api/edit/${task}`, body);

class EditPage {
  private readonly host: HTMLElement;
  private readonly start: Start;
  private readonly editor: Editor;
  private readonly list: Findings;
  private readonly picture: Picture;
  private readonly chooser: Chooser;
  private readonly settings: Settings;
  private readonly bars: Bars;
  private readonly planner: Planner;
  private readonly checkSoon = later(latest(() => this.check()), CHECK_MS);
  private readonly pictureNow = latest(() => this.draw());
  private readonly previewSoon = later(latest(() => this.preview()), PREVIEW_MS);
  private readonly addressSoon = later(() => this.writeAddress(), ADDRESS_MS);
  private findings: readonly Finding[] = [];
  private isUsable = false;

  constructor(host: HTMLElement, make: typeof createEditor, start: Start, address: Address) {
    this.host = host;
    this.start = start;
    const settings = { ...start.settings, ...address.settings };
    this.list = new Findings(this.part("findings"), {
      goTo: (finding) => this.editor.goTo(finding.from),
      fix: (finding) => this.fix([finding]),
      fixAll: () => this.fix(this.findings.filter(({ is_certain: isCertain }) => isCertain)),
    });
    this.picture = new Picture(this.part("picture"));
    const choices = JSON.parse(host.dataset.choices ?? "") as Choices;
    this.settings = new Settings(this.part("settings"), choices, start.settings, address.settings, () => this.set());
    this.bars = new Bars(this.part("bars"));
    this.planner = new Planner(this.part("plan"), settings, () => { this.addressSoon(); this.previewSoon(); });
    this.chooser = new Chooser(this.part("chooser"), settings, start.batch, () => this.set());
    this.listen();
    this.editor = make(this.part("text"), address.text ?? start.text, JSON.parse(host.dataset.patterns ?? "") as Pattern[], {
      changed: () => { this.checkSoon(); this.addressSoon(); },
      describe: async (text, at) => (await this.askAt<{ markdown: string }>("hover", text, at))?.markdown ?? "",
      propose: async (text, at) => (await this.askAt<{ proposals: Proposal[] }>("complete", text, at))?.proposals ?? [],
      fix: (at) => this.fixAt(at),
    });
    if (address.isDamaged) this.tell("The text in the page address is damaged; this is the original text.");
    this.checkSoon();
  }

  private part(name: string): HTMLElement { return part(this.host, `[data-part="${name}"]`); }

  private listen(): void {
    this.planner.start.addEventListener("click", () => void this.planner.run({ ...this.request(), ...this.settings.request() }));
    part<HTMLSelectElement>(this.host, '[data-part="start"]').addEventListener("change", ({ target }) => {
      const { value } = target as HTMLSelectElement;
      if (value) openPage(`/edit?spec=${encodeURIComponent(value)}`);
    });
    this.part("format").addEventListener("click", () => void this.format());
    this.part("download").addEventListener("click", () => this.download());
    this.part("svg").addEventListener("click", () => void this.saveSvg());
  }

  /** Settings have changed, the text has not. */
  private set(): void {
    this.addressSoon();
    if (!this.isUsable) return;
    void this.pictureNow();
    this.previewSoon();
  }

  private request(isPicture = false): object {
    return { text: this.editor.text(), home: this.start.home, ...this.chooser.request(isPicture) };
  }

  /** Asks about a place in the text; whoever types on gets the answer for the next place. */
  private askAt<T>(task: string, text: string, at: number): Promise<T | null> {
    return ask<T>(task, { text, home: this.start.home, offset: charactersOf(text, at) }).catch(() => null);
  }

  private async check(): Promise<void> {
    const text = this.editor.text();
    let answer: Checked;
    try {
      answer = await ask<Checked>("check", { text, home: this.start.home });
    } catch (error) {
      this.list.fail(messageOf(error));
      return;
    }
    if (!this.host.isConnected || text !== this.editor.text()) return;
    const unit = unitsOf(text);
    this.findings = answer.findings.map((finding) => placed(finding, unit));
    this.editor.show(this.findings.map((finding) => ({
      ...finding, message: quoted(finding.hint ? `${finding.message}\n${finding.hint}` : finding.message),
      fix: finding.fix && { title: quoted(sentence(finding.fix.title)), apply: () => this.fix([finding]) },
    })));
    performance.mark("dcp checked");
    this.list.show(this.findings, answer.claims);
    this.isUsable = answer.is_usable;
    this.host.dataset.checked = String(Number(this.host.dataset.checked ?? 0) + 1);
    if (!answer.is_usable) {
      this.picture.keep("The text has errors.");
      this.note("The figures belong to the last text without errors.");
      return;
    }
    this.chooser.offer(answer);
    void this.pictureNow();
    this.previewSoon();
  }

  private async draw(): Promise<void> {
    try {
      const payload = decode<PicturePayload>(await ask<ArrayBuffer>("picture", this.request(true)));
      if (this.host.isConnected) this.picture.show(payload);
    } catch (error) {
      this.picture.keep(messageOf(error));
    }
  }

  private async preview(): Promise<void> {
    if (!this.isUsable || !this.host.isConnected) return;
    const panel = this.part("cards");
    panel.setAttribute("aria-busy", "true");
    try {
      const figures = await ask<Figures>("preview", { ...this.request(), ...this.settings.request() });
      showCards(panel, figures, this.planner.pinned());
      this.bars.show(figures);
      const { count } = format;
      const told = `Preview of ${count(figures.tokens)} tokens in ${count(figures.blocks)} blocks of up to ${count(figures.block)}, `
        + `${count(figures.tiles)} tiles, on ${figures.devices} devices by ${figures.placed_by}; planned in ${(1000 * figures.seconds).toFixed(0)} ms.`;
      this.note([told, ...figures.warnings].join(" "), false);
      Object.assign(panel.dataset, { tokens: figures.tokens, devices: figures.devices });
    } catch (error) {
      this.note(`No preview: ${messageOf(error)}`);
    }
    panel.removeAttribute("aria-busy");
  }

  private note(text: string, isOld = true): void {
    this.part("preview").textContent = text;
    for (const name of ["cards", "bars"]) this.part(name).classList.toggle("dcp-old", isOld);
  }

  private tell(text: string): void {
    Object.assign(this.part("told"), { textContent: text, hidden: !text });
  }

  private fixAt(at: number): boolean {
    const found = this.findings.find(({ from, to, edits }) => edits.length && from <= at && at <= to);
    if (found) this.fix([found]);
    return found !== undefined;
  }

  private fix(findings: readonly Finding[]): void {
    const edits = compatibleEdits(findings);
    if (edits.length) this.editor.change(edits);
  }

  private async format(): Promise<void> {
    try {
      const { text } = await ask<{ text: string }>("format", { text: this.editor.text() });
      if (text !== this.editor.text()) this.editor.setText(text);
      this.tell("");
    } catch {
      this.tell("A text with syntax errors cannot be formatted; see the findings.");
    }
  }

  private download(): void {
    const name = this.start.name.replace(/^.*\//, "").replace(/\.dcpplan.*$|\.dcpm$/, "");
    save(new Blob([this.editor.text()], { type: "text/plain" }), `${name || "mask"}.dcpm`);
  }

  private async saveSvg(): Promise<void> {
    try {
      const { svg, name } = await ask<{ svg: string; name: string }>("svg", this.request(true));
      save(new Blob([svg], { type: "image/svg+xml" }), name);
      this.tell("");
    } catch (error) {
      this.tell(`No picture to save: ${messageOf(error)}`);
    }
  }

  private async writeAddress(): Promise<void> {
    if (!this.host.isConnected) return;
    const text = this.editor.text();
    const { a, b } = this.planner.keys;
    const chosen = { ...this.chooser.address(), a, b: b || (this.start.settings.b ? "none" : "") };
    const kept = Object.entries(chosen).filter(([name, value]) => value && value !== this.start.settings[name]);
    kept.push(...Object.entries(this.settings.address()));
    const fits = await writeAddress(text === this.start.text ? null : text, Object.fromEntries(kept));
    this.tell(fits ? "" : "This text is too long for the page address: download it to keep it.");
  }

  recolour(): void { this.picture.draw(); }

  resize(): void { this.bars.resize(); }

  dispose(): void {
    this.editor.destroy();
    for (const shown of [this.picture, this.bars, this.planner]) shown.dispose();
  }
}

/** Makes the page once its editor has come: CodeMirror is a script of its own. */
export async function makeEditPage(host: HTMLElement, _label: string, signal: AbortSignal): Promise<EditPage> {
  const [{ createEditor }, address] = await Promise.all([
    import(host.dataset.bundle ?? "") as Promise<typeof import("../../editor/editor.ts")>, readAddress(),
  ]);
  signal.throwIfAborted();
  return new EditPage(host, createEditor, JSON.parse(host.dataset.start ?? "") as Start, address);
}
