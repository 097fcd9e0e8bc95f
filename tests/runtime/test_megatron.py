"""Megatron-Core under DCP computes what it does alone, and its samples are dealt by our planner."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stack_features import MEGATRON, SLOW, features_of

from dcp_planner import Cluster
from dcp_planner.step import StepMesh, StepSetting, step_model
from dcp_runtime import RunError
from dcp_runtime.adapters.megatron import (
    DCPCoreAttention,
    PlannedCPScheduler,
    PlannedSequences,
    use_plans,
)

SCRIPT = Path(__file__).with_name("megatron_ranks.py")
OWN_CHECKS = [
    "modules_that_may_mix_tokens", "names_of_token_wise_classes", "fields_of_packed_sequences",
    "groups_are_shorter_than_by_the_squares_of_lengths",
]  # fmt: skip
SUPPORTED = features_of(MEGATRON, "supported")
CONFIG = SimpleNamespace(
    attention_dropout=0.0, window_size=None, softmax_type="vanilla", num_attention_heads=8,
    tensor_model_parallel_size=2, context_parallel_size=2, calculate_per_token_loss=True,
    sequence_parallel=False,
)  # fmt: skip


def run_checks(checks, start_ranks, factory):
    if find_spec("megatron") is None:
        pytest.skip("megatron-core has no wheel here")
    outs = start_ranks(2, SCRIPT, factory.mktemp("ranks"), *checks)
    passed, other = (set(out.replace(" passed", "").split()) for out in outs)
    assert passed == other
    return passed


@pytest.fixture(scope="module")
def passed(start_ranks, tmp_path_factory):
    checks = sorted({f.check for f in SUPPORTED} - SLOW) + OWN_CHECKS
    return run_checks(checks, start_ranks, tmp_path_factory)


@pytest.fixture(scope="module")
def passed_slowly(start_ranks, tmp_path_factory):
    checks = sorted({f.check for f in SUPPORTED} & SLOW)
    return run_checks(checks, start_ranks, tmp_path_factory)


def marked(feature):
    marks = [pytest.mark.slow] if feature.check in SLOW else []
    return pytest.param(feature.check, marks=marks, id=feature.name)


@pytest.mark.dist
@pytest.mark.parametrize("check", [marked(feature) for feature in SUPPORTED])
def test_gradients_are_those_of_one_process(check, request):
    fixture = "passed_slowly" if check in SLOW else "passed"
    assert check in request.getfixturevalue(fixture)


@pytest.mark.dist
@pytest.mark.parametrize("check", OWN_CHECKS)
def test_what_we_take_from_megatron(check, passed):
    assert check in passed


REFUSED = {
    "mean_of_means": (
        {"calculate_per_token_loss": False}, "expected calculate_per_token_loss=True",
        {"calculate_per_token_loss": True},
    ),
    "further_tokens": (
        {"mtp_num_layers": 1}, "expected mtp_num_layers=None", {"mtp_num_layers": None}
    ),
    "auxiliary_loss": (
        {"moe_aux_loss_coeff": 0.01}, "expected moe_aux_loss_coeff=0 .* by moe_router_enable_",
        {"moe_aux_loss_coeff": 0.0, "moe_router_enable_expert_bias": True},
    ),
    "auxiliary_losses": (
        {"moe_aux_loss_coeff": [0.0, 0.01]}, "got moe_aux_loss_coeff=.0.0, 0.01.",
        {"moe_aux_loss_coeff": [0.0, 0.0]},
    ),
    "z_loss": (
        {"moe_z_loss_coeff": 1e-3}, "and moe_z_loss_coeff=None, got", {"moe_z_loss_coeff": None}
    ),
    "sinkhorn": (
        {"moe_router_load_balancing_type": "sinkhorn"},
        "expected moe_router_load_balancing_type='none'",
        {"moe_router_load_balancing_type": "none"},
    ),
    "capacity": (
        {"moe_expert_capacity_factor": 1.0}, "expected moe_expert_capacity_factor=None",
        {"moe_expert_capacity_factor": None},
    ),
    "gathered_experts": (
        {"moe_token_dispatcher_type": "allgather", "expert_model_parallel_size": 2},
        "expected moe_token_dispatcher_type='alltoall'", {"moe_token_dispatcher_type": "alltoall"},
    ),
    "bias_of_stand_ins": (
        {"moe_router_enable_expert_bias": True, "sequence_parallel": True},
        "expected one of the two, got moe_router_enable_expert_bias=True, sequence_parallel=True",
        {"sequence_parallel": False, "expert_model_parallel_size": 2},
    ),
    "fixed_lengths": (
        {"pipeline_model_parallel_size": 2, "variable_seq_lengths": False},
        "expected variable_seq_lengths=True", {"variable_seq_lengths": True},
    ),
    "graphs": (
        {"cuda_graph_impl": "local"}, "expected cuda_graph_impl='none'", {"cuda_graph_impl": "none"}
    ),
    "overlap_buffers": (
        {"tp_comm_overlap": True}, "expected tp_comm_overlap=False", {"tp_comm_overlap": False}
    ),
    "low_precision": ({"fp8": "hybrid"}, "expected fp8=None and fp4=None", {"fp8": None}),
    "largest_scores": ({"qk_clip": True}, "expected both False", {"qk_clip": False}),
    "fused_rotation": (
        {"multi_latent_attention": True, "apply_rope_fusion": True},
        "expected apply_rope_fusion=False", {"apply_rope_fusion": False},
    ),
    "overlapped_experts": (
        {"overlap_moe_expert_parallel_comm": True},
        "expected overlap_moe_expert_parallel_comm=False",
        {"overlap_moe_expert_parallel_comm": False},
    ),
}  # fmt: skip
"""Options that are refused: set so, what is said, and the way out."""


def model_of(**options):
    model = torch.nn.Sequential(DCPCoreAttention(CONFIG, 1))
    model.config = SimpleNamespace(**{**vars(CONFIG), **options})
    return model


def refuses_an_option(name):
    given, said, way_out = REFUSED[name]
    with pytest.raises(RunError, match=said):
        use_plans(model_of(**given))
    use_plans(model_of(**{**given, **way_out}))


def attention_dropout():
    config = SimpleNamespace(**{**vars(CONFIG), "attention_dropout": 0.1})
    with pytest.raises(
        RunError, match=r"layer 1: expected attention_dropout 0, got 0\.1; .*hidden_"
    ):
        DCPCoreAttention(config, 1)


def window_size():
    config = SimpleNamespace(**{**vars(CONFIG), "window_size": (5, 0)})
    with pytest.raises(
        RunError, match=r"layer 1: expected window_size None, got .*mask of this layer"
    ):
        DCPCoreAttention(config, 1)


def attention_type():
    with pytest.raises(RunError, match="layer 2: expected attention_type self, got cross; "):
        DCPCoreAttention(CONFIG, 2, attention_type="cross")


class Decoding(torch.nn.Module):
    """Has the arguments of Megatron's models, and a single layer."""

    post_process = True

    def __init__(self, **options):
        super().__init__()
        self.decoder = DCPCoreAttention(CONFIG, 1)
        self.config = SimpleNamespace(**{**vars(CONFIG), **options})

    def forward(self, input_ids, position_ids, attention_mask, labels=None, packed_seq_params=None):
        assert labels is None or labels.shape == input_ids.shape
        self.rows = input_ids.shape[1]
        return (input_ids + position_ids)[..., None]


