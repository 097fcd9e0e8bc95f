"""The table of all words of the language, from which editors, lexers and completion are made.

A word's role says how it is coloured and what may stand around it. `patterns` adds tokens that are
no words: comments, numbers, names. A test keeps the table in step with the keywords of `dcpm.lark`.
"""

from typing import Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal[
    "statement", "clause", "operator", "constant", "variable", "function", "type", "source",
    "decorator",
]  # fmt: skip


class Word(NamedTuple):
    """A word with a meaning of its own.

    Attributes:
        text: the word.
        role: what kind of word it is.
        form: how it is used.
        meaning: one line for a person.
    """

    text: str
    role: Role
    form: str
    meaning: str


WORDS: tuple[Word, ...] = (
    Word("dcpm", "statement", "dcpm 1", "version of the language; optional, comes first"),
    Word("import", "statement", 'import a, b from "file.dcpm"', "masks of another file"),
    Word("let", "statement", "let window = 4k", "a constant of the text"),
    Word("segment", "statement", "segment part = question[question_len] answer[answer_lens]*",
         "how columns of the data set lay out a sample"),
    Word("token", "statement", "token chosen[16] = column",
         "a column with one integer per token, or a list of so many"),
    Word("column", "statement", "column width in image = column",
         "the same, per instance of a segment"),
    Word("mask", "statement", "mask name(p: tokens = 4k) = EXPR where b = every p",
         "which query sees which key"),
    Word("stack", "statement", "stack name = 5 of sliding(1k), causal", "a cycle of layers"),
    Word("for", "statement", 'for "glob" having column use MASK with new = column',
         "attaches a mask to data sets; the first match wins"),
    Word("sample", "statement", "sample tiny(question_len = 4, answer_lens = [3, 3])",
         "an example for pictures and checks"),
    Word("check", "statement", "check A implies B on SAMPLE", "a claim that `dcpm check` tests"),
    Word("from", "clause", 'import a from "file.dcpm"',
         "the file of an import; the column with what branches go on from: branches, or tokens"),
    Word("branch", "clause", "question[question_len] branch answer[answer_lens]*",
         "parts that each go on from the same place of the layout"),
    Word("join", "clause", "branch chunk[chunk_lens]* join question[question_len]",
         "a part that goes on from all parts of its layout or group in front of it"),
    Word("as", "clause", "ids(column) as a, b", "names of the segments that ids number"),
    Word("every", "clause", "every 256 in S", "fixed tiles, anew in each instance of S"),
    Word("where", "clause", "where b = every 256, half = p // 2",
         "names for parts of a mask; of a segment the instances with such columns"),
    Word("sees", "clause", "{ answer sees question, self causally }", "a rule: who sees what"),
    Word("see", "clause", "{ question, answer see self causally }", "a rule for several subjects"),
    Word("causally", "clause", "answer sees self causally", "only keys that are not later"),
    Word("within", "clause", "text sees all within 4k", "only keys nearer than so many tokens"),
    Word("of", "clause", "5 of sliding(1k)", "so many layers alike"),
    Word("heads", "clause", "heads { 0..1: causal  rest: streaming(64, 256) }",
         "a mask for each group of KV heads"),
    Word("linear", "clause", "3 of linear, causal", "layers that attend to nothing"),
    Word("rest", "clause", "rest: streaming(64, 256)", "the KV heads not named before"),
    Word("having", "clause", 'for "glob" having column', "only data sets with these columns"),
    Word("use", "clause", 'for "glob" use MASK', "the mask or stack that is attached"),
    Word("with", "clause", "with name = column or 4k",
         "what the data set calls a column, and its value in rows without it"),
    Word("on", "clause", "check A total on SAMPLE", "the sample that a claim is tested on"),
    Word("implies", "clause", "check A implies B", "every pair of A is one of B"),
    Word("equals", "clause", "check A equals B", "both masks have the same pairs"),
    Word("total", "clause", "check A total", "every token sees something"),
    Word("lookback", "clause", "check A lookback", "no token sees a later one"),
    Word("or", "operator", "A or B", "pairs of either"),
    Word("and", "operator", "A and B", "pairs of both"),
    Word("minus", "operator", "A minus B", "pairs of A that are not in B"),
    Word("not", "operator", "not A", "all other pairs"),
    Word("per", "operator", "A per S", "A in the coordinates of each instance of S"),
    Word("in", "operator", "k in S", "the token lies in an instance of S"),
    Word("true", "constant", "true", "every pair; 1 in a sample"),
    Word("false", "constant", "false", "no pair; 0 in a sample"),
    Word("q", "variable", "q", "position of the query, from 0"),
    Word("k", "variable", "k", "position of the key, from 0"),
    Word("len", "variable", "len", "tokens of the sample"),
    Word("row", "variable", "row.column", "a column with one integer per sample"),
    Word("self", "variable", "answer sees self", "the same instance of the segment"),
    Word("all", "variable", "text sees all", "every token"),
    Word("first", "function", "first(S, m)", "the first m instances of S; m is 1 if left out"),
    Word("last", "function", "last(S, m)", "the last m instances of S; m is 1 if left out"),
    Word("same", "function", "same(S)", "query and key lie in the same instance of S"),
    Word("paths", "function", "paths",
         "the token itself and what stands before it on its path from the root"),
    Word("abs", "function", "abs(x)", "the size of a number"),
    Word("min", "function", "min(x, y)", "the smallest"),
    Word("max", "function", "max(x, y)", "the largest"),
    Word("clamp", "function", "clamp(x, low, high)", "x, but not below low or above high"),
    Word("exp2", "function", "exp2(x)", "2 to the x; nothing where x is not from 0 to 30"),
    Word("log2", "function", "log2(x)", "the largest i with exp2(i) <= x; nothing below 1"),
    Word("tokens", "type", "p: tokens = 4k", "a number of tokens"),
    Word("int", "type", "p: int = 2", "an integer"),
    Word("bool", "type", "p: bool", "a condition on (q, k)"),
    Word("pos", "type", "p: pos", "a position"),
    Word("spans", "source", "segment s = spans(column)", "a column of [start, end) pairs"),
    Word("ids", "source", "segment s = ids(column) as a, b", "a column with one id per token"),
    Word("flags", "source", "segment s = flags(column)", "a column with 0 or 1 per token"),
    Word("positions", "source", "segment s = positions(column)",
         "a column with the position of each token in its document"),
    Word("ahead", "decorator", "@ahead(S) mask ...", "looking ahead is meant, inside S or at all"),
    Word("partial", "decorator", "@partial mask ...", "rows that see nothing are meant"),
    Word("keys", "decorator", "@keys(S) mask ...", "keys are another sequence, laid out by S"),
)  # fmt: skip
"""Every word of the language; `mask` is a type as well, behind a colon."""


