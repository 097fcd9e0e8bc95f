"""Find masks that cross the border of packed documents or branches.

A mask may show one document to another. In a stack, values pass from layer to layer: documents or
branches that one layer keeps apart still reach each other where another layer crosses their border.
"""

from collections.abc import Iterator

from dcp_dsl.checks.masks import write_out_inside
from dcp_dsl.checks.scope import segment_names
from dcp_dsl.claims.confining import advise
from dcp_dsl.claims.lints.claim import search
from dcp_dsl.claims.lints.subject import is_of_one_sequence, of_the_sample, outside, used_masks
from dcp_dsl.claims.testing import Testing, first_wrong_pair
from dcp_dsl.core.mask import Mask, on_keys, read_mask
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import Outcome
from dcp_dsl.syntax.trees import mentioned_names, unparse, walk


def leaking_documents(mask: ast.MaskDef, testing: Testing) -> None:
    """Find masks over packed documents that let one document see another (W208)."""
    if not is_of_one_sequence(mask, testing.scope):
        return
    (core,) = write_out_inside((mask.value,), mask, testing.scope)
    mentioned = {name for name, _ in mentioned_names(mask)}
    for segment, document in _packed(testing):
        inner = {name.text for name in segment_names(segment)}
        # A mask that names no part of the layout may be for other data.
        if not mentioned & inner or _is_asked_for(mask, document):
            continue
        apart = nodes.Not(nodes.Same(nodes.Laid(segment, document)))
        if not never(nodes.And((core, apart)), budget=testing.proofs):
            message = f"a token may see another `{document}`"
            hint = f"confine it: `... per {document}` or `same({document}) and ...`"
            testing.report("W208", message, mask.name.span, hint)


def _packed(testing: Testing) -> Iterator[tuple[ast.Segment, str]]:
    """Yield the layouts of packed documents: one named part that repeats and fills the sample."""
    for segment, layout in testing.scope.layouts():
        if len(layout.parts) == 1 and layout.parts[0].is_repeated:
            part = layout.parts[0]
            if part.parents is not None:  # nodes of a tree go on from others
                continue
            # `segment doc = [lens]*` names the part by the statement.
            if part.name is not None:
                yield segment, part.name.text
            elif isinstance(part, ast.Leaf):
                yield segment, segment.name.text


def _is_asked_for(mask: ast.MaskDef, document: str) -> bool:
    """Return whether a mask speaks of documents by `in`, a dot or a rule, not `same` or `per`."""
    for node in walk(mask):
        match node:
            case ast.In(_, container) if document in {n for n, _ in mentioned_names(container)}:
                return True
            case ast.Attribute(_, name) if name.text == document:
                return True
            case ast.Rule() if document in {n for n, _ in mentioned_names(node)}:
                return True
    return False


def crossed_borders(stack: ast.StackDef, testing: Testing) -> None:
    """Look for layers that cross the documents or branches that another layer keeps apart (W211).

    O(different masks² * borders) proofs; a stack has few different masks.
    """
    values = {unparse(value): value for value in used_masks(stack, testing.scope)}
    values |= _linear(stack)
    masks = {call: on_keys(read_mask(value, testing.scope)) for call, value in values.items()}
    borders = {call: _borders(mask, testing) for call, mask in masks.items() if mask.keys is None}
    if not any(borders.values()):
        return
    what = f"stack {stack.name.text}: no layer sees across borders that another keeps"
    samples, is_proved, has_failed = 0, True, False
    for call in borders:
        for other, border in ((o, b) for o, found in borders.items() if o != call for b in found):
            across = outside(masks[call], border, masks[other].columns)
            if never(across.core, budget=testing.proofs):
                continue
            tried = search(across, first_wrong_pair, testing)
            is_proved, samples = False, samples + tried.samples
            if tried.failure is not None:  # one border is enough to warn of this layer
                has_failed = True
                testing.report(
                    "W211",
                    f"a layer with `{call}` sees across borders that `{other}` keeps: "
                    f"{tried.failure.described()}",
                    values[call].span,
                    _advise_linear(border) if call in _linear(stack)
                    else advise(values[call], masks[call], border, testing),
                )  # fmt: skip
                break
    outcome: Outcome = "failed" if has_failed else "proved" if is_proved else "tested"
    testing.decide(what, outcome, stack.name.span, samples)


def _linear(stack: ast.StackDef) -> dict[str, ast.Expr]:
    """Return what linear layers mix, as masks by the words of the layers."""
    found: dict[str, ast.Expr] = {}
    for layer in stack.layers:
        if layer.value is None and not layer.heads:
            names = ast.Name("k"), ast.Name("q")
            earlier = ast.Compare(names, ("<=",), span=layer.span)
            if (own := layer.documents) is None:
                found["linear"] = earlier
            else:
                found[f"linear per {own.text}"] = ast.Per(earlier, own, span=layer.span)
    return found


def _advise_linear(border: nodes.Mask) -> str:
    """Return how a linear layer keeps a border that a mask keeps."""
    match border:
        case nodes.Same(nodes.Laid(_, name)):
            return (
                f"write `linear per {name}` and give the layer `stack.cu_seqlens(layer, sample)`, "
                "so that its state begins anew in each"
            )
    return (
        "the state of a linear layer cannot fork: give each path a row of its own, or a stack "
        "without linear layers"
    )


def _borders(mask: Mask, testing: Testing) -> list[nodes.Mask]:
    """Return the borders that a mask keeps: relations outside which it shows no pair.

    Candidates are the paths and instances that it mentions; a proof decides about each.
    """
    found: dict[tuple[type, int, str], nodes.Mask] = {}
    for node in of_the_sample(mask.core):
        match node:
            case nodes.Along(layout):
                # `Along` also excludes later keys; these are look-ahead (E120), not other branches.
                border = nodes.Or((nodes.Along(layout), nodes.AHEAD))
                found[nodes.Along, id(layout.statement), ""] = border
            case nodes.Same(nodes.Laid() as laid) | nodes.Per(nodes.Laid() as laid):
                found[nodes.Same, id(laid.statement), laid.name] = nodes.Same(laid)
    return [
        border
        for border in found.values()
        if never(outside(mask, border).core, budget=testing.proofs)
    ]
