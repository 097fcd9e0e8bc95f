"""Prove statements about masks for every sample at once.

Two tokens can lie in finitely many ways in the layouts that a mask reads (`proof_worlds`). In each,
the mask is evaluated to true, false or a formula over what is not known (`proof_evaluation`), and
the statement holds if no case of the unknowns contradicts it. What is not proved this way may still
be true: the caller searches for a sample that shows the contrary.

A parameter without a value stands for every mask, or every number of at least 1.
"""

from collections.abc import Iterable

from dcp_dsl import ast
from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.columns import needed_segments
from dcp_dsl.mask import Mask
from dcp_dsl.proof_evaluation import Evaluation, Names
from dcp_dsl.proof_formula import Undecided, has_case
from dcp_dsl.proof_numbers import Facts
from dcp_dsl.proof_worlds import MAX_WORLDS, Relation, count_worlds, worlds
from dcp_dsl.scope import Scope

MAX_STEPS = 60_000  # nodes evaluated for one statement; about a tenth of a second
MAX_TEXT_STEPS = 6 * MAX_STEPS  # for all statements of a text together

_ALL: tuple[Relation, ...] = ("same", "behind", "before")


def prove_causal(expression: ast.Expr, scope: Scope, leaks: Mask | None = None) -> bool:
    """Whether no token sees a later one, in any sample.

    Args:
        expression: a mask.
        scope: where its names are looked up.
        leaks: if looking ahead is allowed somewhere, the mask of the pairs where it is not.
    """
    if leaks is not None:
        expression, scope = leaks.expression, leaks.scope
    return never(expression, scope, ("before",))


def prove_total(expression: ast.Expr, scope: Scope) -> bool:
    """Whether every token sees itself, in every sample; then no row is empty."""
    return never(ast.Not(expression), scope, ("same",))


def prove_implies(left: ast.Expr, right: ast.Expr, scope: Scope) -> bool:
    """Whether every pair of the left mask is one of the right mask, in every sample."""
    return never(ast.Minus(left, right), scope, _ALL)


def never(
    expression: ast.Expr,
    scope: Scope,
    relations: Iterable[Relation] = _ALL,
    budget: Budget | None = None,
    inside: ast.MaskDef | None = None,
) -> bool:
    """Whether a mask has no pair in these relations, in any sample, as far as can be proved.

    Args:
        expression: the mask.
        scope: where its names are looked up.
        relations: how query and key lie to each other.
        budget: shared with other proofs; at most `MAX_STEPS` of it are spent.
        inside: the definition that the expression is a part of; its parameters stand for every
            value.
    """
    segments = needed_segments(expression if inside is None else (expression, inside), scope)
    layouts = [s for s in segments if isinstance(s.source, ast.Layout)]
    if count_worlds(layouts) > MAX_WORLDS:
        return False
    shared = budget or Budget(MAX_STEPS)
    own = Budget(min(MAX_STEPS, max(0, shared.left)))
    before = own.left
    try:
        return not any(
            _has_pair(expression, scope, inside, layouts, relation, own) for relation in relations
        )
    except (Undecided, OverBudget):
        return False
    finally:
        shared.left -= before - max(0, own.left)


def _has_pair(
    expression: ast.Expr,
    scope: Scope,
    inside: ast.MaskDef | None,
    layouts: list[ast.Segment],
    relation: Relation,
    budget: Budget,
) -> bool:
    """Whether a mask may have a pair in a relation."""
    for world in worlds(layouts, relation):
        facts = Facts(relation)
        evaluation = Evaluation(world, facts, budget)
        names = Names(scope) if inside is None else evaluation.parameters(inside, scope)
        formula = evaluation.mask(expression, names)
        if formula is not False and has_case(formula, facts.bounds):
            return True
    return False
