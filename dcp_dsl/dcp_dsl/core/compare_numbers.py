"""From comparing two numbers to the pairs for which it holds."""

import numpy as np

from dcp_dsl.core.environment import Frame
from dcp_dsl.symbolic.classes import Classes, MaskValue
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import Cyclic, Extreme, Number, Quotient, Term, add, as_term, scale

_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}


def compare_numbers(a: Number, b: Number, op: str, frame: Frame) -> MaskValue:
    """Give the pairs of the frame where ``a op b``.

    Raises:
        NotSeparable: if the difference has no form that can be solved.
        TooManyPieces: if the answer is too wide.
    """
    if isinstance(b, Quotient):
        a, b, op = b, a, _MIRRORED[op]
    if isinstance(a, Quotient) and isinstance(b, int):
        return _compare_quotient(a, b, op, frame)
    difference = add(a, scale(b, -1), frame.num_tokens)
    if isinstance(difference, Cyclic):
        if frame.is_transposed:  # remainders are those of q - k, rows would be keys
            raise TooManyPieces
        return Classes.of_truth(difference.compare(op), frame.everything())
    if isinstance(difference, Extreme):
        return _compare_extreme(difference, op, frame)
    assert not isinstance(difference, Quotient), "a sum with a quotient is none"
    return frame.compare(as_term(difference, frame.num_tokens), op)


def _compare_quotient(value: Quotient, limit: int, op: str, frame: Frame) -> Region:
    distance = frame.distance().scale(value.factor)
    parts = [frame.compare(distance.shift(-bound), sign) for sign, bound in value.bound(op, limit)]
    if len(parts) == 1:
        return parts[0]
    return parts[0] & parts[1] if op == "==" else parts[0] | parts[1]


def _compare_extreme(value: Extreme, op: str, frame: Frame) -> Region:
    """``max(a, b) <= 0`` is `and`, ``max(a, b) >= 0`` is `or`; min the other way round."""
    if op == "==":
        return _compare_extreme(value, "<=", frame) & _compare_extreme(value, ">=", frame)
    if op == "!=":
        return _compare_extreme(value, "<", frame) | _compare_extreme(value, ">", frame)
    regions = [frame.compare(term, op) for term in value.terms]
    is_and = value.is_max == (op in ("<", "<="))
    result = regions[0]
    for region in regions[1:]:
        result = result & region if is_and else result | region
    if is_and:  # each term is defined where all of them compare true
        return result
    # An undefined term makes the extreme undefined, so `or` must not let one term decide alone.
    for term in value.terms:
        if not (term.on_q.is_defined.all() and term.on_k.is_defined.all()):
            result = result & _defined(term, frame)
    return result


def _defined(term: Term, frame: Frame) -> Region:
    """Give the pairs on which a term is defined."""
    both = []
    for function, make in ((term.on_q, Term.of_q), (term.on_k, Term.of_k)):
        flat = np.zeros_like(function.values)
        both.append(frame.compare(make(function.with_values(flat, flat)), "=="))
    return both[0] & both[1]
