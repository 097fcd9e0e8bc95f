"""Find the instances of the segments that a mask speaks of, in the coordinates of its place."""

from abc import abstractmethod
from dataclasses import dataclass

from dcp_dsl.core.column_segments import bind_columns
from dcp_dsl.core.environment import Closure, Env, Frame
from dcp_dsl.core.instances import Instances, tile
from dcp_dsl.core.layout import bind_layout
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLowering:
    """Evaluates segments in one frame."""

    frame: Frame

    @property
    def n(self) -> int:
        """Tokens of the sample."""
        return self.frame.num_tokens

    @abstractmethod
    def constant(self, value: ast.Expr, env: Env) -> int:
        """Evaluate a number that depends on no position."""

    def instances(self, value: ast.Expr, env: Env) -> Instances:
        """Evaluate a segment: by name, or `first(S, m)`, `last(S, m)`."""
        if isinstance(value, ast.Name):
            return self.segment(value.text, env, value.span)
        assert isinstance(value, ast.Call), "checked: a segment is a name or a call"
        instances = self.instances(value.arguments[0].value, env)
        how_many = 1 if len(value.arguments) < 2 else self.constant(value.arguments[1].value, env)
        is_first = value.name.text == "first"
        return instances.first(how_many) if is_first else instances.last(how_many)

    def segment(self, name: str, env: Env, span: Span) -> Instances:
        """Give the instances of a segment by name."""
        local = env.names.get(name)
        if isinstance(local, Closure):
            assert isinstance(local.value, ast.Every), "checked: the name is a segment"
            return self.tiles(local.value, local.env)
        statement = env.scope.segments[name]
        if isinstance(statement.source, ast.Every):
            return self.tiles(statement.source, Env(env.scope, env.scope.program))
        return _bind(statement, (id(env.scope), statement.name.text), self.frame)[name]

    def tiles(self, every: ast.Every, env: Env) -> Instances:
        """Give the tiles of an `every`."""
        size = self.constant(every.size, env)
        if size < 1:
            env.fail(
                "E111", f"`every {size}` makes no tiles", every.size.span,
                "the size of a tile is at least 1 token",
            )  # fmt: skip
        if every.parent is None:
            return tile(size, self.frame.cells.as_parents())
        return tile(size, self.segment(every.parent.text, env, every.parent.span))


def _bind(statement: ast.Segment, key: tuple[int, str], frame: Frame) -> dict[str, Instances]:
    """Find the instances of all names of a statement, once; inside `per` cut to each instance."""
    if key not in frame.segments:
        if frame.outer is None:
            frame.segments[key] = _find(statement, frame)
        else:
            around = _bind(statement, key, frame.outer)
            frame.segments[key] = {
                name: found.clip(frame.cells, frame.outer.cells) for name, found in around.items()
            }
    return frame.segments[key]


def _find(statement: ast.Segment, frame: Frame) -> dict[str, Instances]:
    match statement.source:
        case ast.Layout() as layout:
            return bind_layout(statement, layout, frame.columns, frame.num_tokens)
        case ast.Columns() as source:
            return bind_columns(statement, source, frame.columns, frame.num_tokens)
    raise AssertionError("tiles are found where they are used")
