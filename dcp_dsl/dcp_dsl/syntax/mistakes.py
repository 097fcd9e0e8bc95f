"""Messages for syntax errors: examples of each mistake, and habits of other mask languages.

The parser runs every example once and remembers the state it failed in; a real error that fails in
the same state on the same kind of token gets the example's code (the method of Lark's
``match_examples``, with the examples parsed once instead of at every error).

Foreign names (`kv_idx`) parse and are looked up by the checks. Foreign syntax (`doc_id[q]`,
`x in [1, 2]`, `0.1`) does not parse, so it is found among the tokens of the statement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.ast_builder import COLUMN_KINDS, BuildError
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.tokens import KEYWORDS, STATEMENT_KEYWORDS, RawToken, scan


@dataclass(frozen=True, slots=True)
class Mistake:
    """A kind of syntax error: its message and example texts."""

    code: str
    message: str
    hint: str
    examples: tuple[str, ...]


MISTAKES: tuple[Mistake, ...] = (
    # An example stands for the state of the parser in which it fails, so a code has one for each
    # kind of expression in front of the mistake. Where examples of two codes fail alike, the first
    # code is taken.
    Mistake(
        "E004", "`=` gives a name a value; comparing needs `==`", "write `==`",
        ("mask a = q = k", "mask a = (q = k)", "mask a = q + 1 = k", "check a = b",
         "mask a = q.b = k", "mask a = f(q) = k", "mask a = q * 2 = k", "mask a = q < k = 3",
         "mask a = { x sees y within 3 = 4 }"),
    ),
    Mistake(
        "E005", "an operand is missing here", "an operator stands between two operands",
        ("mask a =", "mask a = and b", "mask a = b and", "mask a = b or", "mask a = not",
         "mask a = q <", "mask a = q <= k <=",
         "mask a = f(,)", "mask a = q < <", "mask a = q +", "mask a = q + *", "mask a = q *",
         "mask a = -", "mask a = ()", "mask a = b minus", "mask a = k in", "mask a = k not in",
         "mask a = q.", "mask a = b per", "check a implies", "mask a = b where",
         "mask a = b where c =",
         "mask a(p: int =) = b", "mask a = f(b,)",
         "mask a = f(p =)", "stack s =", "stack s = 3 of", "mask a = b or or c",
         "mask a = b and or c", "mask a = q // ", "mask a = == k", "mask a = q < k < <"),
    ),
    Mistake(
        "E007", "a parameter needs a type", "write `name: tokens = 4k`, `name: int`, `name: mask`",
        ("mask a(p) = b", "mask a(p = 3) = b", "mask a(p, r: int) = b", "mask a(p:) = b",
         "mask a(p: 3) = b"),
    ),
    Mistake(
        "E008", "`=` is missing here", "a definition is `keyword name = ...`",
        ("mask a b", "mask a (q < k)", "mask a(p: int) b", "mask a q < k", "mask a {x sees y}",
         "segment s [x]", "segment s every 3", "segment s a[x]", "stack s b", "sample s(a 3)",
         "sample s(a [3])", "mask a not b", "mask a", "segment s", "stack s",
         "mask a = b where c every 3", "mask a(p: int)", "sample s(a)", "mask a = b where c",
         "stack s 3 of b", "mask a(p: int, r: int) b", "mask a(p: int, r: int)"),
    ),
    Mistake(
        "E009", "two expressions stand side by side", "join them with `and`, `or` or `minus`",
        ("mask a = b c", "mask a = (b c)", "mask a = q < 3 k", "mask a = 3 4",
         "mask a = f(b c)", "mask a = f(1 2)", "mask a = b 3", "mask a = f(b) c", "mask a = q.b c",
         "mask a = not b c", "mask a = q + 1 k", "mask a = q * 2 k", "mask a = b true",
         "mask a = b and c d", "mask a = b or c d", "mask a = k in b c", "mask a = b {c sees d}",
         "mask a = (q + 1 k)", "mask a = b not c"),
    ),
    Mistake(
        "E010", "this is not a rule", "a rule is `segment sees segment, self causally`",
        ("mask a = {}", "mask a = { b }", "mask a = { b self }", "mask a = { sees b }",
         "mask a = { b sees }", "mask a = { b sees c, }", "mask a = { b and c }",
         "mask a = { b sees c, 3 }", "mask a = { 3 sees b }", "mask a = { b sees 3 }",
         "mask a = { b sees c within }", "mask a = { b = c }", "mask a = { b, sees d }",
         "mask a = { b, 3 see d }", "mask a = { b sees c and d }"),
    ),
    Mistake(
        "E011", "a segment needs a source",
        "write parts like `question[len_column] answer[lens_column]*`, or `every 256`",
        ("segment s =", "segment s = 5", "segment s = q", "segment s = q r[x]", "segment s = []",
         "segment s = a[]", "segment s = ()", "segment s = a[x] b", "segment s = a[x] 5",
         "segment s = a[x]* *", "segment s = every", "segment s = ids()", "segment s = ids(3)",
         "segment s = a[x], b[y]", "segment s = every 3 in", "segment s = ids(a) as"),
    ),
    Mistake(
        "E012", "this `for` statement is incomplete or out of order",
        'write `for "pattern" having column use mask with new = column`',
        ("for x use a", "for use a", "for", 'for "x"', 'for "x" a', 'for "x" = a',
         'for "x" having use a', 'for "x" having a', 'for "x" use', 'for "x" use a with',
         'for "x" use a with b', 'for "x" use a with b = 3', 'for "x" with b = c use a',
         'for "x" use a having b', 'for "x" having a b use c', 'for "x", "y" use a'),
    ),
    Mistake(
        "E017", "a name is missing here", "names are letters, digits and `_`",
        ("mask = b", "mask 3 = b", "segment = [x]", "stack = b", "token", "token 3", "token t =",
         "sample (a = 3)", "sample 3", "sample", "mask", "segment", "stack", "segment 3 = [x]",
         'mask "a" = b', "import", "import 3", "@ mask a = b", "mask a = b per 3", "mask a = q.3",
         "mask a = b where 3"),
    ),
    Mistake(
        "E021", "a `check` ends with what it claims",
        "write `check a implies b`, `check a equals b`, `check a total` or `check a lookback`",
        ("check a", "check a on s", "check a and b", "check", "check a total on",
         "check a total b"),
    ),
    Mistake(
        "E022", "a sample lists its columns",
        "write `sample tiny(question_len = 4, answer_lens = [3, 3])`",
        ("sample s", "sample s()", "sample s = 3", "sample s(a = )", "sample s(a = b)",
         "sample s(a = [b])", "sample s(a = [3,])", "sample s(3)", "sample s(a = 3,)",
         "sample s(a = 3 b = 4)", "sample s(a = q + 1)", "sample s(a = [3 4])"),
    ),
    Mistake(
        "E023", "this is not a layer of a stack",
        "write `5 of sliding(1k), causal` or `heads { 0..1: causal rest: full }`",
        ("stack s = a,", "stack s = heads", "stack s = heads {}", "stack s = heads { 0: }",
         "stack s = heads { a: b }", "stack s = heads { 0..: b }", "stack s = heads { 0 b }",
         "stack s = 3 b", "stack s = heads { rest b }"),
    ),
)  # fmt: skip

MESSAGES = {mistake.code: mistake for mistake in MISTAKES}


POSITIONS: Mapping[str, str] = {
    **dict.fromkeys(("q_idx", "query_idx", "q_index", "q_pos", "query_pos"), "q"),
    **dict.fromkeys(("kv_idx", "key_idx", "k_idx", "kv_index", "kv_pos", "key_pos"), "k"),
    **dict.fromkeys(("seq_len", "seqlen", "seq_length", "num_tokens"), "len"),
}
"""Names that other languages give to positions and to the length -> the name here."""

_POSITION_WORDS = {
    "q": "the position of the query", "k": "the position of the key",
    "len": "the tokens of the sample",
}  # fmt: skip

_SCORES = (
    "a mask is known before the model runs; let the data say which keys are chosen: "
    "`segment chosen = flags(is_chosen)` and `(k in chosen or q == k)`"
)
_CHANCE = (
    "a mask is the same in every run; draw once and put it into the data: "
    "`segment kept = flags(is_kept)` and `(k in kept or q == k)`"
)
FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("top_k", "topk", "argmax", "softmax", "score"), _SCORES),
    **dict.fromkeys(("random", "rand", "randint", "bernoulli", "dropout"), _CHANCE),
}
"""Functions that no mask can have, and the way out."""

MASKS: Mapping[str, str] = {
    **dict.fromkeys(("window", "windowed", "sliding_window", "local_window", "swa"), "sliding"),
    **dict.fromkeys(("bidirectional", "dense", "all_to_all"), "full"),
    **dict.fromkeys(("autoregressive", "lower_triangular", "tril"), "causal"),
}
"""Masks of the library by the names of other tools."""

JOINS: Mapping[str, str] = {"and_masks": "and", "or_masks": "or"}
"""Functions that join masks, and the operator that does it here."""


def position_hint(name: str) -> str:
    """Return the hint for a position with a name of another language, or an empty text."""
    meant = POSITIONS.get(name)
    return "" if meant is None else f"write `{meant}`, {_POSITION_WORDS[meant]}"


def segment_hint(name: str, segments: Sequence[str]) -> str:
    """Return a hint for a name that is no segment: a close name, or a longer or shorter one."""
    near = did_you_mean(name, segments)
    if near:
        return near
    alike = [s for s in segments if min(len(s), len(name)) > 1]
    alike = [s for s in alike if name.startswith(s) or s.startswith(name)]
    if alike:
        return f"did you mean `{max(alike, key=len)}`?"
    if segments:
        return f"segments: {', '.join(f'`{s}`' for s in sorted(segments))}"
    return f"define it: `segment {name} = [{name}_lens]*`, or tiles: `where {name} = every 256`"


_PAIRS = {"[": "]", "(": ")", "{": "}"}
_ARITHMETIC = frozenset({"+", "-", "*", "//", "%", "."})
_ID_ENDINGS = ("_ids", "_idx", "_id")


def fail_foreign_syntax(at: int, tokens: Sequence[RawToken], text: str) -> None:
    """Raise E025, E026 or E027 for a statement that fails, at token `at`, as in other languages."""
    _fail_fraction(at, tokens)
    _fail_list(at, tokens, text)
    _fail_index(at, tokens, text)


def _fail_fraction(at: int, tokens: Sequence[RawToken]) -> None:
    """Raise for `0.1`; in a call such as `random(0.1)` report the function instead."""
    # `0.1` is three tokens, of which the parser accepts two: a name may follow the dot.
    if at < 2 or at >= len(tokens):
        return
    whole, dot, part = tokens[at - 2 : at + 1]
    if (whole.kind, dot.text, part.kind) != ("number", ".", "number"):
        return
    for index in range(at - 3, 0, -1):
        name = tokens[index - 1]
        if tokens[index].text == "(" and name.text in FUNCTIONS:
            raise BuildError("E101", f"unknown name `{name.text}`", name.span, FUNCTIONS[name.text])
    shown = f"{whole.text}.{part.text}"
    raise BuildError(
        "E027", f"`{shown}` is no whole number", Span(whole.span.start, part.span.end),
        "write a fraction as a division that rounds down: a tenth of the sample is `len // 10`",
    )  # fmt: skip


def _fail_list(at: int, tokens: Sequence[RawToken], text: str) -> None:
    """Raise for `in` and a list of numbers."""
    # The nearest bracket behind an `in`; the parser stops somewhere between it and its partner.
    for index in range(min(at, len(tokens) - 1), 0, -1):
        if tokens[index].text in _PAIRS and tokens[index - 1].text == "in":
            break
    else:
        return
    end = _closing(index, tokens)
    values = _values(tokens[index + 1 : end], text)
    # `k in (doc)` asks about a segment.
    if end is None or end < at or not values or (tokens[index].text == "(" and len(values) < 2):
        return
    is_not = tokens[index - 2].text == "not"
    last = index - 3 if is_not else index - 2
    first = _operand_start(last, tokens)
    if first > last:
        return
    span = Span(tokens[first].span.start, tokens[end].span.end)
    # `(q - k) in [1, 2]` needs no brackets as a comparison.
    if tokens[first].text == "(" and _closing(first, tokens) == last:
        first, last = first + 1, last - 1
    item = text[tokens[first].span.start : tokens[last].span.end]
    meant = _comparisons(item, values, _segments(text), is_not=is_not)
    message = "`in` asks whether a token lies in a segment, not about a list of numbers"
    raise BuildError("E026", message, span, f"write `{meant}`", meant)


def _comparisons(
    item: str, values: Sequence[str], segments: frozenset[str], *, is_not: bool
) -> str:
    # Integers that follow one another, `in [3, 4, 5]`, are shorter as a chain of two comparisons.
    numbers = [int(value) for value in values if value.isdigit()]
    is_run = len(numbers) == len(values) > 2 and all(b - a == 1 for a, b in pairwise(numbers))
    if is_run and not is_not:
        return f"{numbers[0]} <= {item} <= {numbers[-1]}"
    op, word = ("!=", " and ") if is_not else ("==", " or ")
    inside = "not in" if is_not else "in"
    told = word.join(f"{item} {inside if v in segments else op} {v}" for v in values)
    return f"({told})" if len(values) > 1 else told


def _values(tokens: Sequence[RawToken], text: str) -> list[str]:
    """Return the texts between commas, if they are numbers and names with signs."""
    found: list[list[RawToken]] = [[]]
    for token in tokens:
        if token.text == ",":
            found.append([])
        elif token.kind in ("number", "name") or token.text in _ARITHMETIC:
            found[-1].append(token)
        else:
            return []
    return [text[v[0].span.start : v[-1].span.end] for v in found] if all(found) else []


def _closing(opening: int, tokens: Sequence[RawToken]) -> int | None:
    """Return the place of the bracket that closes this one."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].text in _PAIRS) - (tokens[index].text in _PAIRS.values())
        if depth == 0:
            return index
    return None


