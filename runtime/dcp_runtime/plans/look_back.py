"""The look-back of a plan: how many tokens back its mask reaches, the query included."""

import numpy as np

from dcp_dsl import Form
from dcp_dsl.forms import RegionPart, Rows, regions_of
from dcp_planner import Plan


def look_back(plan: Plan) -> int:
    """Return the largest ``q - k + 1`` over all visible pairs: the window that holds the mask."""
    of_forms = (_look_back(placed.form) for placed in plan.forms)
    return max(_look_back(plan.slabs), *of_forms, 0)


def _look_back(form: Form) -> int:
    """As `look_back`; of labels and predicates, which keep no ranges, all tokens."""
    if form.form == "tiles":
        return form.num_tokens
    return max((_of_part(part) for part in regions_of(form)), default=0)


def _of_part(part: RegionPart) -> int:
    """Of each slab and remainder the largest distance, if the slab, which has no gaps, has one."""
    region = part.region
    if isinstance(region, Rows):
        row = np.repeat(np.arange(region.num_tokens), np.diff(region.row_ptr))
        far = region.kv_end - 1 - row if part.is_transposed else row - region.kv_start
        return int(far.max(initial=-1)) + 1
    if part.is_transposed:  # the last query of a key moves at most as the key does
        return int((region.kv_end - region.q_start).max(initial=0))
    rows = region.q_end - region.q_start - 1
    first = region.q_start - region.kv_start
    far = np.maximum(first, first + rows * (1 - region.start_slope.astype(np.int64)))[:, None]
    near = (region.q_start - region.kv_end + 1)[:, None]
    distance = far - (far - part.remainders) % part.period
    return int(distance[distance >= near].max(initial=-1)) + 1
