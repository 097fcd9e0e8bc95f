"""Which columns of a sample a mask needs: found by following every name it mentions."""

from collections.abc import Iterator

from dcp_dsl import ast
from dcp_dsl.layout import layout_columns
from dcp_dsl.scope import Scope


def needed_columns(expression: ast.Expr, scope: Scope) -> frozenset[str]:
    """Give the columns that evaluating a mask expression reads, through everything it calls."""
    found: set[str] = set()
    seen: set[tuple[int, str]] = set()
    pending: list[tuple[object, Scope]] = [(expression, scope)]
    while pending:
        node, at = pending.pop()
        for name, is_attribute in mentioned_names(node):
            if (id(at), name) in seen:
                continue
            if is_attribute:
                if name in at.tokens and name not in at.segments:
                    found.add(at.tokens[name].column.text)
            elif (mask := at.find_mask(name)) is not None:
                seen.add((id(at), name))
                pending.append(mask)
            if name in at.segments:
                seen.add((id(at), name))
                source = at.segments[name].source
                if isinstance(source, ast.Layout):
                    found.update(layout_columns(source))
                elif isinstance(source, ast.Columns):
                    found.add(source.column.text)
                else:
                    pending.append((source, at))
        found.update(_row_columns(node))
    return frozenset(found)


def mentioned_names(node: object) -> Iterator[tuple[str, bool]]:
    """Give every name in a tree, with whether it stands behind a dot."""
    for inner in walk(node):
        match inner:
            case ast.Name(text):
                yield text, False
            case ast.Call(name):
                yield name.text, False
            case ast.Attribute(_, name):
                yield name.text, True
            case ast.Per(_, segment):
                yield segment.text, False
            case ast.Every(_, parent) if parent is not None:
                yield parent.text, False
            case ast.Rule(subject):
                yield subject.text, False
            case ast.Target(name):
                yield name.text, False


def walk(node: object) -> Iterator[object]:
    """Give a node of a syntax tree and all nodes below it; no recursion."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, tuple):
            stack.extend(reversed(current))
        elif hasattr(current, "__dataclass_fields__"):
            yield current
            stack.extend(getattr(current, name) for name in reversed(current.__dataclass_fields__))


def _row_columns(node: object) -> set[str]:
    return {
        inner.name.text
        for inner in walk(node)
        if isinstance(inner, ast.Attribute) and inner.value == ast.Name("row")
    }