def _operand_start(last: int, tokens: Sequence[RawToken]) -> int:
    """Return where the sum begins that ends at this token."""
    first, depth = last + 1, 0
    for index in range(last, -1, -1):
        token = tokens[index]
        depth += (token.text == ")") - (token.text == "(")
        is_part = token.kind == "number" or token.text in (*_ARITHMETIC, "(", ")")
        is_part = is_part or (token.kind == "name" and token.text not in KEYWORDS)
        if depth < 0 or not (is_part or depth > 0):
            break
        first = index
    return first


def _fail_index(at: int, tokens: Sequence[RawToken], text: str) -> None:
    """Raise for a column with a position in brackets."""
    read = _index_at(at - 1, tokens)
    if read is None:
        return
    column, position = read
    span = Span(tokens[at - 1].span.start, tokens[at + 2].span.end)
    meant = f"{position}.{column}"
    # `column[position]` has four tokens, of which `at` is the second; then comes `==`.
    other = _index_at(at + 4, tokens)
    is_known = ("token", column) in _definitions(text)
    if other is not None and other[0] == column and tokens[at + 3].text == "==":
        span = Span(span.start, tokens[at + 7].span.end)
        meant += f" == {other[1]}.{column}"
        segment = _segment_like(column, text)
        if segment is not None and not is_known:
            meant, is_known = f"same({segment})", True
    hint = f"write `{meant}`"
    if not is_known:
        hint += f" and, above the mask, `token {column}`"
        if other is not None:
            hint += "; if a column gives lengths: `segment doc = [doc_lens]*` and `same(doc)`"
    message = f"the column `{column}` is read by name, not with an index"
    # Without a definition of the column the text would not mean what it should: no fix.
    raise BuildError("E025", message, span, hint, meant if is_known else None)