def sequences(tokens):
    return PlannedSequences(None, torch.arange(tokens), tokens)


def attended(q, kv, mask=None, bias=None, given=None):
    model = Decoding()
    with pytest.raises(RunError, match=r"layer 1: .* call use_plans\(model\) once"):
        model.decoder(q, kv, kv, None)
    use_plans(model, token_wise=(Decoding,))
    return model.decoder(q, kv, kv, mask, attention_bias=bias, packed_seq_params=given)


def attention_mask():
    q, kv = torch.zeros(5, 1, 4, 8), torch.zeros(5, 1, 2, 8)
    for name in ("mask", "bias"):
        with pytest.raises(RunError, match=f"expected attention_{name} None"):
            attended(q, kv, given=sequences(5), **{name: torch.zeros(1)})


def packed_seq_params():
    with pytest.raises(
        RunError, match=r"PlannedSequences\.prepare.* got NoneType; .*Megatron's own"
    ):
        attended(torch.zeros(5, 1, 4, 8), torch.zeros(5, 1, 2, 8))
    model = Decoding()
    use_plans(model, token_wise=(Decoding,))
    with pytest.raises(RunError, match=r"PlannedSequences\.prepare.* got SimpleNamespace; "):
        model(torch.zeros(1, 5), torch.zeros(1, 5), None, packed_seq_params=SimpleNamespace())


