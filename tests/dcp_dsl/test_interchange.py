"""Masks in other formats: each read by a slow interpreter of the format's own documentation."""

import importlib.util
import json
import re
import sys
import zipfile
from dataclasses import replace
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import ExchangeError, Sample, Slabs, Spec, dense_mask, export_mask, import_mask
from dcp_dsl.interchange import (
    Export,
    ExportConfig,
    build_mask_mod,
    find_difference,
    read_export,
    varlen_calls,
    write_export,
)
from dcp_dsl.interchange.names import FORMATS, READABLE

few = settings(max_examples=150, deadline=None, derandomize=True)
FLASHMASK_FORMS = st.sampled_from([(True, 1), (True, 2), (False, 2), (False, 4)])


def rows_of(dense):
    """Slabs of one row each, made of nothing but the pairs; `import_mask` glues them."""
    return import_mask(Export("dense", len(dense), {"mask": dense}))


@st.composite
def bands(draw):
    """Dense masks whose rows are made of a few runs: many of them fit into every format."""
    n = draw(st.integers(1, 14))
    dense = np.zeros((n, n), bool)
    q, k = np.ogrid[:n, :n]
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.integers(0, 4))
        a, b, c, d = (draw(st.integers(0, n)) for _ in range(4))
        box = (q >= min(a, b)) & (q < max(a, b)) & (k >= min(c, d)) & (k < max(c, d))
        slant = [k <= q, q - k < 1 + c, k >= q - d, abs(q - k) <= a, k - q < b][kind]
        dense |= box & slant
    return dense & (k <= q) if draw(st.booleans()) else dense


@st.composite
def noise(draw):
    n = draw(st.integers(0, 9))
    bits = draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))
    return np.array(bits, bool).reshape(n, n)


# ---- what the formats mean, pair by pair ---------------------------------------------------------


def read_dcp(export):
    n, ranges = export.num_tokens, export.arrays["attn_mask"]
    assert ranges.dtype == np.int32
    dense = np.zeros((n, n), int)
    for q in range(n):
        for lo, hi in np.reshape(ranges[q], (-1, 2)):
            dense[q, lo:hi] += 1
    return dense


def read_flashmask(export, *, by_triangle=False):
    """Hide rows column by column; `by_triangle` applies each pair on its side of the diagonal."""
    n, indices = export.num_tokens, export.arrays["startend_row_indices"]
    assert indices.dtype == np.int32
    assert indices.shape[:3] == (1, 1, n)
    causal, width = export.values["causal"], indices.shape[3]
    dense = np.ones((n, n), int)
    for k in range(n):
        r = indices[0, 0, k].tolist()
        if causal:
            dense[:k, k] = 0
            dense[r[0] : r[1] if width == 2 else n, k] = 0
            continue
        below = (r[0], n) if width == 2 else (r[0], r[1])
        above = (0, r[1]) if width == 2 else (r[2], r[3])
        for (lo, hi), side in ((below, range(k, n)), (above, range(k))):
            for q in range(lo, hi):
                if not by_triangle or q in side:
                    dense[q, k] = 0
    return dense


def paint_slices(export):
    """Count how many slices hold each pair."""
    dense = np.zeros((export.num_tokens,) * 2, int)
    names = ("q_ranges", "k_ranges", "attn_type_map")
    for (q0, q1), (k0, k1), kind in zip(*(export.arrays[x].tolist() for x in names), strict=True):
        i, j = np.ogrid[: q1 - q0, : k1 - k0]
        causal, inverse = j <= i + (k1 - k0) - (q1 - q0), j >= i
        dense[q0:q1, k0:k1] += [causal | True, causal, inverse, causal & inverse][kind]
    return dense


def read_magi(export):
    for name in ("q_ranges", "k_ranges"):
        start, end = export.arrays[name].T
        assert ((start >= 0) & (start < end) & (end <= export.num_tokens)).all()
    return paint_slices(export)


