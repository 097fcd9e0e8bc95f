"""From the parser's tree to our syntax tree, bottom-up and without recursion.

One small function per grammar rule, found by the rule's name. Walking with a stack keeps deeply
nested input from exhausting Python's; the depth of the result is limited instead, because
everything behind this module walks the tree recursively.
"""

from typing import Any, TypeGuard, cast

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.expression_rules import EXPRESSION_RULES
from dcp_dsl.syntax.statement_rules import STATEMENT_RULES
from dcp_dsl.syntax.words import BuildError, Built, Word

MAX_DEPTH = 64
_RULES = {**STATEMENT_RULES, **EXPRESSION_RULES}


def build_statement(
    tree: Any, offset: int
) -> ast.Statement:  # Any: lark.Tree; lark stays in the parser
    """Turn the tree of one statement into a node.

    Args:
        tree: a Lark tree with positions.
        offset: where the parsed text begins in the whole text, added to every span.

    Raises:
        BuildError: for numbers out of range, too deep nesting, unknown kinds of columns.
    """
    return cast("ast.Statement", _build(tree, offset))


def build_expression(tree: Any, offset: int) -> ast.Expr:  # Any: as above
    """Turn the tree of one expression into a node; raises as `build_statement`."""
    return cast("ast.Expr", _build(tree, offset))


def _build(root: Any, offset: int) -> Built:
    if not _is_tree(root):
        return root
    results: list[tuple[Built, int]] = []
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if not _is_tree(node):
            results.append((_shift(node, offset), 0))
        elif not is_ready:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))
        else:
            count = len(node.children)
            children = results[len(results) - count :] if count else []
            del results[len(results) - count :]
            span = _span_of(node, offset)
            depth = 1 + max((d for _, d in children), default=0)
            if depth > MAX_DEPTH:
                raise BuildError(
                    "E015", f"this nests more than {MAX_DEPTH} levels deep", span,
                    "name a part of it: `mask part = ...`",
                )  # fmt: skip
            results.append((_RULES[node.data]([value for value, _ in children], span), depth))
    return results[0][0]


def _is_tree(node: Any) -> TypeGuard[Any]:
    return hasattr(node, "children")


def _shift(token: Any, offset: int) -> Word | None:
    if token is None:
        return None
    return Word(token.type, str(token), Span(token.start_pos + offset, token.end_pos + offset))


def _span_of(node: Any, offset: int) -> Span:
    if node.meta.empty:
        return Span(offset, offset)
    return Span(node.meta.start_pos + offset, node.meta.end_pos + offset)