def _index_at(at: int, tokens: Sequence[RawToken]) -> tuple[str, str] | None:
    """Return column and position if `column[position]` begins here."""
    if at < 0 or at + 3 >= len(tokens):
        return None
    name, opening, position, closing = tokens[at : at + 4]
    meant = {"q": "q", "k": "k", **POSITIONS}.get(position.text)
    if (opening.text, closing.text) != ("[", "]") or meant not in ("q", "k"):
        return None
    return (name.text, meant) if name.kind == "name" and name.text not in KEYWORDS else None


def _segments(text: str) -> frozenset[str]:
    """Return the names of the segments of a text, of their parts and of their ids."""
    found, statement, is_listed = set(), "", False
    for word, follower in pairwise([token.text for token in scan(text)]):
        statement = word if word in STATEMENT_KEYWORDS else statement
        is_listed = word == "as" or (is_listed and statement == "segment" and word != "=")
        if statement == "segment" and (is_listed or follower in ("=", "[", "(")):
            found.add(word)
    return frozenset(found)


@lru_cache(maxsize=1)  # every error of one text may ask
def _definitions(text: str) -> tuple[tuple[str, str], ...]:
    """Return the names of the token columns and segments of a text, each behind its keyword."""
    words = [token.text for token in scan(text) if token.kind == "name"]
    pairs = zip(["", *words], pairwise(words), strict=False)
    # `from token forks` defines nothing
    return tuple(p for before, p in pairs if p[0] in ("token", "segment") and before != "from")