def read_varlen(export):
    dense = np.zeros((export.num_tokens,) * 2, int)
    for c in range(export.values["calls"]):
        get = {
            key: export.arrays[f"{c}.{key}"].tolist()
            for key in ("q_idx", "kv_idx", "cu_seqlens_q", "cu_seqlens_k")
        }
        assert len(set(get["q_idx"])) == len(get["q_idx"]), "a row twice in one call"
        cuts = list(zip(get["cu_seqlens_q"], get["cu_seqlens_k"], strict=True))
        for (a, c0), (b, c1) in pairwise(cuts):
            rows, keys = get["q_idx"][a:b], get["kv_idx"][c0:c1]
            is_causal, window = (export.values[f"{c}.{name}"] for name in ("causal", "window"))
            for i, q in enumerate(rows):
                diagonal = i + len(keys) - len(rows)
                first = 0 if window == -1 else max(diagonal - window, 0)
                seen = keys[first : diagonal + 1 if is_causal else len(keys)]
                assert seen, "a row that sees nothing in its call"
                for k in seen:
                    dense[q, k] += 1
    return dense


def count_runs(line):
    """Count runs of true."""
    return int((np.diff(np.r_[0, line.astype(int)]) == 1).sum())


READ = {
    "dense": lambda e: e.arrays["mask"].astype(int),
    "dcp": read_dcp,
    "flashmask": read_flashmask,
    "magi": read_magi,
    "varlen": read_varlen,
}


# ---- written -------------------------------------------------------------------------------------


@few
@given(dense=st.one_of(bands(), noise()))
@pytest.mark.parametrize("name", READ)
def test_a_written_mask_means_the_same_or_is_refused(name, dense):
    is_causal = not np.triu(dense, 1).any()
    fits = {
        "dcp": all(count_runs(row) <= 2 for row in dense),
        "flashmask": all(
            count_runs(~col) <= 1
            or (count_runs(~col) == 2 and count_runs(~col[:k]) <= 1 and count_runs(~col[k:]) <= 1)
            for k, col in enumerate(dense.T)
        )
        or (is_causal and all(count_runs(~col[k:]) <= 1 for k, col in enumerate(dense.T))),
    }.get(name, True)
    if fits:
        written = export_mask(rows_of(dense), name)
        assert np.array_equal(READ[name](written), dense)
        if name == "flashmask":  # each pair on its side of the diagonal, as interchange.md says
            assert np.array_equal(read_flashmask(written, by_triangle=True), dense)
    else:
        with pytest.raises(ExchangeError) as raised:
            export_mask(rows_of(dense), name)
        assert raised.value.code == {"flashmask": "X301", "dcp": "X302"}[name]


@pytest.mark.parametrize(("mask", "key"), [("causal or q == 1", 3), ("q == k + 2 or k > q + 3", 0)])
def test_two_runs_on_one_side_of_the_diagonal_are_refused_and_the_way_out_holds_them(mask, key):
    found = Spec.from_text("").mask(mask)
    with pytest.raises(ExchangeError, match=f"key {key} is hidden from two runs") as raised:
        export_mask(found.bind(Sample({}, 4)), "flashmask")
    assert raised.value.code == "X301"
    for name in ("magi", "flex", "flash4"):
        assert name in str(raised.value)
    written = export_mask(found.bind(Sample({}, 4)), "magi")
    assert np.array_equal(read_magi(written), dense_mask(found, Sample({}, 4)))


@pytest.mark.parametrize("call", ["same(d)", "abs(q - k) < 3", "k < q + 3", "causal or k < 2"])
def test_both_ways_of_reading_two_sided_flashmask_agree_where_tokens_see_themselves(call):
    mask, sample = Spec.from_text("segment d = [d_lens]*").mask(call), {"d_lens": [3, 5, 4]}
    sample = Sample({name: sample[name] for name in mask.columns}, 12)
    export = export_mask(mask.bind(sample), "flashmask")
    assert not export.values["causal"]
    assert np.array_equal(read_flashmask(export, by_triangle=True), dense_mask(mask, sample))


@pytest.mark.parametrize(
    ("call", "columns", "values"),
    [
        ("causal", {}, ((8,),) * 8),
        ("sliding(3)", {}, tuple((min(k + 3, 8),) for k in range(8))),
        ("streaming(1, 3)", {}, ((8,), *((min(k + 3, 8),) for k in range(1, 8)))),
        ("same(d)", {"d_lens": [3, 5]}, ((3, 0),) * 3 + ((8, 3),) * 5),
    ],
)
def test_flashmask_of_known_masks_is_the_published_one(call, columns, values):
    spec = Spec.from_text("segment d = [d_lens]*")
    export = export_mask(spec.mask(call).bind(Sample(columns, 8)), "flashmask")
    assert export.arrays["startend_row_indices"][0, 0].tolist() == [list(v) for v in values]
    assert export.values["causal"] == (len(values[0]) == 1)