class Pattern(NamedTuple):
    """A regular expression that Python and Oniguruma read alike, with its names in both worlds.

    Attributes:
        regex: the whole, or one group per name.
        textmate: scopes of the groups.
        pygments: token types of the groups.
    """

    regex: str
    textmate: tuple[str, ...]
    pygments: tuple[str, ...]


_NAME = "[A-Za-z_][A-Za-z0-9_]*"

# The scope that themes of TextMate colour, and the token type that styles of Pygments do.
_ROLES: dict[Role, tuple[str, str]] = {
    "statement": ("keyword.control.dcpm", "Keyword.Declaration"),
    "clause": ("keyword.other.dcpm", "Keyword"),
    "operator": ("keyword.operator.word.dcpm", "Operator.Word"),
    "constant": ("constant.language.dcpm", "Keyword.Constant"),
    "variable": ("variable.language.dcpm", "Name.Builtin.Pseudo"),
    "function": ("support.function.dcpm", "Name.Builtin"),
    "type": ("support.type.dcpm", "Keyword.Type"),
    "source": ("support.function.dcpm", "Name.Builtin"),
}


def words_of(*roles: Role) -> tuple[str, ...]:
    """Return the words of some roles in the order of the table; of all if none is named.

    >>> words_of("constant")
    ('true', 'false')
    """
    return tuple(word.text for word in WORDS if not roles or word.role in roles)


def _any_of(*roles: Role) -> str:
    return "(?:" + "|".join(words_of(*roles)) + ")"


def patterns() -> tuple[Pattern, ...]:
    """Return the patterns of all tokens; the first match wins."""
    named = ("let", "mask", "stack", "sample", "segment", "token", "column")
    # What stands around a word decides before the word itself: `mask` behind a colon is a type,
    # `len` behind a dot an attribute, and any word behind `mask` the name that is defined.
    fixed = (
        Pattern("#.*", ("comment.line.number-sign.dcpm",), ("Comment.Single",)),
        # Without its closing quote a string ends with the line, as it is while it is typed.
        Pattern('"[^"\\n]*"?', ("string.quoted.double.dcpm",), ("String.Double",)),
        Pattern(rf"@\s*{_NAME}", ("storage.modifier.dcpm",), ("Name.Decorator",)),
        Pattern(
            rf"(:)(\s*)((?:{'|'.join((*words_of('type'), 'mask'))})\b)",
            ("punctuation.separator.dcpm", "", _ROLES["type"][0]),
            ("Punctuation", "Text.Whitespace", _ROLES["type"][1]),
        ),
        Pattern(
            rf"\b({'|'.join(named)})(\s+)({_NAME})",
            (_ROLES["statement"][0], "", "entity.name.function.dcpm"),
            (_ROLES["statement"][1], "Text.Whitespace", "Name.Function"),
        ),
        Pattern(
            rf"(\.)({_NAME})\b",
            ("punctuation.accessor.dcpm", "variable.other.property.dcpm"),
            ("Punctuation", "Name.Attribute"),
        ),
        # `ids` and the like are words only in front of a bracket, and names anywhere else.
        Pattern(
            rf"\b({_any_of('source')})(?=\s*\()", (_ROLES["source"][0],), (_ROLES["source"][1],)
        ),
    )
    # Roles whose words mean the same wherever they stand; decorators are told by their `@`.
    plain: tuple[Role, ...] = (
        "statement", "clause", "operator", "constant", "variable", "function",
    )  # fmt: skip
    roles = tuple(
        Pattern(rf"\b{_any_of(role)}\b", (_ROLES[role][0],), (_ROLES[role][1],)) for role in plain
    )
    rest = (
        Pattern(r"\b[0-9][0-9_]*[kM]?\b", ("constant.numeric.dcpm",), ("Number.Integer",)),
        Pattern(rf"\b{_NAME}(?=\()", ("entity.name.function.dcpm",), ("Name.Function",)),
        Pattern(rf"\b{_NAME}\b", ("variable.other.dcpm",), ("Name",)),
        Pattern("<=|>=|==|!=|//|[-+*%<>=]", ("keyword.operator.dcpm",), ("Operator",)),
        Pattern(r"\.\.|[()\[\]{},:.@]", ("punctuation.dcpm",), ("Punctuation",)),
    )
    return (*fixed, *roles, *rest)