def _segment_like(column: str, text: str) -> str | None:
    """Return a segment of the text that is named like a column of ids."""
    for ending in _ID_ENDINGS:
        column = column.removesuffix(ending)
    segments = [name for word, name in _definitions(text) if word == "segment"]
    return next((s for s in segments if s.startswith(column) or column.startswith(s)), None)


_BEFORE_COLUMNS = ("[", "from", "having", "with", "token", "column", ".")


def spaced_name(at: int, tokens: Sequence[RawToken], text: str) -> str:
    """Return how the names around a place are written as one column; empty if they are none."""
    first = last = at

    def is_next(left: int) -> bool:
        if left < 0 or left + 1 >= len(tokens):
            return False
        pair = tokens[left : left + 2]
        are_names = all(t.kind == "name" and t.text not in KEYWORDS for t in pair)
        return are_names and text[pair[0].span.end : pair[1].span.start].strip(" ") == ""

    while is_next(first - 1):
        first -= 1
    while is_next(last):
        last += 1
    if first == at:
        return ""
    statement, before, source = tokens[0].text, tokens[first - 1].text, tokens[first - 2].text
    fits = (
        before in _BEFORE_COLUMNS
        or (before == "(" and (statement == "sample" or source in COLUMN_KINDS))
        or (before in (",", "=") and statement in ("token", "column", "for"))
        or (before == "," and statement == "sample")
    )
    name = text[tokens[first].span.start : tokens[last].span.end]
    return f'names have no spaces; a column of this name is written `"{name}"`' if fits else ""


def fail_unbalanced(tokens: list[RawToken]) -> None:
    """Raise for the first bracket without a partner; a lone closing one, or the innermost open."""
    open_: list[RawToken] = []
    for token in tokens:
        if token.text in _PAIRS:
            open_.append(token)
        elif token.text in _PAIRS.values():
            if not open_ or _PAIRS[open_[-1].text] != token.text:
                message = f"`{token.text}` closes nothing"
                raise BuildError("E006", message, token.span, "remove it or open it before")
            open_.pop()
    if open_:
        closing = _PAIRS[open_[-1].text]
        raise BuildError(
            "E006", f"`{open_[-1].text}` is never closed", open_[-1].span, f"add `{closing}`"
        )
