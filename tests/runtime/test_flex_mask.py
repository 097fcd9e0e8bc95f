"""FlexAttention exports and `mask_mod`s read back, compared with the dense mask."""

import importlib.util

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from dcp_dsl import ExchangeError, Sample, Spec, block_sparsity, dense_mask, export_mask
from dcp_dsl.interchange import ExportConfig, write_export
from dcp_runtime import check_mask_mod, flex_block_mask, flex_mask_mod, import_mask_mod

LAYOUTS = "segment part = question[q_len] answer[a_lens]*  segment d = [d_lens]*  token evict"
N = 96
COLUMNS = {
    "q_len": 30, "a_lens": [20, 20, 26], "d_lens": [10, 1, 33, 2, 3, 5, 9, 30, 3],
    "evict": [(37 * i) % (N + 5) for i in range(N)],
}  # fmt: skip
MASKS = (
    "causal", "full", "streaming(4, 20)", "causal and (k in question or same(answer))",
    "causal per d", "same(d)", "sliding(7)", "q // 16 == k // 16 or k < 3",
    "causal and k % 3 != 1", "false",
)  # fmt: skip


def bind(call, n=N):
    mask = Spec.from_text(LAYOUTS).mask(call)
    sample = Sample({c: COLUMNS[c] for c in mask.columns}, n)
    return mask.bind(sample), torch.from_numpy(dense_mask(mask, sample))


def attend(q, k, v, dense):
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~dense, -torch.inf), -1)
    return torch.nan_to_num(weights) @ v


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("call", MASKS)
def test_torch_computes_attention_under_the_exported_mask(call):
    slabs, dense = bind(call)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, N, 16, generator=generator) for _ in range(3))
    block_mask = flex_block_mask(slabs, ExportConfig(32, 16))
    out = flex_attention(q, k, v, block_mask=block_mask)
    assert torch.allclose(out, attend(q, k, v, dense), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "n"), [*((call, N) for call in MASKS), ("causal", 100), ("streaming(4, 20)", 100)]
)
def test_blocks_are_those_that_torch_finds_by_asking_every_pair(call, n):
    slabs, dense = bind(call, n)
    ours = flex_block_mask(slabs, ExportConfig(32, 32))
    theirs = create_block_mask(
        lambda b, h, q, k: dense[q, k], None, None, n, n, device="cpu", BLOCK_SIZE=32
    )
    assert ours.shape == theirs.shape
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for kind in ("kv", "full_kv", "q", "full_q"):
        index, wanted = (getattr(m, f"{kind}_indices") for m in (ours, theirs))
        count = getattr(ours, f"{kind}_num_blocks")
        for line in range(index.shape[2]):
            used = int(count[0, 0, line])
            assert torch.equal(index[0, 0, line, :used], wanted[0, 0, line, :used])


@pytest.mark.parametrize("call", MASKS)
def test_the_predicate_here_and_of_a_written_file_is_the_mask_on_every_pair(tmp_path, call):
    slabs, dense = bind(call)
    write_export(tmp_path / "exported.py", export_mask(slabs, "flex", ExportConfig(32, 32, call)))
    spec = importlib.util.spec_from_file_location("exported", tmp_path / "exported.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    block_mask = module.make_block_mask()
    for predicate in (flex_mask_mod(slabs), block_mask.mask_mod):
        assert torch.equal(create_mask(predicate, None, None, N, N, "cpu")[0, 0], dense)
    ours = flex_block_mask(slabs, ExportConfig(32, 32))
    assert torch.equal(block_mask.to_dense(), ours.to_dense())


def test_a_packed_batch_has_a_mask_per_sequence():
    parts = [bind("causal", 50), bind("full", 30)]
    packed = block_sparsity([slabs for slabs, _ in parts], 16, 16).slabs
    dense = torch.block_diag(*(d.int() for _, d in parts)).bool()
    found = create_mask(flex_mask_mod(packed), None, None, 80, 80, "cpu")[0, 0]
    assert torch.equal(found, dense)


@pytest.mark.parametrize(("queries", "keys"), [(20, 70), (70, 20)])
@pytest.mark.parametrize(
    ("corner", "body"),
    [("", "k < 9 or q % 2 == 1"), (", bottom_right", "sliding(11)"), ("", "q < 5 and k > 3")],
)
def test_keys_of_another_sequence_have_a_block_mask_of_their_own_shape(queries, keys, corner, body):
    text = f"segment cache = entry[n] @keys(cache{corner}) @ahead @partial mask m = {body}"
    mask, sample = Spec.from_text(text).mask("m"), Sample({"n": keys}, queries)
    block_mask = flex_block_mask(mask.compile(sample, may_cross=True), ExportConfig(16, 8))
    dense = torch.from_numpy(dense_mask(mask, sample))
    found = create_mask(block_mask.mask_mod, None, None, queries, keys, "cpu")[0, 0]
    assert torch.equal(found, dense)
    wanted = create_block_mask(
        lambda b, h, q, k: dense[q, k], None, None, queries, keys, device="cpu", BLOCK_SIZE=(16, 8)
    )
    assert block_mask.shape == wanted.shape
    assert torch.equal(block_mask.to_dense(), wanted.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(block_mask, name), getattr(wanted, name)), name


def test_tables_of_a_million_tokens_are_made_without_asking_pairs():
    slabs = Spec.from_text("").mask("streaming(64, 4k)").bind(Sample(length=2**20))
    block_mask = flex_block_mask(slabs, ExportConfig(1024, 1024))
    assert int(block_mask.kv_num_blocks.sum() + block_mask.full_kv_num_blocks.sum()) < 8 * 1024
    q, k = torch.tensor(5_000), torch.tensor([63, 64, 904, 905, 5_000, 5_001])
    seen = block_mask.mask_mod(torch.tensor(0), torch.tensor(0), q, k)
    assert seen.tolist() == [True, False, False, True, True, False]
    assert np.isclose(block_mask.sparsity(), 100 * (1 - slabs.num_pairs / 2**40), atol=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor's own
@pytest.mark.parametrize("call", ["streaming(4, 20)", "causal per d", "causal and k % 3 != 1"])
def test_the_compiled_kernel_walks_the_exported_blocks(call):
    slabs, dense = bind(call)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, N, 32, generator=generator) for _ in range(3))
    block_mask = flex_block_mask(slabs, ExportConfig(32, 32))
    out = torch.compile(flex_attention)(q, k, v, block_mask=block_mask)
    assert torch.allclose(out, attend(q, k, v, dense), atol=1e-5)


