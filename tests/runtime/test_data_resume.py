"""Epochs, shuffles, streams, policies and resuming: no row is lost, repeated or dropped unseen."""

import json
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_options import OPTIONS, Stream, make_loader, rows_of

from dcp_dsl import Slabs, Spec, read_dataset
from dcp_runtime import RunError
from dcp_runtime.data.make_plans import plan_request, truncate_slabs

SPEC = Spec.from_text(
    "segment s = part[parts]*\n"
    "mask band(w: tokens = 20) = causal and q - k < w\n"
    "mask own = same(part)\n"
    "mask ahead_too = q - k < 3 and k - q < 5\n"
)
RANKS = 3


def loader_of(dataset, **options):
    mask = options.pop("mask", SPEC.mask("band"))
    return make_loader(dataset, mask, **{**OPTIONS, "token_budget": 40, **options})


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=15)


NUMBERED = st.fixed_dictionaries({
    "order": st.sampled_from(["in_order", "decreasing"]),
    "shuffle": st.booleans(),
    "seed": st.integers(0, 3),
})  # fmt: skip


@settings(max_examples=16, deadline=None)
@given(
    lengths=LENGTHS,
    order=NUMBERED | st.none(),  # a stream has none
    stop=st.integers(0, 20),
    rank=st.integers(0, RANKS - 1),
    look_ahead=st.integers(0, 3),
)
def test_resuming_anywhere_gives_the_batches_of_an_undisturbed_run(
    lengths, order, stop, rank, look_ahead
):
    options, rows = {"rank": rank, "ahead": look_ahead, **(order or {})}, rows_of(lengths)

    def make():
        return loader_of(rows if order else Stream(rows), **options)

    def batch(data):
        return data.rows, tuple(data.tokens.tolist())

    undisturbed = loader_of(rows, **options)
    epochs = [[batch(data) for data, _ in undisturbed] for _ in range(2)]
    for epoch in epochs:
        assert Counter(row for rows, _ in epoch for row in rows) == Counter(range(len(lengths)))
    places = [(epoch, n) for epoch, batches in enumerate(epochs) for n in range(len(batches))]
    epoch, last = places[stop % len(places)]
    first = make()
    for wanted in epochs[:epoch]:
        assert [batch(data) for data, _ in first] == wanted
    for number, _ in enumerate(first):
        if number == last:  # it was yielded, so it counts as done
            break
    again = make()
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [batch(data) for data, _ in again] == epochs[epoch][last + 1 :]


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_iteration_begins_an_epoch_also_behind_one_that_was_left(shuffle):
    rows = rows_of([10, 30, 25, 5, 17, 40, 9, 22, 31, 8, 12, 3])
    undisturbed = loader_of(rows, shuffle=shuffle, seed=4)
    epochs = [[data.rows for data, _ in undisturbed] for _ in range(3)]
    loader = loader_of(rows, shuffle=shuffle, seed=4)
    for number, _ in enumerate(loader):
        assert len(loader) == len(epochs[0])
        if number == 1:
            break
    assert len(loader) == len(epochs[1])
    assert [data.rows for data, _ in loader] == epochs[1]
    iter(loader)  # gives no batch: no epoch is left by it
    assert [data.rows for data, _ in loader] == epochs[2]


def test_plans_of_an_iteration_that_was_left_are_cancelled():
    class Pool:
        """Plans the first batch and keeps the others waiting."""

        def __init__(self):
            self.futures = []

        def submit(self, request):
            self.futures.append(Future())
            if len(self.futures) == 1:
                self.futures[0].set_result((plan_request(request), 0.0))
            return self.futures[-1]

    loader = loader_of(rows_of([30, 31, 32, 33]))
    loader._plans.pool = pool = Pool()
    next(iter(loader))
    assert [future.cancelled() for future in pool.futures] == [False] * 3
    iter(loader)
    assert [future.cancelled() for future in pool.futures] == [False, True, True]


def test_an_epoch_may_be_chosen_and_a_loaded_state_of_it_stays():
    rows = rows_of([10] * 30)
    undisturbed = loader_of(rows, shuffle=True)
    epochs = [[data.rows for data, _ in undisturbed] for _ in range(3)]
    loader = loader_of(rows, shuffle=True)
    for epoch in (2, 0, 0, 1):
        loader.set_epoch(epoch)
        assert [data.rows for data, _ in loader] == epochs[epoch]
    loader.set_epoch(1)
    batches = iter(loader)
    assert [next(batches)[0].rows for _ in range(2)] == epochs[1][:2]
    state = loader.state_dict()
    loader.set_epoch(2)  # of the next iteration
    assert next(batches)[0].rows == epochs[1][2]
    assert [data.rows for data, _ in loader] == epochs[2]
    for asked, expected in ((1, epochs[1][2:]), (2, epochs[2])):
        resumed = loader_of(rows, shuffle=True)
        resumed.load_state_dict(state)
        resumed.set_epoch(asked)
        assert len(resumed) == len(epochs[asked])  # of the whole epoch
        assert resumed.state_dict()["epoch"] == asked
        iter(resumed)  # gives no batch: the rest of the epoch is still to come
        assert [data.rows for data, _ in resumed] == expected
    with pytest.raises(RunError, match="epoch: expected at least 0, got -1"):
        loader.set_epoch(-1)


