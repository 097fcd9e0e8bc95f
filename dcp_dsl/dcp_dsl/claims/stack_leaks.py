"""Find stacks of which one layer sees across what another layer keeps apart.

Values pass from layer to layer. Documents or branches that one layer separates still reach each
other where a window of another layer crosses their border, so no layer keeps them apart.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from dcp_dsl.claims.report import Outcome
from dcp_dsl.claims.static_checks import used_masks
from dcp_dsl.claims.testing import Step, Testing, first_wrong_pair, search_fault
from dcp_dsl.core.mask import Mask, on_keys, read_mask
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.unparse import unparse


def leak_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that look at every stack of a text; they find W211."""
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.StackDef):
            yield Step("stack", statement, partial(_check_layers, statement, testing))


def _check_layers(stack: ast.StackDef, testing: Testing) -> None:
    values = {unparse(value): value for value in used_masks(stack, testing.scope)}
    masks = {call: on_keys(read_mask(value, testing.scope)) for call, value in values.items()}
    borders = {call: _borders(mask, testing) for call, mask in masks.items() if mask.keys is None}
    if not any(borders.values()):
        return
    what = f"stack {stack.name.text}: no layer sees across what another keeps apart"
    samples, is_proved, has_failed = 0, True, False
    for call in borders:
        for other, border in ((o, b) for o, found in borders.items() if o != call for b in found):
            across = _outside(masks[call], border, masks[other].columns)
            if never(across.core, budget=testing.proofs):
                continue
            tried = search_fault(across, first_wrong_pair, testing, with_open=True)
            is_proved, samples = False, samples + tried.samples
            if tried.failure is not None:
                has_failed = True
                testing.report(
                    "W211",
                    f"a layer with `{call}` sees across what `{other}` keeps apart: "
                    f"{tried.failure.described()}",
                    values[call].span,
                    f"confine the layer as well, as in `{call} and {other}`",
                )
                break
    outcome: Outcome = "failed" if has_failed else "proved" if is_proved else "tested"
    testing.decide(what, outcome, stack.name.span, samples)


def _borders(mask: Mask, testing: Testing) -> list[nodes.Mask]:
    """Return the relations of paths and of instances outside which a mask shows no pair."""
    found: dict[tuple[type, int, str], nodes.Mask] = {}
    for node in _of_the_sample(mask.core):
        match node:
            case nodes.Along(layout):
                # Paths order queries and keys as well; a later key is no matter of branches.
                border = nodes.Or((nodes.Along(layout), nodes.AHEAD))
                found[nodes.Along, id(layout.statement), ""] = border
            case nodes.Same(nodes.Laid() as laid) | nodes.Per(nodes.Laid() as laid):
                found[nodes.Same, id(laid.statement), laid.name] = nodes.Same(laid)
    return [
        border
        for border in found.values()
        if never(_outside(mask, border).core, budget=testing.proofs)
    ]


def _outside(mask: Mask, border: nodes.Mask, columns: frozenset[str] = frozenset()) -> Mask:
    """Return the pairs of a mask that a relation does not hold."""
    core = nodes.And((mask.core, nodes.Not(border)))
    return replace(mask, core=core, columns=mask.columns | columns)


def _of_the_sample(core: nodes.Mask) -> Iterator[nodes.Mask]:
    """Yield the masks of the frame of the sample, not those inside an instance."""
    yield core
    match core:
        case nodes.Not(item):
            yield from _of_the_sample(item)
        case nodes.And(items) | nodes.Or(items):
            for item in items:
                yield from _of_the_sample(item)
