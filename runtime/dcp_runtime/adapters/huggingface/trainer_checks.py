"""What `DCPTrainerMixin` refuses before a run: settings that would change it silently."""

from typing import Any

import torch.distributed as dist

from dcp_runtime.adapters.huggingface.model_check import NAME
from dcp_runtime.adapters.huggingface.trainer_loss import takes_next_token_loss
from dcp_runtime.data.dataloader import DCPDataloader
from dcp_runtime.errors import RunError

PARTS_OF_THE_LOOP = ("set_initial_training_values", "_init_training_state", "_run_epoch")
"""Methods of the trainer that the mixin builds on."""

REPLACED = ("compute_loss", "get_batch_samples", "get_train_dataloader", "prediction_step")
"""Methods in whose place the mixin runs its own, so that those of a class behind it never run."""

REFUSED: dict[str, tuple[Any, str]] = {
    "dataloader_drop_last": (
        False,
        "the loader packs the batches: DCPDataloader(..., Packing(drop_last=True)) leaves out the "
        "last global batch of an epoch",
    ),
    "train_sampling_strategy": (
        "random",
        "the loader orders the rows: leave it out, Packing(shuffle=...) says how",
    ),
    "auto_find_batch_size": (
        False,
        "the loader sets the size of a batch: give Packing a smaller token_budget",
    ),
    "neftune_noise_alpha": (
        None,
        "its noise depends on the number of tokens of a sequence, and a rank holds a part of them; "
        "leave it out",
    ),
    "use_liger_kernel": (
        False,
        "it takes the place of the model's attention and loss, which DCP has its own of; leave it "
        "out",
    ),
}
"""Arguments of training by name: the only value that is allowed, and what to do instead."""


def check_training(trainer: Any, mixin: type) -> None:  # Any: the trainer behind the mixin
    """Refuse what the mixin would silently train otherwise than the trainer."""
    _check_trainer(trainer, mixin)
    loader, chosen = trainer.train_dataset, trainer.model.config._attn_implementation
    if not isinstance(loader, DCPDataloader) or chosen != NAME:
        raise RunError(
            f"DCPTrainerMixin: expected train_dataset to be a DCPDataloader and a model with "
            f"attn_implementation={NAME!r}, got {type(loader).__name__} and {chosen!r}"
        )
    args = trainer.args
    for name, (allowed, way_out) in REFUSED.items():
        got = getattr(args, name, allowed)
        if got != allowed:
            raise RunError(
                f"DCPTrainerMixin: expected {name}={allowed!r}, got {got!r:.80}: {way_out}"
            )
    _check_parallelism(trainer)
    _check_collator(trainer)
    check_loader("train_dataset", loader)
    steps, parts = args.gradient_accumulation_steps, loader.packing.micro_batches
    if steps % parts:
        raise RunError(
            f"DCPTrainerMixin: a step of {steps} batches ends within a global batch of {parts}; "
            "expected gradient_accumulation_steps to be a multiple of Packing.micro_batches"
        )
    if args.eval_strategy != "no" or args.eval_on_start:
        check_evaluation(trainer, trainer.eval_dataset)


def check_evaluation(trainer: Any, given: Any) -> None:  # Any: the trainer, what it evaluates
    """Refuse data that the model's attention cannot evaluate: a data set, or a dict of them."""
    named = {"eval_dataset": given}
    if isinstance(given, dict):
        named = {f"eval_dataset[{name!r}]": data for name, data in given.items()}
    chosen = trainer.model.config._attn_implementation
    for name, data in named.items():
        if isinstance(data, DCPDataloader) != (chosen == NAME):
            raise RunError(
                f"DCPTrainerMixin: expected {name} to be a DCPDataloader and a model with "
                f"attn_implementation={NAME!r}, or rows and another implementation, got "
                f"{type(data).__name__} and {chosen!r}; make a loader of the rows, or choose the "
                "implementation for an evaluation: trainer.model.set_attn_implementation('sdpa')"
            )
        if isinstance(data, DCPDataloader):
            _check_evaluated(trainer, name, data)


def _check_evaluated(trainer: Any, name: str, loader: DCPDataloader) -> None:
    trained = trainer.train_dataset
    if loader is trained:
        raise RunError(
            f"DCPTrainerMixin: {name} is the loader of training, whose epoch would end with the "
            "evaluation; make another DCPDataloader of the same rows"
        )
    check_loader(name, loader)
    if isinstance(trained, DCPDataloader) and num_ranks(loader) != num_ranks(trained):
        raise RunError(
            f"DCPTrainerMixin: {num_ranks(loader)} ranks share a batch of {name}, "
            f"{num_ranks(trained)} a batch of train_dataset; give both loaders the same "
            "Packing.replicas and Packing.group"
        )
    if trainer.compute_metrics is not None:
        raise RunError(
            "DCPTrainerMixin: compute_metrics expects the predictions of whole sequences, and each "
            "rank holds some tokens of them; leave it out for the loss alone, or evaluate rows "
            "with another implementation: trainer.model.set_attn_implementation('sdpa')"
        )


