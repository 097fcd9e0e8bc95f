"""A checked mask: build one from an expression, and bind it to samples."""

from dataclasses import dataclass, field

from dcp_dsl.checks.checker import check_expression
from dcp_dsl.checks.masks import write_out, write_out_segment
from dcp_dsl.checks.scope import Scope, given_arguments
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.reads import column_readers, laid_statements
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError
from dcp_dsl.syntax.unparse import unparse


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
        core: what the expression means, with everything it calls written out.

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
    core: nodes.Mask = field(repr=False)

    @property
    def segments(self) -> tuple[ast.Segment, ...]:
        """The segment statements that the mask reads."""
        return laid_statements(self.core)

    def require(self, sample: Sample) -> None:
        """Raise a `DatasetError` if a sample lacks a column of the mask."""
        missing = sorted(self.columns - sample.columns.keys())
        if missing:
            have = ", ".join(f"`{c}`" for c in sorted(sample.columns)) or "no columns"
            raise DatasetError(
                f"mask `{self.name}` needs the column `{missing[0]}`; the sample has {have}"
            )

    def bind(self, sample: Sample) -> Slabs:
        """Return the exact mask of one sample as slabs.

        What has no short form as slabs is converted, which costs what it has in slabs; `compile`
        gives such masks in their own form, at any length.

        Raises:
            DatasetError: if the sample lacks a column, its layout does not fill it, or the mask
                falls into more than a million slabs.
            SpecError: for sizes out of range, and for masks too large for every form (E191).
        """
        from dcp_dsl.forms.conversion import as_slabs  # loaded on use, as in `compile`

        return as_slabs(self.compile(sample))

    def compile(self, sample: Sample) -> Form:
        """Return the exact mask of one sample in the form that describes it shortest.

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
        # Loaded on use: some 40 ms that a command which only checks a text need not pay.
        from dcp_dsl.core.recent import bind_again

        self.require(sample)
        columns = {name: sample.columns[name] for name in self.columns}
        return bind_again(self.core, columns, sample.length)


def build_mask(expression: ast.Expr, scope: Scope, program: ast.Program) -> Mask:
    """Check a mask expression over the names of a scope and make it a mask.

    Raises:
        SpecError: if its names, kinds or arguments are wrong.
    """
    core, errors = check_expression(expression, scope, program)
    if errors:
        raise SpecError(errors)
    canonical = _canonical(expression, scope)
    match canonical:
        case ast.Name(text):
            name = text
        case ast.Call(ident):
            name = ident.text
        case _:
            name = unparse(canonical)
    columns = _columns(core, *_ahead_segments(expression, scope))
    return Mask(name, unparse(canonical), columns, expression, scope, program, core)


def read_mask(expression: ast.Expr, scope: Scope) -> Mask:
    """Make a checked expression of a text a mask."""
    text, core = unparse(expression), write_out(expression, scope)
    return Mask(text, text, _columns(core), expression, scope, scope.program, core)


def _columns(*cores: nodes.Node) -> frozenset[str]:
    return frozenset(column for column, _ in column_readers(*cores))


def find_definition(expression: ast.Expr, scope: Scope) -> tuple[ast.MaskDef, Scope] | None:
    """Return the definition that a mask is a name or a call of; None for other expressions."""
    match expression:
        case ast.Name(name) | ast.Call(ast.Ident(name)):
            return scope.find_mask(name)
    return None


def _ahead_segments(expression: ast.Expr, scope: Scope) -> list[nodes.Segment]:
    """Return the segments in which `@ahead(segment)` lets a called mask look ahead.

    The mask itself may not read them; whether a pair looks ahead elsewhere cannot be decided
    without them.
    """
    found = find_definition(expression, scope)
    if found is None:
        return []
    ahead = [d for d in found[0].decorators if d.name.text == "ahead"]
    return [write_out_segment(s.text, found[1]) for d in ahead for s in d.arguments]


def _canonical(expression: ast.Expr, scope: Scope) -> ast.Expr:
    """Name all arguments of a call, in the order of the parameters, without the defaults."""
    if not isinstance(expression, ast.Call):
        return expression
    found = find_definition(expression, scope)
    if found is None:
        return expression
    given = given_arguments(found[0], expression.arguments)
    arguments = [
        ast.Argument(ast.Ident(param.name.text), given[param.name.text])
        for param in found[0].params
        if param.name.text in given and given[param.name.text] != param.default
    ]
    if not arguments:
        return ast.Name(expression.name.text)
    return ast.Call(expression.name, tuple(arguments))
