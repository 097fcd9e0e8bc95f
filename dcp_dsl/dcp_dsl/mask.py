"""A checked mask, ready to be bound to samples."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dcp_dsl import ast
from dcp_dsl.diagnostics import make_diagnostic
from dcp_dsl.errors import DatasetError, SpecError
from dcp_dsl.sample import Sample
from dcp_dsl.scope import Scope
from dcp_dsl.sparsity import Slabs

if TYPE_CHECKING:
    from dcp_dsl.guard import Guard


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """A mask of a spec: an expression, the text its names come from, and the columns it needs.

    Attributes:
        name: the mask's name, or the expression if it has none.
        call: canonical text of the expression; ``spec.mask(mask.call)`` is the same mask.
        columns: columns that a sample must have.
        expression: syntax tree.
        scope: where the names in `expression` are looked up.
        program: the text that `expression` was read from.

    >>> from dcp_dsl import Spec
    >>> mask = Spec.from_text("mask band(w: tokens = 4) = causal and q - k < w").mask("band(2)")
    >>> mask.call, mask.bind(Sample(length=100)).num_pairs
    ('band(w = 2)', 199)
    """

    name: str
    call: str
    columns: frozenset[str]
    expression: ast.Expr = field(repr=False)
    scope: Scope = field(repr=False)
    program: ast.Program = field(repr=False)

    def guard(self) -> "Guard":
        """Give what refuses samples on which the mask leaks or a token sees nothing."""
        from dcp_dsl.guard import Guard  # a guard is made of masks

        return Guard.of((self,))

    def bind(self, sample: Sample) -> Slabs:
        """Give the exact normal form of the mask on one sample.

        The cost grows with the number of segments and tiles, not with the number of tokens.

        Raises:
            DatasetError: if the sample lacks a column or its layout does not fill it.
            SpecError: for constructs that are not supported yet (E190) and for sizes out of range.
        """
        # numpy's half of the room, loaded on use
        from dcp_dsl.environment import Env, LoweringError
        from dcp_dsl.lowering import lower

        missing = sorted(self.columns - sample.columns.keys())
        if missing:
            have = ", ".join(f"`{c}`" for c in sorted(sample.columns)) or "no columns"
            raise DatasetError(
                f"mask `{self.name}` needs the column `{missing[0]}`; the sample has {have}"
            )
        try:
            env = Env(self.scope, self.program)
            region = lower(self.expression, env, sample.columns, sample.length)
        except LoweringError as error:
            text, name = error.program.text, error.program.name
            raise SpecError(
                (make_diagnostic(
                    error.code, error.message, text, error.span, name=name, hint=error.hint
                ),)
            ) from None  # fmt: skip
        return region.to_slabs()

    def _repr_svg_(self) -> str | None:
        """Draw the mask on a sample of its text, for notebooks; None if there is no sample."""
        from dcp_dsl.pictures.preview import preview

        picture = preview(self)
        return None if picture is None else picture.svg()
