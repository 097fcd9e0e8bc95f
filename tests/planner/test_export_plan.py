"""Plans written for other systems, read as those systems read them.

The readers here follow MagiAttention (2c641357: `functional/dispatch.py`, `DispatchMeta`) and
FlashMask (9985af53: `cp_balance.py`, the kernels of `cp_balance_utils.cu`), token by token, and
share no code with the export.
"""

import numpy as np
import pytest

from dcp_dsl import ExchangeError, Sample, Spec, block_sparsity, dense_mask, import_mask
from dcp_dsl.interchange import read_export, write_export
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, export_plan

SPEC = Spec.from_text("""
segment part = question[question_len] branch answer[answer_lens]*
mask shared = paths
mask near = causal and q - k < 37
@ahead mask all_to = k in question or same(answer)
@ahead mask both = abs(q - k) < 20
mask sinks = streaming(8, 32)
""")
SHARED = {"question_len": 50, "answer_lens": [60, 30, 90, 26]}
ROUND = PlanConfig("native", token_tolerance=0.0)
ZIGZAG = PlanConfig("static:zigzag")


def planned(mask, lengths, config, devices=4, block=32):
    columns = SHARED if mask in ("shared", "all_to") else {}
    samples = [Sample(columns, n) for n in lengths]
    spec = SPEC.mask(mask)
    sparsity = block_sparsity([spec.bind(sample) for sample in samples], block, block)
    dense = np.zeros((sum(lengths), sum(lengths)), bool)
    at = 0
    for sample in samples:
        end = at + sample.length
        dense[at:end, at:end] = dense_mask(spec, sample)
        at = end
    return build_plan(sparsity, ModelShape(2, 1, 8, 8), Cluster(2, devices // 2), config), dense


def dispatched_by_magi(export, x):
    """Cut a tensor to chunks and join those of each rank, as `_select_local_chunks` does."""
    sizes = export.arrays["chunk_actual_sizes"].tolist()
    chunks = np.split(x, np.cumsum(sizes)[:-1])
    perm = export.arrays["partitions_perm_idxs"].tolist()
    found, at = [], 0
    for count in export.arrays["partition_sizes"].tolist():
        found.append(np.concatenate([chunks[index] for index in perm[at : at + count]]))
        at += count
    return found


def undispatched_by_magi(export, parts):
    """Join the parts of all ranks and put the chunks back, as `_gather_and_unpermute` does."""
    sizes = export.arrays["chunk_actual_sizes"]
    permuted = np.concatenate(parts)
    lengths = sizes[export.arrays["partitions_perm_idxs"]]
    chunks = np.split(permuted, np.cumsum(lengths)[:-1])
    return np.concatenate([chunks[i] for i in export.arrays["partitions_unperm_idxs"]])


def seen_through_magi(export, n):
    """Return the mask of the slices, by the alignment that each of their types says."""
    seen = np.zeros((n, n), bool)
    names = ("q_ranges", "k_ranges", "attn_type_map")
    for (q0, q1), (k0, k1), kind in zip(*(export.arrays[name] for name in names), strict=True):
        for q in range(q0, q1):
            start = k0 + (q - q0 if kind in (2, 3) else 0)
            end = k1 - (q1 - 1 - q if kind in (1, 3) else 0)
            seen[q, start:end] = True
    return seen


def of_chunks_by_flashmask(value, chunks, size):
    """Move a border of rows to the chunks of a rank, as `indices_to_chunks_kernel` does."""
    found = 0
    for place, chunk in enumerate(chunks):
        local = min(max(value - chunk * size, 0), size)
        found = max(found, local + place * size if local > 0 else local)
    return found


def seen_by_flashmask(columns, rows):
    """Return what the rows of a rank see of the reordered keys, without a diagonal."""
    at = np.arange(rows)[:, None]
    first, *others = columns.T
    if len(others) == 1:
        return ~((at >= first) | (at < others[0]))
    end, above, below = others
    return ~(((at >= first) & (at < end)) | ((at >= above) & (at < below)))


CASES = [
    ("near", [256], ZIGZAG), ("near", [300], ZIGZAG), ("near", [70, 186, 77], PlanConfig("native")),
    ("shared", [256, 256], PlanConfig("native")), ("all_to", [256], ROUND), ("both", [256], ROUND),
    ("sinks", [512], ROUND), ("sinks", [100, 200], PlanConfig("static:ring")),
    ("near", [96, 160], PlanConfig("native", head_groups=2)),
]  # fmt: skip


@pytest.mark.parametrize(("mask", "lengths", "config"), CASES)
def test_magi_dispatches_the_tokens_and_the_mask_of_the_plan(mask, lengths, config):
    plan, dense = planned(mask, lengths, config)
    export = export_plan(plan, "magi")
    n = plan.num_tokens
    parts = dispatched_by_magi(export, np.arange(n))
    for device, tokens in enumerate(parts):
        assert tokens.tolist() == plan.local_tokens(device).tolist()
    assert undispatched_by_magi(export, parts).tolist() == list(range(n))
    assert export.arrays["split_sizes"].tolist() == [len(tokens) for tokens in parts]
    sizes, values = export.arrays["chunk_actual_sizes"], export.values
    assert set(sizes[:-1].tolist()) <= {values["chunk_size"]}
    assert sizes[-1] <= values["chunk_size"]
    assert (values["num_chunks"], values["cp_size"]) == (len(sizes), plan.num_devices)
    assert np.array_equal(seen_through_magi(export, n), dense)


@pytest.mark.parametrize(
    ("mask", "lengths", "config"),
    [("near", [256], ZIGZAG), ("all_to", [256], ROUND), ("both", [256], ROUND),
     ("shared", [256], ROUND), ("sinks", [512], ROUND), ("near", [128, 384], ROUND)],
)  # fmt: skip
@pytest.mark.parametrize("devices", [2, 4])
def test_flashmask_gets_the_rows_and_keys_of_every_rank(mask, lengths, config, devices):
    plan, dense = planned(mask, lengths, config, devices)
    export = export_plan(plan, "flashmask")
    order, chunk = export.arrays["chunk_order"], export.values["chunk_size"]
    every = np.concatenate([np.arange(c * chunk, (c + 1) * chunk) for c in order.ravel()])
    columns = export.arrays["startend_row_indices"][0, 0]
    local = export.arrays["local_startend_row_indices"]
    for device, chunks in enumerate(order.tolist()):
        tokens = np.concatenate([np.arange(c * chunk, (c + 1) * chunk) for c in chunks])
        assert tokens.tolist() == plan.local_tokens(device).tolist()
        seen = seen_by_flashmask(local[device, 0], len(tokens))
        assert np.array_equal(seen, dense[np.ix_(tokens, every)])
        if not export.values["causal"]:  # then it is what the kernels make of the whole mask
            moved = [[of_chunks_by_flashmask(v, chunks, chunk) for v in columns[k]] for k in every]
            assert local[device, 0].tolist() == moved
    assert import_mask(export).num_pairs == dense.sum()


def test_chunks_are_as_many_as_the_exchange_of_flashmask_takes():
    """It sends chunk c from rank ``c // cp_size``, which holds chunks in order before."""
    plan, _ = planned("near", [256], ZIGZAG)
    export = export_plan(plan, "flashmask")
    assert (export.values["chunk_size"], export.values["num_chunks"]) == (16, 16)
    ranks = [c // 4 for c in range(16)]
    assert ranks == [c * 16 // 64 for c in range(16)]  # 64 tokens a rank


@pytest.mark.parametrize("suffix", ["npz", "json"])
def test_files_of_exported_plans_are_read_as_masks(tmp_path, suffix):
    plan, dense = planned("near", [256], ZIGZAG)
    for name in ("magi", "flashmask"):
        export = export_plan(plan, name)
        (path,) = write_export(tmp_path / f"{name}.{suffix}", export)
        found = read_export(path)
        assert found.values == export.values
        for key, array in export.arrays.items():
            assert np.array_equal(found.arrays[key], array)
        assert import_mask(found).num_pairs == dense.sum()


def test_what_the_formats_cannot_hold_is_refused_with_a_way_out():
    uneven, _ = planned("near", [300], ZIGZAG)
    with pytest.raises(ExchangeError, match=r"equally many tokens on every device, got \d+ to \d+"):
        export_plan(uneven, "flashmask")
    export_plan(uneven, "magi")
    for config in (ZIGZAG, ROUND):
        export_plan(planned("near", [256], config)[0], "flashmask")
    few, _ = planned("near", [64], ZIGZAG)
    with pytest.raises(ExchangeError, match=r"magi: expected tokens on every device, device \d"):
        export_plan(few, "magi")
    export_plan(planned("near", [64], ZIGZAG, devices=2)[0], "magi")
    export_plan(planned("near", [64], ZIGZAG, block=4)[0], "magi")
    with pytest.raises(ExchangeError, match=r"expected the format 'magi' or .*, got 'flex'"):
        export_plan(few, "flex")
    holes = Spec.from_text("mask m = dilated(64, 3)").mask("m").bind(Sample(length=64))
    plan = build_plan(block_sparsity([holes], 8, 8), ModelShape(), Cluster(1, 2), ZIGZAG)
    with pytest.raises(ExchangeError, match="flashmask: key 0 is hidden from"):
        export_plan(plan, "flashmask")
    export_plan(plan, "magi")