def test_magi_of_known_masks_is_the_published_one():
    spec = Spec.from_text("segment d = [d_lens]*")
    export = export_mask(spec.mask("causal per d").bind(Sample({"d_lens": [3, 5]}, 8)), "magi")
    assert {k: v.tolist() for k, v in export.arrays.items()} == {
        "q_ranges": [[0, 3], [3, 8]], "k_ranges": [[0, 3], [3, 8]], "attn_type_map": [1, 1],
    }  # fmt: skip


def test_a_window_is_one_segment_of_one_call():
    slabs = Spec.from_text("").mask("sliding(4)").bind(Sample(length=64))
    (call,) = varlen_calls(slabs)
    assert (call.causal, call.window) == (True, 3)
    for tokens in (call.q_idx, call.kv_idx):
        assert tokens.tolist() == list(range(64))
    assert call.cu_seqlens_q.tolist() == call.cu_seqlens_k.tolist() == [0, 64]


@pytest.mark.parametrize("seed", range(40))
def test_triangles_and_windows_that_meet_on_a_diagonal_keep_their_keys(seed):
    """Each band of rows sees a window of its own; diagonals of neighbours often go on."""
    rng = np.random.default_rng(seed)
    dense, row, offset = np.zeros((40, 40), bool), 0, int(rng.integers(-4, 12))
    while row < 40:
        rows, width, first = int(rng.integers(1, 9)), int(rng.integers(1, 12)), rng.integers(0, 40)
        q, k = np.ogrid[row : min(row + rows, 40), :40]
        dense[q, k] = (k <= q + offset) & (k > q + offset - width) & (k >= first * (seed % 2))
        if rng.random() < 0.3:
            offset = int(rng.integers(-4, 12))
        row += rows
    assert np.array_equal(read_varlen(export_mask(rows_of(dense), "varlen")), dense)


def test_documents_that_a_window_does_not_cut_share_its_call():
    spec = Spec.from_text("segment d = [d_lens]*\nmask m = causal per d and q - k < 8")
    calls = varlen_calls(spec.mask("m").bind(Sample({"d_lens": [5, 20, 8]}, 33)))
    assert [(call.causal, call.window) for call in calls] == [(True, 7)]
    assert calls[0].cu_seqlens_k.tolist() == [0, 5, 25, 33]


# ---- refused -------------------------------------------------------------------------------------


def stripes(n, step):
    q, k = np.ogrid[:n, :n]
    return (k <= q) & ((q - k) % step == 0)


@pytest.mark.parametrize(
    ("name", "dense", "code", "where"),
    [
        ("dcp", stripes(12, 2), "X302", "row 4 sees 3 ranges of keys ([0, 1), [2, 3), [4, 5))"),
        ("flashmask", stripes(12, 2), "X301", "key 0 is hidden from 6 runs of rows"),
        ("flashmask", stripes(9, 4), "X301", "key 1 is hidden from 3 runs of rows ([0, 1), "),
    ],
)  # fmt: skip
def test_a_refusal_names_the_first_row_or_key_that_needs_more(name, dense, code, where):
    with pytest.raises(ExchangeError, match=re.escape(where)) as raised:
        export_mask(rows_of(dense), name)
    assert raised.value.code == code
    assert raised.value.exit_code == 1


def test_a_dense_mask_of_a_million_tokens_is_refused():
    slabs = Spec.from_text("").mask("causal").bind(Sample(length=1_000_000))
    with pytest.raises(ExchangeError, match="at most 32_768 tokens") as raised:
        export_mask(slabs, "dense")
    assert raised.value.code == "X304"


