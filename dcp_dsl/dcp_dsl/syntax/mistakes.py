"""Messages for syntax errors, each with examples of the mistake.

The parser runs every example once and remembers the state it failed in; a real error that fails in
the same state on the same kind of token gets the example's code (the method of Lark's
``match_examples``, with the examples parsed once instead of at every error).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """A kind of syntax error: its message and example texts."""

    code: str
    message: str
    hint: str
    examples: tuple[str, ...]


MISTAKES: tuple[Mistake, ...] = (
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
         "mask a = b and or c", "mask a = q // ", "mask a = == k"),
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
         "stack s 3 of b"),
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
         "mask a = { b sees c within }", "mask a = { b = c }", "mask a = { b, c sees d }",
         "mask a = { b sees c and d }"),
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
