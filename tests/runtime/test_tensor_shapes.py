"""Shapes that a forward call refuses, with the way out that fits the tensors."""

import re
from types import SimpleNamespace

import pytest
import torch

from dcp_runtime import RunError
from dcp_runtime.execute.prepared_plan import check_tensors

PART = SimpleNamespace(
    device=1, num_local=6,
    heads=SimpleNamespace(groups=1, shape=SimpleNamespace(q_heads=4, kv_heads=2, head_dim=8)),
)  # fmt: skip


@pytest.mark.parametrize("keys", ["one tensor", "a pair"])
def test_a_batch_dimension_in_front_is_dropped(keys):
    q, k = torch.zeros(1, 6, 4, 8), torch.zeros(1, 6, 2, 8)
    kv = (k, k) if keys == "a pair" else torch.zeros(1, 6, 2, 2, 8)
    with pytest.raises(RunError, match="drop the batch dimension: give") as caught:
        check_tensors(PART, q, kv)
    given = {"q": q, "kv": kv, "k": k, "v": k}
    names = re.findall(r"(\w+)\[0\]", str(caught.value))
    first, *others = (given[name][0] for name in names)
    check_tensors(PART, first, tuple(others) if others[1:] else others[0])


def test_other_rows_are_no_batch_dimension():
    for q in (torch.zeros(7, 4, 8), torch.zeros(2, 3, 4, 8)):
        with pytest.raises(RunError, match=r"take the rows plan\.local_tokens"):
            check_tensors(PART, q, torch.zeros(7, 2, 2, 8))