def test_a_mask_of_long_ranges_with_nothing_in_common_is_written_from_its_rows():
    # seen from the keys it falls into over a million pieces of slabs
    ends = np.sort(np.random.default_rng(0).integers(0, 2001, (2, 2000)), axis=0)
    mask = Spec.from_text("token lo  token hi").mask("k >= q.lo and k < q.hi")
    form = mask.compile(Sample({"lo": ends[0].tolist(), "hi": ends[1].tolist()}, 2000))
    tables = export_mask(form, "flex").arrays
    assert (tables["hi0"] - tables["lo0"] == ends[1] - ends[0]).all()
    with pytest.raises(ExchangeError, match="X301"):
        export_mask(form, "flashmask")


def test_bits_are_stored_up_to_the_most_tokens(monkeypatch):
    mask = rows_of(np.random.default_rng(0).random((64, 64)) < 0.5)
    monkeypatch.setattr("dcp_dsl.interchange.block_sparse.MAX_TOKENS", 64)
    assert build_mask_mod(mask).form == "bits"
    monkeypatch.setattr("dcp_dsl.interchange.block_sparse.MAX_TOKENS", 63)
    with pytest.raises(ExchangeError, match="for at most 63 tokens, got 64") as raised:
        build_mask_mod(mask)
    assert raised.value.code == "X304"


