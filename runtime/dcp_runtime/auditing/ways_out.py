"""What to write where gradients are wrong: the remedy that fits what the script has already."""

from collections.abc import Callable, Sequence

from dcp_runtime.auditing.record import Run, SeenBatch

WAYS_OUT = {
    "doubled": "something adds these gradients up once more: add up once a step{sums}",
    "missing": "no rank gives it a gradient that one process gives it: where is it left out?",
    "stale": "gradients of an earlier step are in it: optimizer.zero_grad() after {step}",
    "scaled": "all of it is off by one factor: by what are losses divided, what is added up?",
    "wrong": "no factor makes it right: look at the faults above, then at attention and labels",
    "statistics of each rank": "each rank takes means over its own rows, in {norm}: LayerNorm or "
    "GroupNorm needs no other rows; torch.nn.SyncBatchNorm takes all ranks' rows, on GPUs only",
    "of another shape": "give both runs the same parallelism, with --alone",
}


def way_out(kind: str, names: Sequence[str], ranks: Run, *, are_others_right: bool) -> str:
    """Return what to write, and where, if gradients of some parameters are wrong in this way."""
    step, log = ranks.steps[0][0].info, ranks.logs[0]
    line = step.get("line", "?")
    if kind == "averaged":
        return _undo_mean(ranks, line)
    is_off = step.get("replica") == "no_sync"
    if kind.startswith("partial") or (kind in ("wrong", "missing") and is_off):
        return _add_up(kind, names, ranks, are_others_right=are_others_right)
    if kind == "missing" and "zeroed" in step:
        return f"{step['zeroed']} clears gradients before {line} takes the step: clear them after"
    sums = ", ".join(f"{where} ({n} times)" for where, (n, _) in log["sums"].items())
    return WAYS_OUT[kind].format(
        step=line, sums=f"; all_reduce is called in {sums}" if sums else "", norm=log["batch_norm"]
    )


def _is_divided(ranks: Run, by: Callable[[SeenBatch, int], float]) -> bool:
    """Return whether each loss of the first step is divided by that many targets."""
    batches = [each for _, _, each in ranks.micro_batches(0) if each.count]
    whole = sum(each.count for each in batches)
    known = [(each.divisor, by(each, whole)) for each in batches]
    return all(got is not None and abs(got - n) <= 2e-3 * n for got, n in known)


def _undo_mean(ranks: Run, line: str) -> str:
    if _is_divided(ranks, lambda _, whole: ranks.ranks * whole):
        return f"leave out the division of losses by the {ranks.ranks} ranks: gradients are added"
    sums = [where for where, (_, size) in ranks.logs[0]["sums"].items() if size == ranks.ranks]
    start = "losses of ranks are shares of one mean, so their gradients are added, not averaged: "
    if ranks.shards(0):
        return (
            f"{start}dcp_runtime.sum_gradients(model) once, behind the last fully_shard, has FSDP "
            f"add them up; or multiply the loss by the {ranks.ranks} ranks"
        )
    before = f"dcp_runtime.sum_gradients(model) between loss.backward() and {line}"
    if "replica" in ranks.steps[0][0].info:
        return f"{start}{before}; or multiply the loss by the {ranks.ranks} ranks"
    divides = f"leave out the division by ranks behind {sums[0]}; or " if sums else ""
    return f"{start}{divides}{before}, in place of the mean"


def _add_up(kind: str, names: Sequence[str], ranks: Run, *, are_others_right: bool) -> str:
    """Write why nobody adds up, as far as that was seen, or else how to."""
    info, log = ranks.steps[0][0].info, ranks.logs[0]
    start, replica = "every rank steps with its own part", info.get("replica")
    before = f"between loss.backward() and {info.get('line', '?')}"
    then = f"; it takes the mean, so dcp_runtime.sum_gradients(model) {before}, too"
    then = then if kind == "partial" else ""
    if replica == "no_sync":
        return (
            f"{start}: the last micro-batch runs without sync. Let it, forward and backward, run "
            f"outside no_sync() of DDP, behind set_requires_gradient_sync(True) of FSDP{then}"
        )
    if replica == "passed by":
        return (
            f"{start}: DistributedDataParallel adds up only what runs through it, and the script "
            f"calls the module inside: model(...) in place of model.module(...){then}"
        )
    if replica and set(names) <= set(log["ignored"]):
        return (
            f"{start}: DistributedDataParallel was told to leave them out "
            "(_set_params_and_buffers_to_ignore_for_model): take them off that list"
        )
    covered = log.get("replica_ranks") or ranks.ranks
    if replica and covered < ranks.ranks:
        return (
            f"a part of the ranks is averaged: DistributedDataParallel covers {covered} of "
            f"{ranks.ranks} ranks: leave out process_group=, or give it a group of all of them"
        )
    small = {where: size for where, (_, size) in log["sums"].items() if size < ranks.ranks}
    if small:
        where, size = next(iter(small.items()))
        return (
            f"a part of the ranks is added up: all_reduce in {where} is of a group of {size} of "
            f"{ranks.ranks} ranks: leave out group=, or give it a group of all of them"
        )
    if log["sums"] and are_others_right:
        return f"{start}: {next(iter(log['sums']))} adds up others; let it add up these, too"
    if kind == "partial":
        return f"{start}: dcp_runtime.sum_gradients(model) {before}"
    return (
        f"{start}. Its loss is a mean over its own targets, equally many: average gradients, "
        f"DistributedDataParallel(model), or all_reduce p.grad and p.grad /= ranks for every p "
        f"{before}"
    )


def second_sum(ranks: Run, ratio: float) -> tuple[str, str, str]:
    """Return kind, sentence and remedy where losses and the sum of gradients do not fit."""
    if _is_divided(ranks, lambda batch, _: batch.count):
        return (
            "divided by local targets", "every rank divides its loss by its own targets, equally "
            f"many here, and gradients are added up: {ratio:.3f} times the right ones",
            "divide the sum of the losses by the targets of all ranks, "
            "next_token_loss(logits, local_data); or average gradients in place of adding them",
        )  # fmt: skip
    return (
        "multiplied by ranks", f"losses are {ranks.ranks} times the ranks' shares of the mean, as "
        f"if gradients were averaged, but they are added up: {ratio:.3f} times the right ones",
        f"leave out the factor {ranks.ranks} of the loss; or average gradients in place of adding "
        "them",
    )  # fmt: skip
