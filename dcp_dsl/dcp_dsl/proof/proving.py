"""Prove statements about masks for every sample at once.

Two tokens can lie in finitely many ways in the layouts that a mask reads (`worlds`). In each,
the mask is evaluated to true, false or a formula over what is not known (`evaluation`), and
the statement holds if no case of the unknowns contradicts it. What is not proved this way may still
be true: the caller searches for a sample that shows the contrary.

A parameter without a value stands for every mask, or every number of at least 1.
"""

from collections.abc import Callable, Iterable, Sequence

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.evaluation import Evaluation
from dcp_dsl.proof.formula import Formula, Undecided, all_of, has_case, negate
from dcp_dsl.proof.numbers import Facts
from dcp_dsl.proof.worlds import MAX_WORLDS, Relation, count_worlds, worlds
from dcp_dsl.syntax import ast

MAX_STEPS = 60_000  # nodes evaluated for one statement; about a tenth of a second
MAX_TEXT_STEPS = 6 * MAX_STEPS  # for all statements of a text together

_ALL: tuple[Relation, ...] = ("behind", "before", "same")  # where pairs are likely comes first


def never(
    mask: nodes.Mask, relations: Iterable[Relation] = _ALL, budget: Budget | None = None
) -> bool:
    """Return whether a mask has no pair in these relations, in any sample, as far as can be proved.

    Args:
        mask: a core program; parameters that are left in it stand for every value.
        relations: how query and key lie to each other.
        budget: shared with other proofs; at most `MAX_STEPS` of it are spent.
    """

    def holds(formulas: list[Formula], facts: Facts) -> bool:
        return formulas[0] is False or not has_case(formulas[0], facts.bounds)

    return _hold_everywhere([mask], relations, budget, holds)


def is_total(mask: nodes.Mask, budget: Budget | None = None) -> bool:
    """Return whether every token sees itself, in every sample; then no row is empty."""
    return never(nodes.Not(mask), ("same",), budget)


def find_redundant(items: Sequence[nodes.Mask], budget: Budget, *, is_and: bool) -> int | None:
    """Return an item that the others of a conjunction imply, or of a disjunction already allow."""
    candidates = set(range(len(items)))

    def are_left(formulas: list[Formula], facts: Facts) -> bool:
        signed = formulas if is_and else [negate(formula) for formula in formulas]
        for index in sorted(candidates):
            others = [f for i, f in enumerate(signed) if i != index]
            if has_case(all_of([*others, negate(signed[index])]), facts.bounds):
                candidates.discard(index)
        return bool(candidates)

    return min(candidates) if _hold_everywhere(items, _ALL, budget, are_left) else None


def _hold_everywhere(
    masks: Sequence[nodes.Mask],
    relations: Iterable[Relation],
    budget: Budget | None,
    holds: Callable[[list[Formula], Facts], bool],
) -> bool:
    """Return whether something holds for the formulas of masks in every world."""
    laid = [node.statement for node in nodes.walk(*masks) if isinstance(node, nodes.Laid)]
    layouts = [statement for statement in laid if isinstance(statement.source, ast.Layout)]
    if count_worlds(layouts) > MAX_WORLDS:
        return False
    shared = budget or Budget(MAX_STEPS)
    own = Budget(min(MAX_STEPS, max(0, shared.left)))
    before = own.left
    try:
        for relation in relations:
            for world in worlds(layouts, relation):
                facts = Facts(relation)
                evaluation = Evaluation(world, facts, own)
                if not holds([evaluation.mask(mask) for mask in masks], facts):
                    return False
    except (Undecided, OverBudget):
        return False
    finally:
        shared.left -= before - max(0, own.left)
    return True
