"""Warn about how a mask is written: valid, but probably not what its author intended.

What these lints say about the meaning of a mask is proved; only the intent is a guess.
"""

from dcp_dsl.checks.masks import write_out_inside
from dcp_dsl.checks.scope import keys_of_mask
from dcp_dsl.claims.lints.subject import is_of_one_sequence
from dcp_dsl.claims.testing import Testing
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import find_redundant, is_total, never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import Edit, Fix
from dcp_dsl.syntax.tokens import scan
from dcp_dsl.syntax.trees import mentioned_names, walk

SMALLEST_WINDOW = 8  # smaller powers of two are too common to mean a window
MAX_PARTS = 6  # items of an `and` or `or` that is searched for redundant ones
_DISTANCE = ast.Binary("-", ast.Name("q"), ast.Name("k"))


def long_windows(mask: ast.MaskDef, testing: Testing) -> None:
    """Find `q - k <= 4k`, which sees one token more than a window of 4k (W201)."""
    sizes = {p.name.text: p.default.value for p in mask.params if isinstance(p.default, ast.Number)}
    for node in walk(mask):
        if not isinstance(node, ast.Compare):
            continue
        links = zip(node.operands, node.ops, node.operands[1:], strict=False)
        for left, op, right in links:
            distance, size = (left, right) if op == "<=" else (right, left)
            if op not in ("<=", ">=") or distance != _DISTANCE:
                continue
            # The size stands there as a number, or as a parameter whose default is one.
            value = size.value if isinstance(size, ast.Number) else None
            if isinstance(size, ast.Name):
                value = sizes.get(size.text)
            # People choose powers of two as windows; other numbers may well count this way.
            if value is not None and value >= SMALLEST_WINDOW and value & (value - 1) == 0:
                _report_window(left, op, right, value, testing)


def _report_window(left: ast.Expr, op: str, right: ast.Expr, value: int, testing: Testing) -> None:
    message = f"this window sees {value + 1} tokens: a window counts the token itself"
    span = ast.Span(left.span.start, right.span.end)
    # The tree has no place for the operator; brackets or comments may stand beside it.
    tokens = (t for t in scan(testing.scope.program.text) if t.span.start >= left.span.end)
    at = next(token.span.start for token in tokens if token.text == op)
    fix = Fix(f"replace `{op}` by `{op[0]}`", (Edit(at, at + 2, op[0]),))
    testing.report("W201", message, span, f"write `{op[0]}` for {value} tokens", fix)


def unread_names(mask: ast.MaskDef, testing: Testing) -> None:
    """Find parameters and bindings that nothing reads (W202)."""
    for part in mask.locals:
        others = [p.default for p in mask.params if p is not part]
        others += [b for b in mask.bindings if b is not part]  # type: ignore[misc]  # any node
        names = {name for node in (mask.value, *others) for name, _ in mentioned_names(node)}
        if part.name.text not in names:
            kind = "parameter" if isinstance(part, ast.Param) else "binding"
            message = f"{kind} `{part.name.text}` is not used"
            testing.report("W202", message, part.name.span, "use it or remove it")


def repeated_rules(mask: ast.MaskDef, testing: Testing) -> None:
    """Find rules that say the same twice (W205)."""
    for node in walk(mask.value):
        if not isinstance(node, ast.Rules):
            continue
        seen: set[tuple[str, ast.Target]] = set()
        for rule in node.rules:
            for target in rule.targets:
                if (rule.subject.text, target) in seen:
                    message = f"a rule already says that `{rule.subject.text}` sees this"
                    testing.report("W205", message, target.span, "remove one of them")
                seen.add((rule.subject.text, target))


def not_per(mask: ast.MaskDef, testing: Testing) -> None:
    """Find `not a per S`, which may be read as `(not a) per S` (W214)."""
    text = testing.scope.program.text
    for node in walk(mask):
        if isinstance(node, ast.Not) and isinstance(node.value, ast.Per):
            whole = node.value.span.text(text)  # with the brackets around it
            if whole.startswith("(") and whole.endswith(")"):
                continue
            inner, segment = node.value.value.span.text(text), node.value.segment.text
            testing.report(
                "W214", f"`not` turns round all of `{whole}`", node.span,
                f"tokens of another `{segment}` are seen; write `not ({inner} per {segment})` if "
                f"they are meant, `(not {inner}) per {segment}` if they are not",
            )  # fmt: skip


def redundant_conditions(mask: ast.MaskDef, testing: Testing) -> None:
    """Find conditions that the others imply, for every value of the parameters (W206)."""
    if not is_of_one_sequence(mask, testing.scope):
        return
    for node in walk(mask.value):
        if not isinstance(node, ast.And | ast.Or) or len(node.items) > MAX_PARTS:
            continue
        if any(isinstance(item, ast.Bool) for item in node.items):
            continue
        is_and = isinstance(node, ast.And)
        items = write_out_inside(node.items, mask, testing.scope)
        if any(isinstance(item, nodes.Segment) for item in items):  # `k in (a or b)`
            continue
        index = find_redundant(items, testing.proofs, is_and=is_and)
        if index is not None:
            word = "and" if is_and else "or"
            message = f"the other parts of this `{word}` already say this"
            span = node.items[index].span
            testing.report("W206", message, span, "remove it, or mend the others")


def needless_decorators(mask: ast.MaskDef, testing: Testing) -> None:
    """Find `@ahead` on masks without look-ahead, `@partial` where every token sees itself (W207).

    Between two sequences no token is later than another, so `@ahead` is always needless there.
    Queries before the first key see nothing, so `bottom_right` may always need `@partial`.
    """
    is_one = is_of_one_sequence(mask, testing.scope)
    keys = keys_of_mask(mask, testing.scope)
    is_total_possible = keys is None or keys.alignment == "top_left"
    (core,) = write_out_inside((mask.value,), mask, testing.scope)
    for decorator in mask.decorators:
        if decorator.name.text == "ahead":
            is_needless = not is_one or never(core, ("before",), testing.proofs)
            what = "no token ever sees a later one"
        else:
            is_partial = is_total_possible and decorator.name.text == "partial"
            is_needless = is_partial and is_total(core, testing.proofs)
            what = "every token sees itself"
        if is_needless:
            # The fix also removes the blanks and line ends behind the decorator.
            end, text = decorator.span.end, testing.scope.program.text
            end += len(text[end:]) - len(text[end:].lstrip())
            fix = Fix("remove the decorator", (Edit(decorator.span.start, end, ""),))
            message = f"`@{decorator.name.text}` is not needed: {what}"
            testing.report("W207", message, decorator.span, "remove it", fix)
