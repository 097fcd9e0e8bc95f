"""What Hugging Face's trainer may do to a run, and what `DCPTrainerMixin` makes of it.

`FEATURES` is the parametrisation of test_trainer.py: a test for each.
"""

from typing import Literal, NamedTuple


class Feature(NamedTuple):
    """A feature of the trainer.

    Attributes:
        name: as the trainer's arguments, or the mixin's refusal, name it.
        status: supported, refused with a way out, or unaffected by the mixin.
        shown_by: the run that is compared with one dense process; of what is refused, the run that
            takes the way out.
        refusal: pattern of the refusal's words.
        note: what to know beside the status.
    """

    name: str
    status: Literal["supported", "refused", "unaffected"]
    shown_by: str
    refusal: str = ""
    note: str = ""

    @property
    def tested(self) -> str:
        """How it is tested, in words."""
        words = RUNS[self.shown_by]
        return f"its words; way out: {words}" if self.refusal else words


RUNS = {
    "epochs": "three epochs of unequal length; rows, losses, norms, rates, weights",
    "resumed": "resuming at every step of the runs of unequal epochs; whole checkpoints",
    "anew": "the rows of a resumed run",
    "regrouped": "the rows of a resumed run",
    "next": "the log of a run resumed from the end of an epoch",
    "step": "the rows of a run resumed from a checkpoint that was saved inside a step",
    "stopped": "the rows of a run resumed from where max_steps ended an epoch",
    "skip": "two epochs, rows that do not fit their mask; rows, losses, norms, rates, weights",
    "stream": "epochs of a stream; rows, losses, norms, rates, weights",
    "options": "a run with all such options; the trainer's own log, weights, counts",
    "smoothing": "the trainer's own log and weights",
    "loss_func": "a loss with a term of its own; the trainer's own log and weights",
    "router": "Mixtral; the trainer's own log and weights",
    "adapter": "low-rank weights over frozen ones, checkpointed; the trainer's own log and weights",
    "bf16": "the trainer's own log and weights, up to rounding",
    "fsdp": "the trainer's own log and weights",
    "best": "the trainer's own log, steps and weights",
    "replicas": "Mixtral on 2 x 2 ranks; the trainer's own log and weights, the log of the run",
    "all": "2 x 2 ranks; the trainer's own log and weights",
    "compile": "a slow test: the trainer's own log and weights",
    "twice": "rows and losses of one trainer, called again and again",
    "rows": "loss, metrics and logits of rows under another attention",
    "gemma_2": "one step; loss, norm, weights",
    "gemma_3": "one step; loss, norm, weights",
    "gpt_oss": "one step; loss, norm, weights",
    "qwen3": "one step; loss, norm, weights",
}
"""What is compared with one process, by run."""


def supported(name: str, shown_by: str, note: str = "") -> Feature:
    """Return a feature that the mixin supports."""
    return Feature(name, "supported", shown_by, note=note)


def refused(name: str, shown_by: str, refusal: str) -> Feature:
    """Return a feature that the mixin refuses."""
    return Feature(name, "refused", shown_by, refusal)


def unaffected(name: str, shown_by: str = "options", note: str = "") -> Feature:
    """Return a feature that works, or does nothing, as in the trainer."""
    return Feature(name, "unaffected", shown_by, note=note)


