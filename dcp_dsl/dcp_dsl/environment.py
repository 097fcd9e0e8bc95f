"""What names mean at one place of a mask, and the coordinates it is evaluated in.

Names are looked up in three steps: parameters and `where` bindings, then the text, then the
standard library. Bindings are evaluated where they are used, in the coordinates of that place,
which is what `per` needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from dcp_dsl import ast
from dcp_dsl.ast import Program, Span
from dcp_dsl.budget import Budget
from dcp_dsl.layout import Column, Instances
from dcp_dsl.scope import Scope
from dcp_dsl.terms import Number


class LoweringError(Exception):
    """A mask that cannot be bound: not supported yet, or a constant out of range."""

    def __init__(
        self, code: str, message: str, program: Program, span: Span, hint: str = ""
    ) -> None:
        self.code, self.message, self.program = code, message, program
        self.span, self.hint = span, hint
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Closure:
    """An expression with the environment it is read in: an argument or a `where` binding."""

    value: "ast.Expr | ast.Every | ast.BindFunction"
    env: "Env"


Value: TypeAlias = Number | bool | Closure


@dataclass(frozen=True, slots=True, eq=False)
class Env:
    """What names mean at one place.

    Attributes:
        scope: definitions.
        program: the text that spans point into.
        names: parameters and bindings.
    """

    scope: Scope
    program: Program
    names: Mapping[str, Value] = field(default_factory=dict)

    def fail(self, code: str, message: str, span: Span, hint: str = "") -> NoReturn:
        """Raise for something at this place."""
        raise LoweringError(code, message, self.program, span, hint)

    def refuse(self, what: str, span: Span, hint: str = "") -> NoReturn:
        """Raise for something that has no normal form yet."""
        self.fail("E190", f"not supported yet: {what}", span, hint)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The coordinates an expression is evaluated in: a sample, or one instance inside `per`.

    Attributes:
        num_tokens: tokens, at least 1.
        columns: of the sample.
        budget: shared by all frames of a sample.
        is_whole: False inside `per`, where layouts and token columns are not available yet.
        layouts: instances already bound, by text and statement.
    """

    num_tokens: int
    columns: Mapping[str, Column]
    budget: Budget
    is_whole: bool = True
    layouts: dict[tuple[int, str], dict[str, Instances]] = field(default_factory=dict)
