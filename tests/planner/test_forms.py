"""Plans of masks that are no slabs, and the parts of plans that devices get."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from second_validator import dense_of

from dcp_dsl import Sample, Slabs, Spec, block_sparsity, dense_mask
from dcp_dsl.forms import Parts, PlacedForm, RegionPart, Rows
from dcp_dsl.forms.parts import keys_of
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    PlanFileError,
    build_plan,
    cut_blocks,
    digest,
    measure,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.plan import decode_part, encode_parts
from dcp_planner.tables import Blocks, expand_head_groups

SPEC = Spec.from_text(
    """
token evict
token subtree_end
token kind
token first_key
mask dropped = causal and q < k.evict
mask branches = k <= q < k.subtree_end
mask dilated_window = sliding(60) and (q - k) % 3 == 0
mask own_start = q.first_key <= k <= q
"""
)
RNG = np.random.default_rng(0)


def cases():
    """Return the mask and sample of each sequence, and the form that it has."""
    n = 150
    evict = (np.arange(n) + RNG.integers(1, 40, n)).tolist()
    ends = [8 * (i // 8 + 1) for i in range(160)]
    first = np.maximum(np.arange(n) - RNG.integers(0, 50, n), 0).tolist()
    return [
        ("slabs", SPEC.mask("causal"), Sample({}, 70)),
        ("cols", SPEC.mask("dropped"), Sample({"evict": evict}, n)),
        ("cols", SPEC.mask("branches"), Sample({"subtree_end": ends}, 160)),
        ("strided", SPEC.mask("dilated_window"), Sample({}, 140)),
        ("rows", SPEC.mask("own_start"), Sample({"first_key": first}, n)),
        ("slabs", SPEC.mask("full"), Sample({}, 9)),
    ]


CASES = cases()
FORMS = [mask.compile(sample) for _, mask, sample in CASES]
SHAPE = ModelShape(4, 2, 8, 4)


@pytest.fixture(scope="module")
def dense():
    total = sum(sample.length for *_, sample in CASES)
    whole, at = np.zeros((total, total), bool), 0
    for _, mask, sample in CASES:
        end = at + sample.length
        whole[at:end, at:end] = dense_mask(mask, sample)
        at = end
    return whole


@pytest.fixture(scope="module")
def plan():
    return build_plan(cut_blocks(FORMS, 32), SHAPE, Cluster(2, 2), PlanConfig("native"))


def test_every_form_is_there():
    assert [form.form for form in FORMS] == [name for name, *_ in CASES]
    inner = [type(keys_of(form)) for form in FORMS if form.form == "cols"]
    assert inner == [Rows, Slabs]


def test_tiles_are_the_visible_pairs_of_the_dense_mask(plan, dense):
    bounds = np.append(plan.blocks.start, len(dense))
    counts = np.add.reduceat(np.add.reduceat(dense.astype(int), bounds[:-1], 0), bounds[:-1], 1)
    q, kv = np.nonzero(counts)
    assert np.array_equal(plan.tiles.q_block, q)
    assert np.array_equal(plan.tiles.kv_block, kv)
    assert np.array_equal(plan.tiles.pairs, counts[q, kv])
    assert np.array_equal(plan.mask_tile(0, len(dense), 0, len(dense)), dense)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_plan_file_brings_the_forms_back(groups, dense, tmp_path):
    config = PlanConfig("native", head_groups=groups)
    plan = build_plan(cut_blocks(FORMS, 64), SHAPE, Cluster(1, 2), config)
    write_plan(tmp_path / "a.dcpplan", plan, [simulate(plan)])
    found = read_plan(tmp_path / "a.dcpplan").plan
    assert found.head_groups == groups
    assert digest(found) == digest(plan)
    assert measure(found) == measure(plan)
    assert [f.form.digest for f in found.forms] == [f.form.digest for f in plan.forms]
    assert np.array_equal(found.mask_tile(30, 400, 10, 600), dense[30:400, 10:600])
    assert len(expand_head_groups(found).forms) == groups * len(plan.forms)


def test_a_part_brings_the_forms_that_its_device_computes(plan, dense):
    for device, data in enumerate(encode_parts(plan)):
        part = decode_part(data)
        assert part.digest == digest(plan)
        starts = plan.blocks.start[plan.tiles.q_block[plan.tiles.device == device]]
        needed = [f for f in plan.forms if any(f.q_start <= s < f.q_end for s in starts.tolist())]
        assert [f.q_start for f in part.plan.forms] == [f.q_start for f in needed]
        assert [f.form.digest for f in part.plan.forms] == [f.form.digest for f in needed]
        for tile in np.flatnonzero(plan.tiles.device == device):
            q, kv = plan.tiles.q_block[tile], plan.tiles.kv_block[tile]
            starts, ends = plan.blocks.start, plan.blocks.end
            window = tuple(map(int, (starts[q], ends[q], starts[kv], ends[kv])))
            own = dense[window[0] : window[1], window[2] : window[3]]
            assert np.array_equal(part.plan.mask_tile(*window), own)


def test_slabs_alone_bring_no_table_of_forms(tmp_path):
    plan = build_plan(cut_blocks(FORMS[:1], 32), SHAPE, Cluster(1, 2), PlanConfig("native"))
    write_plan(tmp_path / "a.dcpplan", plan)
    found = read_plan(tmp_path / "a.dcpplan")
    assert found.plan.forms == ()
    assert "forms" not in found.meta["tables"]


def moved(forms, by):
    return (replace(forms[0], q_start=forms[0].q_start + by), *forms[1:])


def doubled_remainder(forms):
    """A stride whose two slabs share pairs."""
    placed = next(f for f in forms if f.form.form == "strided")
    slabs = Slabs(placed.form.num_tokens, [0, 5], [9, 8], [0, 1], [4, 2], [0, 0], [0, 0])
    broken = Parts(placed.form.num_tokens, (RegionPart(slabs, False, 3, [0]),))
    return tuple(replace(f, form=broken) if f is placed else f for f in forms)


def shared_slabs(forms):
    """Slabs in the place of a form, two of which share pairs."""
    tokens = forms[0].form.num_tokens
    slabs = Slabs(tokens, [0, 5], [9, 8], [0, 1], [4, 2], [0, 0], [0, 0])
    return (replace(forms[0], form=slabs), *forms[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: moved(f, 1), "every form is the mask of a sequence that has no other"),
        (lambda f: moved(f, -70), "every form is the mask of a sequence that has no other"),
        (lambda f: (replace(f[0], kv_start=f[0].kv_start + 1), *f[1:]), "that has no other"),
        (lambda f: (*f, f[0]), "every form is the mask of a sequence that has no other"),
        (lambda f: (*f, PlacedForm(FORMS[0], 0, 0)), "that has no other"),
        (lambda f: (*f, PlacedForm(FORMS[0], -4, 0)), "that has no other"),
        (lambda f: f[1:], "tiles cover every visible pair exactly once"),
        (doubled_remainder, "slabs are disjoint: form 2, slab 1 shares a pair"),
        (shared_slabs, "slabs are disjoint: form 0, slab 1 shares a pair"),
    ],
)
def test_broken_forms_are_named(plan, change, message):
    validate(plan)
    with pytest.raises(PlanError, match=message):
        validate(replace(plan, forms=change(plan.forms)))


def test_a_file_whose_forms_are_gone_is_refused(plan, tmp_path):
    import zipfile

    path = tmp_path / "a.dcpplan"
    write_plan(path, plan)
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist() if n != "forms.arrow"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(PlanFileError, match=r"expected forms\.arrow inside, it is missing"):
        read_plan(path)


def test_a_predicate_becomes_ranges_so_that_a_file_can_hold_it(tmp_path):
    mask = Spec.from_text("@partial mask products = causal and q * k % 7 < 3").mask("products")
    form = mask.compile(Sample(length=90))
    assert form.form == "tiles"
    for sparsity in (block_sparsity([form], 32, 32), cut_blocks([form], 32)):
        plan = build_plan(sparsity, SHAPE, Cluster(1, 2), PlanConfig("native"))
        write_plan(tmp_path / "a.dcpplan", plan)
        found = read_plan(tmp_path / "a.dcpplan").plan
        assert np.array_equal(found.mask_tile(0, 90, 0, 90), dense_mask(mask, Sample(length=90)))


@pytest.mark.parametrize("is_form", [True, False])
def test_a_file_that_claims_more_tiles_than_memory_holds_is_refused(is_form, tmp_path):
    size = 1 << 20
    whole = Slabs(size, [0], [size], [0], [size], [0], [0])
    plan = build_plan(block_sparsity([whole], size, size), SHAPE, Cluster(1, 1))
    start = np.arange(size)
    single = Blocks(np.zeros(size, int), start, start + 1, np.zeros(size, int))
    forms = (PlacedForm(Parts.of_keys(whole), 0, 0),) if is_form else ()
    slabs = Slabs(size, *[np.empty(0, np.int64)] * 6) if is_form else whole
    path = tmp_path / "a.dcpplan"
    write_plan(path, replace(plan, blocks=single, slabs=slabs, forms=forms))
    with pytest.raises(PlanFileError, match=r"expected at most 67_108_864 .*, got"):
        read_plan(path)


def test_keys_of_another_sequence_are_refused_even_where_they_are_as_many():
    sample = Sample({"target_lens": [2, 2], "source_lens": [3, 1]}, 4)
    form = Spec.from_text("").mask("cross").compile(sample, may_cross=True)
    with pytest.raises(PlanError, match=r"of one sequence.*got .*4 queries and 4 keys"):
        build_plan(block_sparsity([form], 2, 2), ModelShape(1, 1, 8, 2), Cluster(1, 2))


BAND = Spec.from_text("mask band(w: tokens = 300) = causal and (k < 20 or q - k < w)")


def plan_of(devices: int):
    slabs = [BAND.mask("band").bind(Sample(length=n)) for n in (700, 1, 400, 333)]
    sparsity = block_sparsity(slabs, 64, 64)
    cluster = Cluster(nodes=1, devices_per_node=devices)
    return build_plan(sparsity, ModelShape(2, 1, 8, 4), cluster, PlanConfig("static:zigzag"))


@pytest.mark.parametrize("devices", [1, 3, 40])  # 40: some own nothing
def test_every_device_finds_its_rows_and_programs(devices):
    plan = plan_of(devices)
    parts = encode_parts(plan)
    assert len(parts) == devices
    for device, data in enumerate(parts):
        part = decode_part(data)
        assert (part.device, part.digest) == (device, digest(plan))
        assert (part.num_devices, part.num_tokens) == (devices, plan.num_tokens)
        assert np.array_equal(part.cu_seqlens, plan.cu_seqlens)
        assert np.array_equal(part.local_tokens(device), plan.local_tokens(device))
        for direction in ("forward", "backward"):
            found, wanted = part.plan.programs(direction), plan.programs(direction)
            assert found[device] == wanted[device]
            assert all(not p.instructions for p in found if p.device != device)
        mine = plan.tiles.device == device
        transfers = plan.transfers
        touches = (transfers.source == device) | (transfers.target == device)
        for name, rows in (("tiles", mine), ("transfers", touches)):
            table, whole = getattr(part.plan, name), getattr(plan, name)
            for column in table.__slots__:
                found, wanted = getattr(table, column), getattr(whole, column)
                if wanted is None:
                    assert found is None
                else:
                    assert np.array_equal(found[rows], wanted[rows])
        assert not (part.plan.tiles.device[~mine] == device).any()
        assert not (part.plan.transfers.target[~touches] == device).any()


def test_the_mask_of_a_part_is_that_of_the_plan_in_its_rows():
    plan = plan_of(3)
    for device, data in enumerate(encode_parts(plan)):
        part = decode_part(data).plan
        blocks = np.unique(plan.tiles.q_block[plan.tiles.device == device])
        rows = np.concatenate([np.arange(plan.blocks.start[b], plan.blocks.end[b]) for b in blocks])
        table = plan.slabs.table()
        met = [bool({*rows.tolist()} & {*range(first, last)}) for first, last in table[:, :2]]
        assert part.slabs.table().tolist() == table[met].tolist()
        assert not all(met)
        assert np.array_equal(dense_of(part.slabs)[rows], dense_of(plan.slabs)[rows])


def test_damaged_parts_are_refused():
    data = encode_parts(plan_of(1))[0]
    for bad in (b"", b"PK", data[:100], data[:-40], b"\0" * 50):
        with pytest.raises(PlanFileError, match="expected a part of a plan, got"):
            decode_part(bad)
    for at in range(0, len(data), 29):
        damaged = bytearray(data)
        damaged[at] ^= 255
        with suppress(PlanFileError):  # no other error
            decode_part(bytes(damaged))