@pytest.mark.parametrize("tokens", [150_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_many_tokens_go_through_the_formats_that_hold_them(tokens):
    slabs = Spec.from_text("").mask("streaming").bind(Sample(length=tokens))
    for name in ("dcp", "flashmask", "magi"):
        assert find_difference(import_mask(export_mask(slabs, name)), slabs) is None
    assert sum(len(call.q_idx) for call in varlen_calls(slabs)) < 3 * tokens


# ---- read back -----------------------------------------------------------------------------------


@few
@given(dense=st.one_of(bands(), noise()))
@pytest.mark.parametrize("name", READABLE)
def test_what_was_written_is_read_back_in_normal_form(name, dense):
    slabs = rows_of(dense)
    try:
        export = export_mask(slabs, name)
    except ExchangeError:
        return
    assert np.array_equal(import_mask(export).table(), slabs.table())


@st.composite
def slices(draw):
    n = draw(st.integers(1, 10))
    ends = st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted)
    chosen = draw(st.lists(st.tuples(ends, ends, st.integers(0, 3)), max_size=4))
    return Export(
        "magi", n,
        {
            "q_ranges": np.array([s[0] for s in chosen], int).reshape(-1, 2),
            "k_ranges": np.array([s[1] for s in chosen], int).reshape(-1, 2),
            "attn_type_map": np.array([s[2] for s in chosen], int),
        },
    )  # fmt: skip


@settings(few, max_examples=200)
@given(export=slices())
def test_magi_slices_of_any_shape_are_read_and_overlaps_are_found(export):
    times = paint_slices(export)
    if times.max() > 1:
        q, k = np.argwhere(times > 1)[0]
        with pytest.raises(ExchangeError, match=f"query {q} and key {k}:") as raised:
            import_mask(export)
        assert raised.value.code == "X303"
    else:
        assert np.array_equal(import_mask(export).table(), rows_of(times.astype(bool)).table())


@few
@given(data=st.data(), n=st.integers(1, 8), double=st.booleans())
def test_dcp_ranges_may_be_empty_touch_and_overlap(data, n, double):
    shape = (n, 2, 2) if double else (n, 2)
    size = int(np.prod(shape))
    values = data.draw(st.lists(st.integers(0, n), min_size=size, max_size=size))
    export = Export("dcp", n, {"attn_mask": np.array(values, np.int32).reshape(shape)})
    assert np.array_equal(import_mask(export).table(), rows_of(read_dcp(export) > 0).table())


def test_masks_by_head_or_of_a_batch_are_refused_in_words_and_read_one_at_a_time():
    causal = np.arange(1, 6, dtype=np.int32)[None, None, :, None]  # each key seen by its row alone
    for name, shape, dim in (("head", (1, 2, 5, 1), 1), ("batch", (2, 1, 5, 1), 0)):
        indices = np.broadcast_to(causal, shape).copy()
        indices[(slice(None),) * dim + (1,)] = 5  # hidden from no later row
        export = Export("flashmask", 5, {"startend_row_indices": indices}, {"causal": True})
        with pytest.raises(ExchangeError, match=r"got the shape \(.*, 5, 1\): .* or by head, are"):
            import_mask(export)
        one = [slice(None)] * 4
        one[dim] = slice(1, 2)  # as the message says
        alone = replace(export, arrays={"startend_row_indices": indices[tuple(one)]})
        assert import_mask(alone).num_pairs == 15, name
    dense = Export("dense", 3, {"mask": np.ones((2, 3, 3), bool)})
    with pytest.raises(
        ExchangeError, match=r"dense: expected `mask` of one sequence .*\(2, 3, 3\)"
    ):
        import_mask(dense)


@few
@given(data=st.data(), n=st.integers(1, 8), form=FLASHMASK_FORMS)
def test_flashmask_of_any_values_is_read(data, n, form):
    causal, width = form
    values = data.draw(st.lists(st.integers(0, n), min_size=n * width, max_size=n * width))
    indices = np.array(values, np.int32).reshape(1, 1, n, width)
    export = Export("flashmask", n, {"startend_row_indices": indices}, {"causal": causal})
    assert np.array_equal(import_mask(export).table(), rows_of(read_flashmask(export) > 0).table())


INDICES = "startend_row_indices"


def slice_of(q_range, kind):
    return {"q_ranges": [q_range], "k_ranges": [[0, 1]], "attn_type_map": [kind]}


@pytest.mark.parametrize(
    ("export", "message"),
    [
        (("dcp", 2, {"attn_mask": [[0, 3], [0, 1]]}), "within 2 tokens, got [0, 3) in row 0"),
        (("dcp", 2, {"mask": [[0, 3]]}), "expected an array `attn_mask`, got mask"),
        (("dcp", 3, {"attn_mask": [[0, 1], [0, 1]]}), "shape (3, 2), got int64 of shape (2, 2)"),
        (("dense", 2, {"mask": [[0.5, 1], [1, 1]]}), "to be integers"),
        (("dense", 2, {"mask": [[2, 1], [1, 1]]}), "booleans or 0 and 1"),
        (("flashmask", 1, {INDICES: [[1]]}), "a value `causal`, true or false, got None"),
        (("flashmask", 1, {INDICES: [[1, 1, 1]]}, {"causal": False}), "2 or 4 values per key"),
        (("magi", 2, slice_of([0, 3], 0)), "got [0, 3] in `q_ranges` at 0"),
        (("magi", 2, slice_of([0, 1], 7)), "types 0 to 3"),
        (("flex", 2, {}), "can be written but not read"),
        (("png", 2, {}), "expected a format out of dense, dcp"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_mask_are_refused_in_words(export, message):
    with pytest.raises(ExchangeError, match=re.escape(message)) as raised:
        import_mask(Export(*export))
    assert raised.value.exit_code == 2


# ---- block tables --------------------------------------------------------------------------------


def run_flash4(tmp_path, export):
    """Run the written file against stand-ins for the libraries that it imports."""
    write_export(tmp_path / "mask_file.py", export)
    fakes = {name: ModuleType(name) for name in (
        "cutlass", "cutlass.cute", "flash_attn", "flash_attn.cute",
        "flash_attn.cute.block_sparsity", "torch",
    )}  # fmt: skip
    fakes["cutlass"].Boolean = bool
    fakes["cutlass"].cute = fakes["cutlass.cute"]
    fakes["cutlass.cute"].jit = lambda function: function
    fakes["flash_attn.cute"].utils = SimpleNamespace(
        ssa_to_scalar=lambda x: x[0], scalar_to_ssa=lambda x, kind: [kind(x)]
    )
    fakes["flash_attn.cute.block_sparsity"].BlockSparseTensorsTorch = SimpleNamespace
    fakes["torch"].from_numpy = lambda x: SimpleNamespace(to=lambda device: x)
    kept = {name: sys.modules.get(name) for name in fakes}
    sys.modules.update(fakes)
    try:
        path = tmp_path / "mask_file.py"
        spec = importlib.util.spec_from_file_location("mask_file", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, module.attention_arguments("cuda")
    finally:
        for name, module_before in kept.items():
            sys.modules.pop(name)
            if module_before is not None:
                sys.modules[name] = module_before


def interpret_tables(tables, num_tokens, block, pair, *, is_transposed):
    """Walk the lists of one direction as a kernel does: full blocks whole, others by pair."""
    dense = np.zeros((num_tokens, num_tokens), int)
    line_size, item_size = (block[1], block[0]) if is_transposed else block
    kinds = (
        (tables.mask_block_cnt, tables.mask_block_idx, False),
        (tables.full_block_cnt, tables.full_block_idx, True),
    )
    for count, index, is_full in kinds:
        assert count.dtype == index.dtype == np.int32
        assert count.shape[:2] == index.shape[:2] == (1, 1)
        assert index.shape[2:] == (-(-num_tokens // line_size), -(-num_tokens // item_size))
        for line in range(count.shape[2]):
            items = index[0, 0, line, : count[0, 0, line]].tolist()
            assert items == sorted(set(items))
            for item in items:
                for x in range(line * line_size, min((line + 1) * line_size, num_tokens)):
                    for y in range(item * item_size, min((item + 1) * item_size, num_tokens)):
                        q, k = (y, x) if is_transposed else (x, y)
                        dense[q, k] += 1 if is_full else pair(q, k)
    return dense


FLASH4 = {
    "causal": ("causal", {}, "closed"),
    "documents": ("causal per d", {"d_lens": [3, 1, 9, 2, 4, 5, 6, 10]}, "rows"),
    "evicted": ("causal and q < k.evict", {"evict": [(7 * i) % 41 for i in range(40)]}, "keys"),
    "dilated": ("causal and (q - k) % 2 == 0", {}, "bits"),
    "none": ("false", {}, "closed"),
}


@pytest.mark.parametrize("name", FLASH4)
@pytest.mark.parametrize("block", [(8, 8), (16, 4)])
def test_flash4_tables_and_mask_mod_mean_the_mask_in_both_directions(tmp_path, name, block):
    call, columns, form = FLASH4[name]
    if name == "dilated":
        dense = stripes(40, 2)
    else:
        mask = Spec.from_text("segment d = [d_lens]*  token evict").mask(call)
        dense = dense_mask(mask, Sample(columns, 40))
    export = export_mask(rows_of(dense), "flash4", ExportConfig(*block, title='a """ \\ title'))
    assert export.values["form"] == form
    module, arguments = run_flash4(tmp_path, export)
    aux = arguments["aux_tensors"]

    def pair(q, k):
        (seen,) = module.mask_mod([0], [0], [q], [k], None, aux)
        return seen

    for direction in ("", "_bwd"):
        tables = arguments[f"block_sparse_tensors{direction}"]
        assert tables.block_size == block
        found = interpret_tables(tables, 40, block, pair, is_transposed=bool(direction))
        assert np.array_equal(found, dense)


def test_a_short_last_block_is_partial():
    slabs = Spec.from_text("").mask("full").bind(Sample(length=10))
    export = export_mask(slabs, "flex", ExportConfig(4, 4))
    assert export.arrays["full_kv_num_blocks"].ravel().tolist() == [2, 2, 0]
    assert export.arrays["kv_num_blocks"].ravel().tolist() == [1, 1, 3]
    cross = Spec.from_text("segment cache = x[n] @keys(cache) @ahead mask m = k in cache").mask("m")
    for tokens, keys, full in ((12, 6, [1, 1, 1]), (6, 12, [3, 0])):
        form = cross.compile(Sample({"n": keys}, tokens), may_cross=True)
        export = export_mask(form, "flex", ExportConfig(4, 4))
        assert export.arrays["full_kv_num_blocks"].ravel().tolist() == full


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_files_hold_the_whole_export(tmp_path, name, suffix):
    slabs = Spec.from_text("").mask("streaming(2, 5)").bind(Sample(length=40))
    export = export_mask(slabs, name, ExportConfig(16, 16))
    write_export(tmp_path / f"mask{suffix}", export)
    back = read_export(tmp_path / f"mask{suffix}", name)
    assert (back.format, back.num_tokens, back.values, back.source) == (
        export.format, export.num_tokens, export.values, export.source,
    )  # fmt: skip
    assert back.arrays.keys() == export.arrays.keys()
    for key, value in export.arrays.items():
        assert np.array_equal(back.arrays[key], value)


def test_arrays_that_others_saved_are_read(tmp_path):
    slabs = Spec.from_text("").mask("causal").bind(Sample(length=6))
    np.save(tmp_path / "mask.npy", np.tril(np.ones((6, 6), bool)))
    np.savez(tmp_path / "flash.npz", startend_row_indices=np.full((1, 1, 6, 1), 6), causal=True)
    np.savez(tmp_path / "magi.npz", q_ranges=[[0, 6]], k_ranges=[[0, 6]], attn_type_map=[1])
    for file, name in (("mask.npy", "dense"), ("flash.npz", "flashmask"), ("magi.npz", "magi")):
        assert find_difference(import_mask(read_export(tmp_path / file, name)), slabs) is None


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_mask_without_pairs_comes_back(tmp_path, name, suffix, tokens):
    slabs = Slabs(tokens, *np.zeros((6, 0), int))
    write_export(tmp_path / f"mask{suffix}", export_mask(slabs, name))
    back = import_mask(read_export(tmp_path / f"mask{suffix}"))
    assert (back.num_tokens, back.num_pairs) == (tokens, 0)


@pytest.mark.parametrize("name", ["dense", "magi"])
@pytest.mark.parametrize("keys", [2, 6, 9])
def test_keys_of_another_sequence_are_not_read_as_a_square_mask(tmp_path, name, keys):
    mask = Spec.from_text("segment cache = x[n] @keys(cache) mask m = k < 2 or q < 3").mask("m")
    form = mask.compile(Sample({"n": keys}, 6), may_cross=True)
    write_export(tmp_path / "m.npz", export_mask(form, name))
    says = f"{name}: expected a mask of one sequence, got 6 queries and {keys} keys of another"
    with pytest.raises(ExchangeError, match=says):
        import_mask(read_export(tmp_path / "m.npz"))


def test_a_file_with_pickled_objects_is_refused(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(ExchangeError, match=r"bad.npy: cannot be read: .*allow_pickle"):
        read_export(tmp_path / "bad.npy", "dense")


MAGI = b'{"format": "magi", "arrays": {"q_ranges": %s, "k_ranges": []}, "tokens": %s}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", "cannot be read"),
        ("a.json", b"[]", "expected a JSON object with `arrays`"),
        ("a.json", json.dumps({"arrays": {}}).encode(), "does not say its format"),
        ("a.npz", b"no zip", "expected arrays of numpy"),
        ("a.json", b'{"format": "magi", "arrays": {"a": [[1], [1, 2]]}}', "cannot be read"),
        ("a.json", b'{"arrays": ' + b"[" * 200_000, "cannot be read"),
        ("a.json", b'{"format": "magi", "arrays": {}, "values": 5}', "expected `values` by name"),
        ("a.json", b'{"format": ["magi"], "arrays": {}, "tokens": 1}', "expected a format out of"),
        ("a.json", b'{"format": "dcp", "arrays": {"attn_mask": [1, 2]}}', "how many there are, go"),
        ("a.json", MAGI % (b"[]", b"-1"), "from 0 to 2147483647, or arrays that say"),
        ("a.json", MAGI % (b"[[0, 4294967296]]", b""), "got 4294967296"),
        ("a.json", MAGI % (b'["a"]', b""), "got None"),
    ],
)
def test_damaged_files_are_refused_in_words(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content.replace(b', "tokens": }', b"}"))
    with pytest.raises(ExchangeError, match=message):
        read_export(tmp_path / name)


def test_an_archive_of_other_files_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.dcpplan", "w") as archive:
        archive.writestr("plan/meta.json", "{}")
    says = "expected an archive of numpy arrays .*, got one with `plan/meta.json`"
    with pytest.raises(ExchangeError, match=says):
        read_export(tmp_path / "a.dcpplan", "dcp")


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_archives_and_headers_with_any_byte_changed_are_read_or_refused(tmp_path, suffix):
    rng, path = np.random.default_rng(3), tmp_path / f"a{suffix}"
    mask = np.tril(np.ones((6, 6), bool))
    np.save(path, mask) if suffix == ".npy" else np.savez_compressed(path, mask=mask)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    refused = 0
    for _ in range(100):
        changed = data.copy()
        changed[rng.integers(len(data), size=2)] = rng.integers(256, size=2)
        path.write_bytes(changed.tobytes())
        try:
            read_export(path, "dense")
        except ExchangeError:
            refused += 1
    assert 20 < refused < 100
