"""Times of a planned batch in a training step: attention in all layers, and the linear part."""

from collections.abc import Sequence

from dcp_planner.report.comparison import Difference
from dcp_planner.report.figures import BatchFigures, Spread, spread_of
from dcp_planner.step.model import StepModel

STEP = ("attention_s", "linear_s", "step_s")
"""Times of a batch by name; the last is the sum."""


def batch_seconds(
    model: StepModel, masks: Sequence[BatchFigures], layers: Sequence[int] = (1,)
) -> dict[str, float]:
    """Predict one batch: all devices wait for the attention and for the fullest device's tokens.

    Args:
        model: layers, and the linear part of a token.
        masks: figures of the batch's plan under each mask.
        layers: of one cycle of a stack that use each mask; the model's layers repeat the cycle.

    Returns:
        Seconds by the names of `STEP`.
    """
    cycle = sum(n * figures.predicted_s for n, figures in zip(layers, masks, strict=True))
    attention = model.layers * cycle / sum(layers)
    first = masks[0]
    linear = model.linear_seconds(first.token_imbalance * first.tokens / first.devices)
    return dict(zip(STEP, (attention, linear, attention + linear), strict=True))


def batch_spreads(
    model: StepModel, masks: Sequence[Sequence[BatchFigures]], layers: Sequence[int]
) -> dict[str, Spread]:
    """Predict all batches, given their figures under each mask."""
    found = [batch_seconds(model, batch, layers) for batch in zip(*masks, strict=True)]
    return {name: spread_of([times[name] for times in found]) for name in STEP}


def step_differences(
    models: Sequence[StepModel], figures: Sequence[BatchFigures]
) -> tuple[Difference, ...]:
    """Return the times of two batches side by side, each with its device's share of the model."""
    first, second = (batch_seconds(m, [f]) for m, f in zip(models, figures, strict=True))
    return tuple(Difference(name, first[name], second[name]) for name in STEP)