def rows_of_a_batch():
    with pytest.raises(
        RunError, match=r"expected query .* got .5, 2, 4, 8.; use micro batches of 1"
    ):
        attended(torch.zeros(5, 2, 4, 8), torch.zeros(5, 2, 2, 8), given=sequences(5))


def whole_batches():
    model, tokens = Decoding(), torch.zeros(1, 9, dtype=torch.int64)
    use_plans(model, token_wise=(Decoding,))
    with pytest.raises(
        RunError, match=r"expected input_ids .1, 5., of this rank's .* got .1, 9.; "
    ):
        model(tokens, tokens, None, packed_seq_params=sequences(5))
    own = tokens[:, :5]
    with pytest.raises(RunError, match=r"expected labels .1, 5., .* got .1, 9."):
        model(own, own, None, labels=tokens, packed_seq_params=sequences(5))


def learned_positions():
    model, own = Decoding(), torch.zeros(1, 5, dtype=torch.int64)
    model.position_embedding_type, model.max_sequence_length = "learned_absolute", 4
    use_plans(model, token_wise=(Decoding,))
    with pytest.raises(RunError, match=r"below max_sequence_length=4, which are learned, got 4; "):
        model(own, own, None, packed_seq_params=sequences(5))
    model.max_sequence_length = 5
    model(own, own, None, packed_seq_params=sequences(5))


CHECKS = {name: partial(refuses_an_option, name) for name in REFUSED} | {
    check.__name__: check
    for check in (
        attention_dropout, window_size, attention_type, attention_mask, packed_seq_params,
        rows_of_a_batch, whole_batches, learned_positions,
    )
}  # fmt: skip


@pytest.mark.parametrize(
    "check", [f.check for f in features_of(MEGATRON, "refused") if f.check not in OWN_CHECKS]
)
def test_refused_features(check):
    CHECKS[check]()


def test_every_feature_has_its_check():
    known = SLOW | set(OWN_CHECKS) | CHECKS.keys()
    refused = {f.check for f in features_of(MEGATRON, "refused")}
    assert refused <= known
    assert CHECKS.keys() <= refused


@pytest.mark.parametrize(("tokens", "shared", "rows"), [(0, False, 1), (0, True, 2), (5, True, 6)])
def test_rows_stand_in_for_missing_tokens(tokens, shared, rows):
    model = Decoding(sequence_parallel=shared)
    use_plans(model, token_wise=(Decoding,))
    use_plans(model, token_wise=(Decoding,))  # changes nothing
    given = torch.arange(tokens)[None]
    out = model(given, given, None, labels=given, packed_seq_params=sequences(tokens))
    assert model.rows == rows
    assert torch.equal(out[..., 0], 2 * given)
    model.post_process = False  # the next stage gets all rows
    assert model(given, given, None, packed_seq_params=sequences(tokens)).shape[1] == rows


