"""A checked mask, ready to be bound to samples."""

from dataclasses import dataclass, field

from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.binding import bind_expression
from dcp_dsl.core.environment import Env, LoweringError
from dcp_dsl.core.sample import Sample
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.conversion import as_slabs
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError, make_diagnostic


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

    def bind(self, sample: Sample) -> Slabs:
        """Give the exact mask of one sample as slabs.

        What has no short form as slabs is converted, which costs what it has in slabs; `compile`
        gives such masks in their own form, at any length.

        Raises:
            DatasetError: if the sample lacks a column, its layout does not fill it, or the mask
                falls into more than a million slabs.
            SpecError: for sizes out of range, and for masks too large for every form (E191).
        """
        return as_slabs(self.compile(sample))

    def compile(self, sample: Sample) -> Form:
        """Give the exact mask of one sample in the form that describes it shortest.

        The cost grows with the number of segments and tiles, not with the number of tokens. The
        form is named by its attribute `form`; see `Form` for what all of them can do.

        Raises:
            DatasetError: if the sample lacks a column or its layout does not fill it.
            SpecError: for sizes out of range, and for masks too large for every form (E191).

        >>> from dcp_dsl import Spec
        >>> mask = Spec.from_text("mask comb = causal and (q - k) % 4 == 0").mask("comb")
        >>> mask.compile(Sample(length=100_000)).form
        'strided'
        """
        missing = sorted(self.columns - sample.columns.keys())
        if missing:
            have = ", ".join(f"`{c}`" for c in sorted(sample.columns)) or "no columns"
            raise DatasetError(
                f"mask `{self.name}` needs the column `{missing[0]}`; the sample has {have}"
            )
        try:
            env = Env(self.scope, self.program)
            return bind_expression(self.expression, env, sample.columns, sample.length)
        except LoweringError as error:
            text, name = error.program.text, error.program.name
            raise SpecError(
                (make_diagnostic(
                    error.code, error.message, text, error.span, name=name, hint=error.hint
                ),)
            ) from None  # fmt: skip