FEATURES = (
    # Epochs and steps
    supported("num_train_epochs", "epochs", "epochs of the loader, each to its own end"),
    supported("num_train_epochs with a fraction", "options"),
    supported("max_steps", "stream"),
    supported("streams of rows", "stream", "with max_steps"),
    supported("RowRules(policy='skip')", "skip", "the schedule counts rows that are left out"),
    supported("gradient_accumulation_steps", "epochs", "an epoch ends with a smaller step"),
    supported("resume_from_checkpoint", "resumed", "reads and plans nothing twice"),
    supported("resuming with other gradient_accumulation_steps", "regrouped"),
    supported("save_strategy='epoch'", "next", "the next epoch follows"),
    supported("enable_jit_checkpoint", "step", "the step in which it was saved is done again"),
    supported("save_strategy='epoch' with max_steps", "stopped", "the epoch goes on"),
    supported("ignore_data_skip", "anew", "the epoch begins anew"),
    supported("train called again", "twice", "from epoch 0"),
    refused("checkpoints of others", "anew", "holds no state of the loader for its step 4"),
    refused("damaged checkpoints", "resumed", r"to hold counts, got \[1, -1, 2, 1\]"),
    # Batches
    refused("train_dataset of rows", "epochs", "to be a DCPDataloader .* got list and 'dcp'"),
    refused(
        "a loader for other ranks", "epochs", "for all 2 ranks, got one for 1; make the loader"
    ),
    refused("Packing.micro_batches", "replicas", "of 3 batches ends within a global batch of 2"),
    refused("dataloader_drop_last", "loss_func", r"Packing\(drop_last=True\)"),
    refused("train_sampling_strategy", "epochs", r"got 'group_by_length'.*Packing\(shuffle"),
    refused("data_collator", "options", r"data_collator=<lambda> .*labels_column"),
    refused("auto_find_batch_size", "router", "a smaller token_budget"),
    unaffected("per_device_train_batch_size", note="Packing sets the size of a batch"),
    unaffected("dataloader_num_workers, _prefetch_factor, _persistent_workers, _pin_memory"),
    unaffected("accelerator_config", note="split, even and dispatched batches: the loader deals"),
    unaffected("data_seed, length_column_name, remove_unused_columns, label_names"),
    supported("include_num_input_tokens_seen", "options", "tokens of all ranks"),
    supported("Packing(replicas=...)", "replicas"),
    supported("Packing(group='all')", "all"),
    refused("Packing(group='best')", "all", "choose group='replica' or group='all'"),
    # Losses
    supported("num_items_in_batch", "epochs", "the targets of all ranks in all batches of a step"),
    unaffected("average_tokens_across_devices", note="a step has one mean over all targets"),
    supported("label_smoothing_factor", "smoothing"),
    supported("compute_loss_func", "loss_func", "gets LocalData, returns the rank's share"),
    supported("compute_loss of a class in front", "loss_func"),
    refused("compute_loss of a class behind", "loss_func", "OwnLoss.compute_loss would never run"),
    supported("output_router_logits", "router", "every batch adds its router loss in full"),
    refused("label_smoothing_factor with routers", "smoothing", "MixtralForCausalLM adds 1"),
    refused("terms that a model adds", "loss_func", r"AddedTermForCausalLM adds 0\.0\d+ .*func"),
    refused("model.loss_function", "loss_func", "LlamaForCausalLM with the loss <lambda>"),
    refused("neftune_noise_alpha", "options", "got 5.0: its noise depends on the number of tokens"),
    refused("use_liger_kernel", "options", "got True: it takes the place of the model's attention"),
    # Gradients and weights
    supported("max_grad_norm", "epochs"),
    unaffected("optim, optim_args, weight_decay"),
    unaffected("optimizers, optimizer_cls_and_kwargs", "epochs"),
    supported("lr_scheduler_type, warmup_steps", "options", "over the steps of all epochs"),
    supported("activation_checkpointing", "adapter"),
    supported("adapters, such as PEFT's", "adapter"),
    unaffected("bf16, fp16", "bf16", "fp16 was not run"),
    unaffected("ddp_bucket_cap_mb, ddp_broadcast_buffers, ddp_find_unused_parameters"),
    supported("torch_compile", "compile"),
    supported("fsdp, version 2", "fsdp"),
    refused("FSDP version 1", "fsdp", r'got version 1 of FSDP.*fsdp_config=\{"version": 2\}'),
    refused("deepspeed", "fsdp", "got DeepSpeed, which was not run with DCP"),
    refused("parallelism_config", "replicas", "tensor parallel over 2 ranks"),
    refused("models sharded when they are loaded", "fsdp", "got a model that was sharded.*fsdp=T"),
    refused("DataParallel", "epochs", "one process for 2 GPUs.*torchrun --nproc-per-node 2"),
    # Evaluation
    supported("eval_strategy, eval_steps, eval_on_start", "smoothing"),
    supported("eval_dataset as a dict", "epochs", "a mean over targets, not over batches"),
    supported("evaluate without train", "twice"),
    supported("load_best_model_at_end, metric_for_best_model", "best"),
    refused("eval_dataset of rows", "epochs", "got list and 'dcp'; make a loader of the rows"),
    refused("eval_dataset of rows, evaluated", "rows", r"eval_dataset\['a'\] .*implementation\('s"),
    refused("eval_dataset is train_dataset", "epochs", "make another DCPDataloader of the same"),
    refused(
        "eval_dataset of other ranks", "replicas", "1 ranks share a batch of eval_dataset, 2 a"
    ),
    refused("compute_metrics", "rows", "predictions of whole sequences.*implementation"),
    refused("predict", "rows", "the logits of whole sequences.*set_attn_implementation"),
    unaffected("per_device_eval_batch_size, eval_accumulation_steps, prediction_loss_only"),
    # Logs and callbacks
    supported("logging of loss, grad_norm, epoch", "options", "the same on every rank"),
    supported("train_loss", "options", "the same on every rank"),
    unaffected("logging_nan_inf_filter, logging_first_step"),
    unaffected("callbacks, EarlyStoppingCallback", "best"),
    unaffected("save_strategy, save_steps", "epochs"),
    # The rest
    supported("the executor's options", "replicas", "override create_executor"),
    refused("transformers before 5.8", "epochs", "got SimpleNamespace .*'transformers>=5.8'"),
    refused("losses that accelerate divides", "epochs", "got Trainer .*'transformers>=5.8'"),
    supported("models whose layers have windows: Gemma 2", "gemma_2"),
    supported("models whose layers have windows: Gemma 3", "gemma_3"),
    supported("models with sinks and experts: GPT-OSS", "gpt_oss"),
    supported("other models: Qwen3", "qwen3"),
)
