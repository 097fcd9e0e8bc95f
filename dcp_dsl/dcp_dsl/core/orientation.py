"""Which way a mask is simple: from the queries, or from the keys."""

from dcp_dsl.checks.scope import Scope
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import mentioned_names, walk


def reads_keys_only(value: ast.Expr, scope: Scope) -> bool:
    """Whether a mask reads token columns at keys and none at queries, as eviction and trees do."""
    positions: set[str] = set()
    seen: set[tuple[int, str]] = set()
    pending: list[tuple[object, Scope]] = [(value, scope)]
    while pending:
        node, at = pending.pop()
        for inner in walk(node):
            match inner:
                case ast.Attribute(ast.Name(text), name) if _is_token(name.text, at):
                    positions.add(text)
                case ast.Attribute(_, name) if _is_token(name.text, at):
                    positions.add("")
        for mentioned, is_attribute in mentioned_names(node):
            found = None if is_attribute else at.find_mask(mentioned)
            if found is not None and (id(at), mentioned) not in seen:
                seen.add((id(at), mentioned))
                pending.append(found)
    return positions == {"k"}


def _is_token(name: str, scope: Scope) -> bool:
    return name in scope.tokens and name not in scope.segments
