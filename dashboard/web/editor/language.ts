// Colours .dcpm texts by the project's own table of patterns, which the page hands over: the same that the
// Pygments lexer and the TextMate grammar are made of.
import { LanguageSupport, StreamLanguage, type StreamParser, type StringStream, syntaxHighlighting } from "@codemirror/language";
import { classHighlighter, type Tag, tags } from "@lezer/highlight";

const TAGS: Readonly<Record<string, Tag>> = {
  Comment_Single: tags.comment,
  String_Double: tags.string,
  Name_Decorator: tags.meta,
  Punctuation: tags.punctuation,
  Keyword_Type: tags.typeName,
  Keyword_Declaration: tags.definitionKeyword,
  Name_Function: tags.macroName,
  Name_Attribute: tags.propertyName,
  Name_Builtin: tags.className,
  Keyword: tags.keyword,
  Operator_Word: tags.operatorKeyword,
  Keyword_Constant: tags.bool,
  Name_Builtin_Pseudo: tags.atom,
  Number_Integer: tags.number,
  Name: tags.variableName,
  Operator: tags.operator,
};

/** One rule of the table: one type for the whole match, or one for each group. */
export interface Pattern { readonly regex: string; readonly types: readonly string[] }

/** A piece of a line and its type. */
type Piece = [length: number, type: string];

// Names with dots would be tags joined by modifiers.
export function dcpm(patterns: readonly Pattern[]): LanguageSupport {
  const rules = patterns.map(({ regex, types }) => ({ regex: new RegExp(regex, "y"), types: types.map((type) => type.replaceAll(".", "_")) }));

  // The pieces that the first rule of the table gives at the place of a stream.
  function match(stream: StringStream): Piece[] {
    for (const { regex, types } of rules) {
      regex.lastIndex = stream.pos;
      const found = regex.exec(stream.string);
      if (!found || !found[0]) continue;
      if (types.length === 1) return [[found[0].length, types[0]]];
      return types.map((type, group): Piece => [found[group + 1].length, type]).filter(([length]) => length);
    }
    return [[1, ""]];
  }

  const parser: StreamParser<{ pending: Piece[] }> = {
    name: "dcpm",
    startState: () => ({ pending: [] }),
    copyState: (state) => ({ pending: [...state.pending] }),
    token(stream, state) {
      if (!state.pending.length) {
        if (stream.eatSpace()) return null;
        state.pending = match(stream);
      }
      const [length, type] = state.pending.shift() ?? [1, ""];
      stream.pos += length;
      return TAGS[type] ? type : null;
    },
    tokenTable: TAGS,
    languageData: { commentTokens: { line: "#" }, closeBrackets: { brackets: ["(", "[", "{", '"'] } },
  };
  return new LanguageSupport(StreamLanguage.define(parser), [syntaxHighlighting(classHighlighter)]);
}
