"""No head loses its digits, whatever a key, a sink or a partial result of another head weighs."""

import pytest
import torch
from hard_numbers import CASES, assert_as_exact_as_eager, assert_merged_as_one, make_hard
from test_attention_options import draw, found, make

from dcp_runtime.kernels.kernel import AttentionState


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_sinks_and_keys_of_any_weight_are_as_exact_as_in_eager(lab, kernel, dtype, case):
    plan, mask = make(lab, ranks=3)
    (*qkv, _), dout = draw(70, 4, 2, 8, 8, torch.float64)
    tensors, dout = make_hard(case, qkv, dtype), dout.to(dtype)
    got = found(plan, tensors, dout, kernel)
    assert_as_exact_as_eager(got, tensors, dout, mask)


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_any_weight_keep_their_digits(seed):
    def merge(out, lse, part, part_lse):
        AttentionState(out, lse).merge(0, part, part_lse)

    assert_merged_as_one(merge, seed)
