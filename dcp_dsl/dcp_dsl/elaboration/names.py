"""Hold what names mean while a mask is elaborated: parameters, bindings, then definitions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dcp_dsl.checks.scope import Scope
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.nodes import Place
from dcp_dsl.syntax import ast


@dataclass(frozen=True, slots=True, eq=False)
class Env:
    """The meaning of names at one place: parameters and bindings, then the definitions of a text.

    Attributes:
        scope: definitions.
        program: the text that spans point into.
        names: parameters and bindings.
    """

    scope: Scope
    program: ast.Program
    names: "Mapping[str, Local]" = field(default_factory=dict)

    def place(self, span: ast.Span) -> Place:
        """Return a place of the text."""
        return Place(self.program, span)


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """An argument or a binding that is elaborated where it is used, in the names it is read in."""

    value: "ast.Expr | ast.Every | ast.BindFunction"
    env: Env


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A value already elaborated, in the coordinates of a frame so many frames deep."""

    node: nodes.Node
    depth: int


Local: TypeAlias = Later | Given


def bind(definition: ast.MaskDef, names: dict[str, Local], inner: Env) -> None:
    """Add the `where` bindings of a mask to its names."""
    for binding in definition.bindings:
        match binding:
            case ast.BindSegment(name, source):
                names[name.text] = Later(source, inner)
            case ast.BindValue(name, value):
                names[name.text] = Later(value, inner)
            case ast.BindFunction(name):
                names[name.text] = Later(binding, inner)


def is_segment(name: str, env: Env) -> bool:
    """Return whether a name stands for a segment."""
    local = env.names.get(name)
    if local is None:
        return name in env.scope.segments
    return isinstance(local, Later) and isinstance(local.value, ast.Every)


def is_instance(value: ast.Attribute, env: Env) -> bool:
    """Return whether an attribute is the instance of a token, as `q.S` is and `q.S.end` is not."""
    inner = value.value
    if isinstance(inner, ast.Attribute) and is_instance(inner, env):
        return False
    return is_segment(value.name.text, env)