def num_ranks(loader: DCPDataloader) -> int:
    """Return how many ranks share a batch of a loader."""
    of = loader.replicas
    return of.context_ranks * (of.count if loader.packing.group == "all" else 1)


def check_loader(name: str, loader: DCPDataloader) -> None:
    """Refuse a loader that is not for all ranks, or whose batches now some and now all share."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if loader.replicas.cluster.num_devices != ranks:
        raise RunError(
            f"DCPTrainerMixin: expected {name} to be a loader for all {ranks} ranks, got one for "
            f"{loader.replicas.cluster.num_devices}; make the loader after TrainingArguments, "
            "which make the process group, and leave out Planning.cluster and ranks of a replica "
            "in Planning.group, or give all of them"
        )
    if loader.packing.group == "best" and loader.replicas.count > 1:
        raise RunError(
            f"DCPTrainerMixin: {name} has Packing(group='best'), under which batches are shared by "
            "the ranks of a replica or by all, in turn; choose group='replica' or group='all'"
        )


def _check_trainer(trainer: Any, mixin: type) -> None:
    """Refuse a trainer of an old transformers, and classes whose methods the mixin replaces."""
    import transformers

    order = type(trainer).__mro__
    behind = order[order.index(mixin) + 1 :]
    # Up to 5.7 accelerate divides the loss by the steps of accumulation, a second time.
    is_old = not all(hasattr(super(mixin, trainer), name) for name in PARTS_OF_THE_LOOP)
    if is_old or trainer.accelerator.gradient_accumulation_steps != 1:
        raise RunError(
            "DCPTrainerMixin: expected a trainer of transformers 5.8 or newer, got "
            f"{behind[0].__name__} of transformers {transformers.__version__}: "
            "pip install 'transformers>=5.8'"
        )
    for name in REPLACED:
        owner = next(each for each in behind if name in vars(each))
        if owner is not transformers.Trainer:
            raise RunError(
                f"DCPTrainerMixin: {owner.__name__}.{name} would never run, as the mixin in front "
                "of it has its own; override it in the class that has the mixin: class "
                f"{type(trainer).__name__}(DCPTrainerMixin, ...). For a loss of your own give the "
                "trainer compute_loss_func"
            )
    base = base_model(trainer)
    if trainer.compute_loss_func is None and not takes_next_token_loss(base):
        found = getattr(getattr(base, "loss_function", None), "__name__", "none")
        raise RunError(
            f"DCPTrainerMixin: expected a model whose loss is that of the next token, got "
            f"{type(base).__name__} with the loss {found}; give the trainer a compute_loss_func, "
            "which gets LocalData in place of labels and returns the share of its rank"
        )


def _check_parallelism(trainer: Any) -> None:
    """Refuse ways to spread a model that were not run with DCP."""
    others = trainer.get_cp_size() * trainer.get_sp_size() * trainer.get_tp_size()
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.args.n_gpu > 1:
        got = f"one process for {trainer.args.n_gpu} GPUs"
        way_out = f"start a process for each: torchrun --nproc-per-node {trainer.args.n_gpu}"
    elif trainer.is_deepspeed_enabled:
        got, way_out = "DeepSpeed", "leave it out for DistributedDataParallel, or take fsdp=True"
    elif others > 1:
        got = f"another context, sequence or tensor parallel over {others} ranks"
        way_out = (
            "leave parallelism_config out: the loader cuts the sequences, and "
            "Packing(replicas=...) makes several groups of ranks"
        )
    elif getattr(trainer, "is_distributed_loading_by_transformers", False):
        got, way_out = "a model that was sharded when it was loaded", "load it whole, fsdp=True"
    elif plugin is not None and plugin.fsdp_version != 2:
        got, way_out = f"version {plugin.fsdp_version} of FSDP", 'fsdp_config={"version": 2}'
    else:
        return
    raise RunError(
        "DCPTrainerMixin: expected DistributedDataParallel or version 2 of FSDP with a process for "
        f"each GPU, got {got}, which was not run with DCP: {way_out}"
    )


def _check_collator(trainer: Any) -> None:
    from transformers import DataCollatorWithPadding, default_data_collator

    collator = trainer.data_collator
    if collator is not default_data_collator and type(collator) is not DataCollatorWithPadding:
        name = getattr(collator, "__name__", type(collator).__name__)
        raise RunError(
            f"DCPTrainerMixin: data_collator={name} would never be called, as the loader packs the "
            "rows; leave it out. Labels that it would make belong into a column of the rows: "
            "RowRules(labels_column=...) or RowRules(loss_column=...)"
        )


def base_model(trainer: Any) -> Any:  # Any: a model of transformers
    """Return the model inside wrappers of distributed training and of adapters."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model
