"""The look-back of a plan: how many tokens back its mask reaches, the query included."""

import numpy as np

from dcp_dsl import Form, Slabs
from dcp_dsl.arrays import Ints
from dcp_dsl.forms import Columns, Rows, Strided, StridedPart
from dcp_planner import Plan


def look_back(plan: Plan) -> int:
    """Return the largest ``q - k + 1`` over all visible pairs: the window that holds the mask."""
    of_forms = (_look_back(placed.form) for placed in plan.forms)
    return max(_of_slabs(plan.slabs), *of_forms, 0)


def _look_back(form: Form) -> int:
    """As `look_back`; of tiles, which keep no ranges, all tokens."""
    match form:
        case Columns(Slabs() as keys):  # the last query of a key moves at most as the key does
            return int((keys.kv_end - keys.q_start).max(initial=0))
        case Columns(Rows() as keys):
            key = np.repeat(np.arange(keys.num_tokens), np.diff(keys.row_ptr))
            return int((keys.kv_end - key).max(initial=0))
        case Rows():
            row = np.repeat(np.arange(form.num_tokens), np.diff(form.row_ptr))
            return int((row - form.kv_start).max(initial=-1)) + 1
        case Strided(period=period, parts=parts):
            return max((_of_part(part, period) for part in parts), default=0)
    return form.num_tokens


def _of_part(part: StridedPart, period: int) -> int:
    """Of each slab and remainder the largest distance, if the slab, which has no gaps, has one."""
    far = _farthest(part.slabs)[:, None]
    near = (part.slabs.q_start - part.slabs.kv_end + 1)[:, None]
    distance = far - (far - part.remainders) % period
    return int(distance[distance >= near].max(initial=-1)) + 1


def _of_slabs(slabs: Slabs) -> int:
    return int(_farthest(slabs).max(initial=-1)) + 1


def _farthest(slabs: Slabs) -> Ints:
    """Compute the largest ``q - k`` of each slab, int64 ``[N]``."""
    rows = slabs.q_end - slabs.q_start - 1
    first = slabs.q_start.astype(np.int64) - slabs.kv_start
    last = first + rows * (1 - slabs.start_slope.astype(np.int64))
    farthest: Ints = np.maximum(first, last)
    return farthest
