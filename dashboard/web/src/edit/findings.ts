// What the checker found, as a list below the text: place, code, message, hint, and the change that mends it.
import { button, make } from "../kit/dom.ts";

interface ServerEdit { start: number; end: number; text: string }

/** A finding as the checker gives it; places count characters. */
export interface ServerFinding {
  readonly severity: "error" | "warning";
  readonly code: string;
  readonly message: string;
  readonly hint: string;
  readonly file: string;
  readonly line: number;
  readonly column: number;
  readonly start: number;
  readonly end: number;
  readonly is_certain: boolean; // false: a guess, which only a person may choose
  readonly fix: { readonly title: string; readonly edits: readonly ServerEdit[] } | null;
}

/** A change of the text; places count UTF-16 units. */
export interface Edit { readonly from: number; readonly to: number; readonly insert: string }

/** The same finding in the text of the editor. */
export interface Finding extends ServerFinding { readonly from: number; readonly to: number; readonly edits: readonly Edit[] }

interface Actions { goTo(finding: Finding): void; fix(finding: Finding): void; fixAll(): void }

/** The server counts characters, JavaScript UTF-16 units: gives the unit of a character. */
export function unitsOf(text: string): (character: number) => number {
  if (/^[\0-\uD7FF\uE000-\uFFFF]*$/.test(text)) return (at) => at;
  const starts: number[] = [];
  let unit = 0;
  for (const character of text) {
    starts.push(unit);
    unit += character.length;
  }
  return (at) => starts[at] ?? unit;
}

/** The character at a UTF-16 unit. */
export const charactersOf = (text: string, unit: number): number => [...text.slice(0, unit)].length;

/** A finding of the server in the units of the editor. */
export function placed(finding: ServerFinding, unit: (character: number) => number): Finding {
  const edits = finding.fix?.edits.map(({ start, end, text }) => ({ from: unit(start), to: unit(end), insert: text })) ?? [];
  return { ...finding, from: unit(finding.start), to: unit(finding.end), edits };
}

/** The changes of findings that touch different places; the earlier one wins, as `dcpm check --fix` does. */
export function compatibleEdits(findings: readonly Finding[]): Edit[] {
  const chosen: Edit[] = [];
  let end = -1;
  for (const { edits } of findings.filter((finding) => finding.edits.length).sort((a, b) => a.edits[0].from - b.edits[0].from)) {
    if (edits[0].from <= end) continue;
    chosen.push(...edits);
    end = Math.max(...edits.map(({ to }) => to));
  }
  return chosen;
}

export class Findings {
  private readonly actions: Actions;
  private readonly status = make("p", { className: "dcp-edit-status", role: "status" }, "checking…");
  private readonly list = make("ul", { className: "dcp-edit-findings", "aria-label": "Findings" });

  constructor(host: HTMLElement, actions: Actions) {
    this.actions = actions;
    host.replaceChildren(this.status, this.list);
  }

  show(findings: readonly Finding[], claims: string): void {
    const errors = findings.filter(({ severity }) => severity === "error").length;
    const warnings = findings.length - errors;
    const parts = [errors ? counted(errors, "error") : "no errors", warnings ? counted(warnings, "warning") : "", claims];
    const fixable = findings.filter(({ fix, is_certain: isCertain }) => fix && isCertain).length;
    this.status.className = `dcp-edit-status ${errors ? "dcp-bad" : "dcp-good"}`;
    this.status.replaceChildren(parts.filter(Boolean).join(" · "));
    if (fixable > 1) this.status.append(" ", button(`Apply all ${fixable} fixes`, "dcp-button", () => this.actions.fixAll()));
    this.list.replaceChildren(...findings.map((finding) => this.item(finding)));
  }

  private item(finding: Finding): HTMLElement {
    const { severity, code, message, hint, fix, file, line, column } = finding;
    const place = file || `line ${line}, column ${column}`;
    return make("li", { className: `dcp-finding dcp-finding-${severity}` },
      make("button", { type: "button", className: "dcp-place", onclick: () => this.actions.goTo(finding) },
        `${severity} ${code}`, make("span", { className: "dcp-muted" }, ` ${place}`)),
      make("span", {}, ...coded(message)), hint ? make("span", { className: "dcp-muted" }, ...coded(hint)) : null,
      fix && make("button", { type: "button", className: "dcp-button dcp-fix", onclick: () => this.actions.fix(finding) }, ...coded(sentence(fix.title))));
  }

  fail(message: string): void {
    this.status.className = "dcp-edit-status dcp-bad";
    this.status.textContent = `Not checked: ${message}`;
  }
}

const counted = (number: number, noun: string): string => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** `words` of the language as code. */
function coded(text: string): (Node | string)[] {
  return text.split(/(`[^`]*`)/).map((part) => (/^`.*`$/.test(part) ? make("code", {}, part.slice(1, -1)) : part));
}

/** The same where only plain text can be shown. */
export const quoted = (text: string): string => text.replace(/`([^`]*)`/g, "\u2018$1\u2019");

export const sentence = (text: string): string => text.slice(0, 1).toUpperCase() + text.slice(1);
