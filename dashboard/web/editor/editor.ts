// The text editor of the page /edit: CodeMirror with the language's colours, and findings, hover and completion
// that the server's checker gives. All places are UTF-16 offsets; the caller counts characters.
import {
  autocompletion, closeBrackets, closeBracketsKeymap, type CompletionContext, completionKeymap, type CompletionResult,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { bracketMatching } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { type ChangeSpec, EditorState } from "@codemirror/state";
import {
  EditorView, drawSelection, highlightActiveLine, highlightActiveLineGutter, hoverTooltip, keymap, lineNumbers, type Tooltip,
} from "@codemirror/view";
import { dcpm, type Pattern } from "./language.ts";
import { markdown } from "./markdown.ts";

export type { Pattern } from "./language.ts";

const KINDS: Readonly<Record<string, string>> = {
  keyword: "keyword", mask: "function", segment: "class", sample: "constant", column: "variable",
  parameter: "variable", function: "function", attribute: "property", type: "type",
};

/** A completion: a text that may come next. */
export interface Proposal { text: string; kind: string; detail: string }

/** Questions of the editor to its page. */
export interface Hooks {
  changed(text: string): void;
  describe(text: string, at: number): Promise<string>; // Markdown, "" for nothing
  propose(text: string, at: number): Promise<Proposal[]>;
  fix(at: number): boolean; // whether there was something to mend
}

/** A finding as the editor shows it. */
export interface Shown {
  from: number;
  to: number;
  severity: "error" | "warning";
  message: string;
  code: string;
  fix: { title: string; apply(): void } | null;
}

interface Editor {
  text(): string;
  setText(next: string): void;
  change(edits: ChangeSpec): void; // of the present text
  show(findings: readonly Shown[]): void;
  goTo(at: number): void;
  destroy(): void;
}

export function createEditor(parent: HTMLElement, text: string, patterns: readonly Pattern[], hooks: Hooks): Editor {
  const view: EditorView = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(), highlightActiveLineGutter(), history(), drawSelection(), bracketMatching(),
        closeBrackets(), highlightActiveLine(), highlightSelectionMatches(), lintGutter(), dcpm(patterns),
        // No key is taken from Tab: it leaves the editor. Mod-] and Mod-[ indent.
        keymap.of([
          { key: "Mod-.", run: () => hooks.fix(view.state.selection.main.head) },
          ...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...completionKeymap,
          ...lintKeymap,
        ]),
        autocompletion({ override: [(context) => complete(context, hooks)], activateOnTypingDelay: 150 }),
        hoverTooltip((_, at) => hover(view, at, hooks), { hoverTime: 350 }),
        EditorView.contentAttributes.of({
          "aria-label": "Text of the masks", "aria-describedby": "edit-keys", spellcheck: "false", tabindex: "0",
        }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) hooks.changed(update.state.doc.toString());
        }),
      ],
    }),
  });

  return {
    text: () => view.state.doc.toString(),
    setText(next) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } });
    },
    change(edits) {
      view.dispatch({ changes: edits });
      view.focus();
    },
    show(findings) {
      const size = view.state.doc.length;
      const placed = findings.map(({ from, to, severity, message, code, fix }) => ({
        from: Math.min(from, size), to: Math.min(Math.max(to, from), size), severity, source: code, message,
        actions: fix ? [{ name: fix.title, apply: () => fix.apply() }] : [],
      }));
      view.dispatch(setDiagnostics(view.state, placed));
    },
    goTo(at) {
      view.dispatch({ selection: { anchor: Math.min(at, view.state.doc.length) }, scrollIntoView: true });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}

async function hover(view: EditorView, at: number, hooks: Hooks): Promise<Tooltip | null> {
  const said = await hooks.describe(view.state.doc.toString(), at);
  if (!said) return null;
  const word = view.state.wordAt(at);
  return {
    pos: word ? word.from : at, end: word ? word.to : at, above: true,
    create: () => ({ dom: markdown(said) }),
  };
}

async function complete(context: CompletionContext, hooks: Hooks): Promise<CompletionResult | null> {
  const word = context.matchBefore(/[A-Za-z_][A-Za-z0-9_]*/);
  const before = context.state.sliceDoc(Math.max(0, context.pos - 1), context.pos);
  if (!word && !context.explicit && !/[.@[(]/.test(before)) return null;
  const proposals = await hooks.propose(context.state.doc.toString(), context.pos);
  if (!proposals.length) return null;
  const options = proposals.map(({ text, kind, detail }) => ({ label: text, type: KINDS[kind], detail }));
  return { from: word ? word.from : context.pos, options, validFor: /^[A-Za-z0-9_]*$/ };
}
