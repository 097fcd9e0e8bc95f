"""Check that a layout can be laid out: remaining tokens once, a column behind every repetition."""

from dcp_dsl.checks.columns import layout_columns
from dcp_dsl.checks.expressions import ExpressionChecker
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import walk


def check_layout(layout: ast.Layout, checker: ExpressionChecker) -> None:
    """Report what is wrong with the parts of a layout and with the shapes of its columns."""
    rests = [p for p in layout.parts if isinstance(p, ast.Leaf) and p.length is None]
    for extra in rests[1:]:
        checker.report(
            "E113", "only one part can take the remaining tokens", extra.span, "give it a column"
        )
    nesting: dict[str, int] = {}
    for part in layout.parts:
        _check_part(part, 0, nesting, checker, is_top=True)


def _check_part(
    part: ast.Leaf | ast.Group,
    depth: int,
    nesting: dict[str, int],
    checker: ExpressionChecker,
    *,
    is_top: bool,
) -> None:
    """Check one part inside `depth` repetitions; `nesting` remembers the depth of each column."""
    if isinstance(part, ast.Group):
        if part.is_repeated and not layout_columns(part):
            checker.report(
                "E113", "nothing says how often this group repeats", part.span,
                "give one of its parts a column",
            )  # fmt: skip
        for inner in part.parts:
            _check_part(inner, depth + part.is_repeated, nesting, checker, is_top=False)
        return
    if part.length is None:
        if part.is_repeated or not is_top:
            checker.report(
                "E113", "`[..]` stands for the remaining tokens of the sample", part.span,
                "use it once, outside groups and without `*`",
            )  # fmt: skip
        return
    if part.is_repeated and not (isinstance(part.length, ast.Name) and part.length.text != "len"):
        checker.report(
            "E113", "a repeated part needs a column of lengths", part.length.span,
            "write `name[lens_column]*`",
        )  # fmt: skip
        return
    _check_length(part.length, depth + part.is_repeated, nesting, checker)


def _check_length(
    length: ast.Expr, depth: int, nesting: dict[str, int], checker: ExpressionChecker
) -> None:
    shapes = ["one integer", "a list", "a list of lists"]
    for node in walk(length):
        match node:
            case ast.Name(text) if text != "len":
                known = nesting.setdefault(text, depth)
                if known != depth:
                    wanted = [shapes[d] if d < 3 else "a deeper list" for d in (known, depth)]
                    checker.report(
                        "E115", f"column `{text}` is {wanted[0]} before and {wanted[1]} here",
                        node.span, "use two columns, or repeat both parts",
                    )  # fmt: skip
            case ast.Binary(op="//" | "%", right=ast.Number(value=0) as zero):
                checker.report("E111", "this divides by zero", zero.span)
            case ast.Name() | ast.Number() | ast.Binary() | ast.Sign() | ast.Span() | ast.Ident():
                pass
            case ast.Attribute() | ast.Call() | ast.Compare() | ast.Bool() | ast.Rules():
                checker.report(
                    "E113", "a length is arithmetic on columns and `len`", length.span,
                    "write `name[column]` or `name[len // 2]`",
                )  # fmt: skip
                return