@given(data=st.data())
def test_truncated_slabs_are_the_corner_of_the_mask(data):
    n = data.draw(st.integers(1, 12))
    slabs, row = [], 0
    while row < n:
        end = data.draw(st.integers(row + 1, n))
        a, b = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
        first = data.draw(st.integers(0, n - 1))
        last = data.draw(st.integers(first + 1, n))
        rows = end - row
        shrinks = a > b and first + rows - 1 >= last
        if last + b * (rows - 1) <= n and first + a * (rows - 1) < n and not shrinks:
            slabs.append((row, end, first, last, a, b))
        row = end
    table = np.asarray(slabs, np.int64).reshape(-1, 6).T
    whole = Slabs(n, *table[:4], *table[4:].astype(np.uint8))
    keep = data.draw(st.integers(0, n))
    assert np.array_equal(dense_of(truncate_slabs(whole, keep)), dense_of(whole)[:keep, :keep])


def test_a_band_ahead_is_cut_where_it_passes_the_border():
    band = Slabs(12, [0], [6], [3], [5], [1], [1])  # row r sees 3 + r and 4 + r
    assert truncate_slabs(band, 5).table().tolist() == [[0, 1, 3, 5, 1, 1], [1, 2, 4, 5, 1, 0]]
    wide = Slabs(12, [0], [6], [2], [6], [1], [1])
    assert truncate_slabs(wide, 4).table().tolist() == [[0, 2, 2, 4, 1, 0]]


def dense_of(slabs):
    dense = np.zeros((slabs.num_tokens, slabs.num_tokens), bool)
    for q0, q1, k0, k1, a, b in slabs.table():
        for q in range(q0, q1):
            assert k0 + a * (q - q0) <= k1 + b * (q - q0) <= slabs.num_tokens
            assert not dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)].any()
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] = True
    return dense


def test_a_state_of_another_data_set_or_packing_is_refused():
    state = loader_of(rows_of([10, 20])).state_dict()
    for other in (
        loader_of(rows_of([10])),  # it shrank
        loader_of(rows_of([10, 20]), token_budget=30),
        loader_of(rows_of([10, 20]), shuffle=True),
    ):
        with pytest.raises(RunError, match="saved with other rows, token_budget, order"):
            other.load_state_dict(state)
    for bad in ({}, None, {**state, "schema": "x"}):
        with pytest.raises(RunError, match=r"expected a state of schema 'dcp.dataloader/2'"):
            loader_of(rows_of([10, 20])).load_state_dict(bad)
    with pytest.raises(RunError, match="expected epoch, step, row and micro_batch of the state"):
        loader_of(rows_of([10, 20])).load_state_dict({**state, "step": -1})


def with_tokens(first, count=40):
    return [{"tokens": [first + n] * 8} for n in range(count)]


class Augmented(list):
    """Rows whose tokens are drawn anew each time they are read."""

    def __getitem__(self, index):
        return {"tokens": np.random.default_rng().integers(0, 1000, 8).tolist()}


def test_a_state_of_other_tokens_or_another_mask_is_refused(tmp_path):
    """Lengths, packing and numbers of rows are the same everywhere."""
    state = loader_of(with_tokens(0)).state_dict()
    last = [*with_tokens(0)[:-1], {"tokens": [7] * 8}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, with_tokens(100))))
    for rows in (with_tokens(100), last, read_dataset(file)):
        with pytest.raises(
            RunError, match=r"saved with other tokens: expected the hash .* got .*;"
        ):
            loader_of(rows).load_state_dict(state)
    for mask in (SPEC.mask("band(w = 9)"), SPEC.mask("band or own"), lambda _: SPEC.mask("own")):
        with pytest.raises(RunError, match=r"saved with other masks: .* the same spec or mask, or"):
            loader_of(with_tokens(0), mask=mask).load_state_dict(state)
    stream = loader_of(Stream(with_tokens(0))).state_dict()
    with pytest.raises(RunError, match="saved with other masks"):
        loader_of(Stream(with_tokens(0)), mask=SPEC.mask("ahead_too")).load_state_dict(stream)


def test_what_says_nothing_about_the_data_set_is_no_reason_to_refuse_a_state():
    state = loader_of(with_tokens(0)).state_dict()
    spaced = Spec.from_text(f"# a comment\n{SPEC.source.replace(' and ', '   and ')}")
    loader_of(with_tokens(0), mask=spaced.mask("band")).load_state_dict(state)
    old = {key: value for key, value in state.items() if key not in ("tokens", "masks")}
    loader_of(with_tokens(100)).load_state_dict(old)  # of a version that kept no hashes
    drawn = Augmented(with_tokens(0))
    assert loader_of(drawn).state_dict()["tokens"] == ""
    loader_of(drawn).load_state_dict(loader_of(drawn).state_dict())
    by_heads = SPEC.from_text(f"{SPEC.source}stack x = 2 of linear, heads {{0..1: band rest: own}}")
    assert loader_of(with_tokens(0), mask=by_heads.stack("x")).state_dict()["masks"]
