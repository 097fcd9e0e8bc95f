"""Prove statements about masks for every sample at once.

Two tokens can lie in finitely many ways in the layouts that a mask reads (`worlds`). In each,
the mask is evaluated to true, false or a formula over what is not known (`evaluation`), and
the statement holds if no case of the unknowns contradicts it. What is not proved this way may still
be true: the caller searches for a sample that shows the contrary.

A parameter without a value stands for every mask, or every number of at least 1.
"""

from collections.abc import Callable, Iterable

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.checks.columns import needed_segments
from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.mask import Mask
from dcp_dsl.proof.evaluation import Evaluation, Names
from dcp_dsl.proof.formula import Formula, Undecided, all_of, has_case, negate
from dcp_dsl.proof.numbers import Facts
from dcp_dsl.proof.worlds import MAX_WORLDS, Relation, count_worlds, worlds
from dcp_dsl.syntax import ast

MAX_STEPS = 60_000  # nodes evaluated for one statement; about a tenth of a second
MAX_TEXT_STEPS = 6 * MAX_STEPS  # for all statements of a text together

_ALL: tuple[Relation, ...] = ("behind", "before", "same")  # where pairs are likely comes first


def prove_causal(expression: ast.Expr, scope: Scope, leaks: Mask | None = None) -> bool:
    """Return whether no token sees a later one, in any sample.

    Args:
        expression: a mask.
        scope: where its names are looked up.
        leaks: if looking ahead is allowed somewhere, the mask of the pairs where it is not.
    """
    if leaks is not None:
        expression, scope = leaks.expression, leaks.scope
    return never(expression, scope, ("before",))


def prove_total(expression: ast.Expr, scope: Scope) -> bool:
    """Return whether every token sees itself, in every sample; then no row is empty."""
    return never(ast.Not(expression), scope, ("same",))


def never(
    expression: ast.Expr,
    scope: Scope,
    relations: Iterable[Relation] = _ALL,
    budget: Budget | None = None,
    inside: ast.MaskDef | None = None,
) -> bool:
    """Return whether a mask has no pair in these relations, in any sample, as far as can be proved.

    Args:
        expression: the mask.
        scope: where its names are looked up.
        relations: how query and key lie to each other.
        budget: shared with other proofs; at most `MAX_STEPS` of it are spent.
        inside: the definition that the expression is a part of; its parameters stand for every
            value.
    """

    def holds(formulas: list[Formula], facts: Facts) -> bool:
        return formulas[0] is False or not has_case(formulas[0], facts.bounds)

    return _hold_everywhere([expression], scope, relations, budget, inside, holds)


def find_redundant(
    node: ast.And | ast.Or, scope: Scope, inside: ast.MaskDef, budget: Budget
) -> int | None:
    """Return an item that the others of a conjunction imply, or of a disjunction already allow."""
    is_and = isinstance(node, ast.And)
    candidates = set(range(len(node.items)))

    def are_left(formulas: list[Formula], facts: Facts) -> bool:
        signed = formulas if is_and else [negate(formula) for formula in formulas]
        for index in sorted(candidates):
            others = [f for i, f in enumerate(signed) if i != index]
            if has_case(all_of([*others, negate(signed[index])]), facts.bounds):
                candidates.discard(index)
        return bool(candidates)

    is_any = _hold_everywhere(list(node.items), scope, _ALL, budget, inside, are_left)
    return min(candidates) if is_any else None


def _hold_everywhere(
    expressions: list[ast.Expr],
    scope: Scope,
    relations: Iterable[Relation],
    budget: Budget | None,
    inside: ast.MaskDef | None,
    holds: Callable[[list[Formula], Facts], bool],
) -> bool:
    """Return whether something holds for the formulas of expressions in every world."""
    segments = needed_segments((*expressions, inside), scope)
    layouts = [s for s in segments if isinstance(s.source, ast.Layout)]
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
                names = Names(scope) if inside is None else evaluation.parameters(inside, scope)
                if not holds([evaluation.mask(e, names) for e in expressions], facts):
                    return False
    except (Undecided, OverBudget):
        return False
    finally:
        shared.left -= before - max(0, own.left)
    return True