ROW_SPEC = Spec.from_text("segment d = [lens]*  segment odd = flags(is_odd)")
READ_BACK = ("causal", "causal per d", "streaming(2, 5)", "causal and k in odd", "false", "full")


def sample_of(mask, length=70):
    columns = {"lens": [20, 1, 49], "is_odd": [i * i % 3 % 2 for i in range(length)]}
    return Sample({name: columns[name] for name in mask.columns}, length)


@pytest.mark.parametrize("call", READ_BACK)
def test_a_mask_written_as_a_mask_mod_is_read_back(call):
    mask = ROW_SPEC.mask(call)
    sample = sample_of(mask)
    found = import_mask_mod(flex_mask_mod(mask.bind(sample)), sample.length)
    assert np.array_equal(found.tile(0, 70, 0, 70), dense_mask(mask, sample))
    assert check_mask_mod(mask, lambda s: flex_mask_mod(mask.bind(s)), [sample]) is None


def test_chunks_of_rows_make_the_whole_mask(monkeypatch):
    monkeypatch.setattr("dcp_runtime.adapters.flex_mask.ROWS_AT_ONCE", 2)
    found = import_mask_mod(lambda b, h, q, k: (q >= k) & (k != 1), 8)
    assert np.array_equal(found.tile(0, 8, 0, 8), np.tril(np.ones((8, 8))) * (np.arange(8) != 1))


def test_batch_and_head_choose_the_mask():
    found = import_mask_mod(lambda b, h, q, k: (q >= k) & (k >= b + h), 4, batch=1, head=2)
    assert found.num_pairs == 1


def test_documents_that_are_off_by_one_are_found_on_the_shortest_sample():
    def packed(sample):
        ends = torch.tensor(np.cumsum(sample.columns["lens"]))

        def mask_mod(b, h, q, k):
            return (q >= k) & (torch.bucketize(q, ends) == torch.bucketize(k, ends))

        return mask_mod  # right=True is missing: a document begins one token late

    samples = [Sample({"lens": lens}, sum(lens)) for lens in ([5, 3], [9], [2, 2], [1])]
    found = check_mask_mod(ROW_SPEC.mask("causal per d"), packed, samples)
    assert found.sample.columns["lens"] == [2, 2]
    assert (found.query, found.key, found.is_seen, found.pairs) == (2, 0, True, 3)


BIAS = torch.tensor([0, 0, 3])
BY_HEAD = {
    "a table": (lambda b, h, q, k: (q >= k) & (k >= BIAS[h]), (0, 2), {"heads": 3}),
    "a condition": (lambda b, h, q, k: (q >= k) | ((b == 1) & (k == 3)), (1, 0), {"batches": 2}),
    "both": (
        lambda b, h, q, k: torch.stack([q >= k, b + h < 3]).all(0), (1, 2),
        {"batches": 2, "heads": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HEAD)
def test_a_mask_mod_of_one_head_or_row_is_told_whichever_that_is(name):
    """A mask is one for all heads; a predicate that reads the head may have several."""
    mask_mod, (batch, head), counts = BY_HEAD[name]
    missing = "batches" if "batches" in counts else "heads"
    with pytest.raises(ExchangeError, match=f"reads the index of the .* give {missing}=, how many"):
        check_mask_mod(ROW_SPEC.mask("causal"), lambda s: mask_mod)
    found = check_mask_mod(ROW_SPEC.mask("causal"), lambda s: mask_mod, **counts)
    assert (found.batch, found.head, found.is_seen) == (batch, head, name == "a condition")
    # Those that do not differ are equal.
    fewer = dict.fromkeys(counts, 1) | ({"heads": 2} if name == "a table" else {})
    assert check_mask_mod(ROW_SPEC.mask("causal"), lambda s: mask_mod, **fewer) is None


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ExchangeError, match=r"needs the columns \['lens'\].* got none"):
        check_mask_mod(ROW_SPEC.mask("same(d)"), lambda s: None)
    with pytest.raises(ExchangeError, match="at most 32_768 tokens"):
        import_mask_mod(lambda b, h, q, k: q >= k, 2**15 + 1)