def test_a_module_without_a_config_is_no_model():
    with pytest.raises(RunError, match="expected a model of Megatron-Core, got Linear"):
        use_plans(torch.nn.Linear(2, 2))


RANKS, ROOM = 8, 8192


def planned(window=None):
    cluster = Cluster(devices_per_node=RANKS)
    setting = StepSetting(StepMesh(1, RANKS), step_model("llama-8b"), cluster, 0)

    def pairs(lengths):
        seen = np.minimum(lengths, window)
        return seen * (seen + 1) / 2.0 + (lengths - seen) * seen

    return PlannedCPScheduler(ROOM, setting, None if window is None else pairs)


def drawn(seed):
    """Lengths of a global batch as Megatron pads them, a few of them long."""
    lengths = np.exp(np.random.default_rng(seed).normal(7, 1.4, 60)).clip(64, RANKS * ROOM)
    return (lengths.astype(int) // 16 * 16).tolist()


def work_of(groups, length_of, window):
    """FLOPs of an 8B model; a group is as long as its fullest rank. Messages are not counted."""
    total = 0.0
    for group in groups:
        busy = np.zeros(RANKS)
        for sample in {i for ids in group for i in ids}:
            ranks, n = [r for r, ids in enumerate(group) if sample in ids], length_of[sample]
            pairs = sum(min(token, window or n) for token in range(1, n + 1))
            busy[ranks] += (1.8e6 * pairs + 4.8e10 * n) / len(ranks)
        total += busy.max()
    return total


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [None, 512])
def test_every_sample_runs_on_ranks_that_megatron_has_a_group_for(seed, window):
    lengths = drawn(seed)
    samples = [(100 + number, length) for number, length in enumerate(lengths)]
    by_length, by_id = planned(window).get_groups_and_subsamples(samples)
    length_of = dict(samples)
    assert by_length == [[[length_of[i] for i in ids] for ids in group] for group in by_id]
    seen = []
    for group in by_id:
        assert len(group) == RANKS
        tokens = np.zeros(RANKS)
        for sample in {i for ids in group for i in ids}:
            ranks = [rank for rank, ids in enumerate(group) if sample in ids]
            width = len(ranks)
            assert width & (width - 1) == 0
            first = ranks[0] // width * width
            assert ranks == list(range(first, first + width))
            tokens[ranks] += length_of[sample] / width
            seen.append(sample)
        assert tokens.max() <= ROOM
        for one in group:  # ranks that share samples run them in one order
            for other in group:
                common = set(one) & set(other)
                assert [i for i in one if i in common] == [i for i in other if i in common]
    assert sorted(seen) == sorted(length_of)
    assert all(by_id[-1])


def test_a_group_with_an_idle_rank_is_not_the_last(monkeypatch):
    mesh, scheduler = SimpleNamespace(micro_batches=2), planned()
    rows = [(0, 0, RANKS, np.array([0])), (1, 0, RANKS // 2, np.array([1]))]
    assignment = SimpleNamespace(mesh=mesh, groups=lambda: rows)
    monkeypatch.setattr(scheduler, "_plan", lambda _: SimpleNamespace(assignment=assignment))
    _, ids = scheduler.get_groups_and_subsamples([(7, 64), (8, 64)])
    assert ids == [[[8]] * (RANKS // 2) + [[]] * (RANKS // 2), [[7]] * RANKS]


def test_a_number_of_ranks_that_megatron_has_no_groups_for_is_refused():
    setting = StepSetting(StepMesh(1, 6), step_model("llama-8b"), Cluster(devices_per_node=6), 0)
    assert planned().get_groups_and_subsamples([]) == ([], [])
    with pytest.raises(RunError, match="expected a power of two of ranks, got 6"):
        PlannedCPScheduler(ROOM, setting)
