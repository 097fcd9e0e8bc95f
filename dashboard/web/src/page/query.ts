// The events of a plan in SQL: a statement, ready ones to start from, and its result as a table.
import { post } from "../api.ts";
import { button, make, messageOf } from "../kit/dom.ts";
import * as format from "../kit/format.ts";
import { VirtualTable } from "../kit/table.ts";
import { state } from "../session.ts";
import { MOST_OF_LONG } from "../state.ts";

interface Result {
  readonly columns: readonly { name: string; isNumber: boolean }[];
  readonly rows: readonly (readonly string[])[];
  readonly isCut: boolean;
}

export class Query {
  private readonly key: string;
  private readonly usual: string;
  private readonly text = make("textarea", { rows: 9, spellcheck: false, "aria-label": "SELECT over the table events" });
  private readonly start = button("Run", "dcp-button", () => void this.run(), { title: "Ctrl Enter" });
  private readonly status = make("p", { role: "status", className: "dcp-muted" });
  private readonly result = make("div");
  private table: VirtualTable | undefined;

  constructor(host: HTMLElement) {
    this.key = host.dataset.key ?? "";
    const ready = Object.entries(JSON.parse(host.dataset.ready ?? "{}") as Record<string, string>);
    this.usual = ready[0]?.[1] ?? "";
    const { sql } = state.get();
    this.text.value = sql ?? this.usual;
    // A link shows its statement, and does not run it: whoever opens it decides.
    if (sql) host.closest("details")?.setAttribute("open", "");
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void this.run();
    });
    const offered = ready.map(([name, sql]) => button(name, "dcp-quiet", () => { this.text.value = sql; void this.run(); }));
    host.replaceChildren(make("div", { className: "dcp-tools" }, ...offered), this.text,
      make("div", { className: "dcp-tools" }, this.start, this.status), this.result);
  }

  resize(): void { this.table?.fill(); }

  private async run(): Promise<void> {
    if (this.start.disabled) return;
    this.start.disabled = true;
    const { value } = this.text;
    const isKept = value.length <= MOST_OF_LONG; // a statement cut off would be another one
    state.set({ sql: value === this.usual || !isKept ? null : value });
    this.say("running");
    try {
      this.show(await post<Result>("/api/edit/query", { plan: this.key, sql: value }));
    } catch (error) {
      this.say(messageOf(error), "dcp-bad");
      this.result.replaceChildren();
    }
    this.start.disabled = false;
  }

  private show({ columns, rows, isCut }: Result): void {
    const where = this.text.value.length > MOST_OF_LONG ? `; the page address does not store SQL of more than ${format.count(MOST_OF_LONG)} characters` : "";
    this.say(`${isCut ? "the first " : ""}${format.count(rows.length)} rows${where}`);
    this.table = new VirtualTable({
      label: "Result", order: undefined, size: rows.length, cells: (n) => rows[n],
      heads: columns.map(({ name, isNumber }) => ({ name, text: name, isNumber, isPlain: true })),
      chosen: () => -1, choose: () => undefined, sort: () => undefined,
    });
    this.result.style.setProperty("--columns", String(columns.length));
    this.result.replaceChildren(this.table.box);
    this.table.fill();
  }

  private say(text: string, className = "dcp-muted"): void {
    this.status.textContent = text;
    this.status.className = className;
  }
}
