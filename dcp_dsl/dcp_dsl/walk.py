"""Walk a syntax tree: all nodes below a node, all names it mentions."""

from collections.abc import Iterator

from dcp_dsl import ast


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
