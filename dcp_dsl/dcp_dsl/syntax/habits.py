"""Say how words and signs of Python, C and other libraries are written in this language.

A hint here goes beside the message of the syntax error or of the check, which names the place.
"""

from collections.abc import Mapping, Sequence

from dcp_dsl.syntax.tokens import RawToken

FOREIGN_NAMES: Mapping[str, str] = {
    "True": "write `true`", "False": "write `false`", "None": "there is no `None`: every number is "
    "an integer, and a token in no segment compares false",
    "len": "the tokens of a segment's instance are `q.doc.len`, those of the sample `len`",
}  # fmt: skip
"""Names that Python gives to values and functions -> what to write."""

FIXES: Mapping[str, str] = {"True": "true", "False": "false"}

_SEQUENCES: tuple[tuple[str, str], ...] = (
    ("lambda", "a mask is an expression over `q` and `k`: write what is behind `lambda ...:`"),
    ("if", "there is no `if`: `a if c else b` is `(c and a) or (not c and b)`"),
    ("else", "there is no `else`: `a if c else b` is `(c and a) or (not c and b)`"),
    ("is", "compare with `==`"),
    ("mod", "write `%`"),
    ("within", "outside rules a window is a comparison: `causal and q - k < 4`"),
)
_BEHIND: Mapping[str, str] = {
    "per": "`per` stands behind the mask: `causal per doc`",
    "where": "`where` stands behind the mask: `causal and same(b) where b = every 4`",
}


def syntax_hint(at: int, tokens: Sequence[RawToken], text: str) -> str:
    """Return how a habit is written here; empty if the parser stopped, at token `at`, at none."""
    if at > 1 and [token.text for token in tokens[at - 2 : at]] == ["from", "token"]:
        return 'a column follows: `from token forks`; one named `token` is written `from "token"`'
    if not tokens or at >= len(tokens):
        return ""
    words = [token.text for token in tokens]
    statement, before, here = words[0], words[at - 1] if at else "", words[at]
    if statement.startswith("//"):
        return "a comment begins with `#`"
    if (before, here) == ("<", ">"):
        return "write `!=`"
    if statement == "segment":
        return _of_segment(at, words)
    if statement == "token" and here == "[":
        return (
            "columns come from the data: `token name`, for lists of three numbers `token name[3]`"
        )
    for word, hint in _SEQUENCES:
        if word in (before, here):
            return hint
    if before == "=" and here in _BEHIND:
        return _BEHIND[here]
    return _of_call(at, tokens, words)


def _of_segment(at: int, words: Sequence[str]) -> str:
    before, here = words[at - 1], words[at]
    if "=" in (before, here) and "[" in words[3:at]:
        return "a length has no default: it is a column, or arithmetic on columns and `len`"
    if here == "," and "(" in words[:at] and "ids" in words[:at]:
        return "names of ids stand behind `as`: `ids(column) as user, tool`"
    if here == "," and "]" in words[:at]:
        return "parts stand side by side, without commas: `question[q_len] answer[a_len]`"
    is_literal = here == "," and before.isdigit()
    return "lengths are a column of the data: `segment doc = [doc_lens]*`" if is_literal else ""


def _of_call(at: int, tokens: Sequence[RawToken], words: Sequence[str]) -> str:
    before, here = words[at - 1], words[at]
    if tokens[at - 1].kind == "name" and tokens[at].kind == "number":
        return f"arguments stand in brackets: `{before}({here})`"
    if here == ":" and tokens[at - 1].kind == "name" and "(" in words[:at]:
        return f"name an argument with `=`: `{before} = ...`"
    if here == "," and "(" in words[:at] and "window_size" in words[:at]:
        return "a pair as FlashAttention takes it is `fa_window(left = 4095, right = 0)`"
    return ""
