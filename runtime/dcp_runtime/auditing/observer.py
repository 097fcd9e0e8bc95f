"""`Observer`: sees what a training script does, and writes it down, without a line in the script.

It stands between the script and torch: losses, targets and token ids where they are computed, what
each backward adds to the gradient of a parameter, gradients before they are clipped and where the
optimizer takes its step, parameters after it, and the rows that loaders give. The arrays of a step
go into one file, without pickle.
"""

import gc
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader as torch_loader

from dcp_dsl.files import replacing
from dcp_runtime.auditing.contents import (
    Ids,
    borders_of,
    check_sum,
    ids_before,
    integers_of,
    own_part,
    row_sums,
    whole_ids,
)  # fmt: skip
from dcp_runtime.errors import RunError

MOST_ELEMENTS = 1 << 26
"""Most elements of a model's parameters: several copies are kept, on every rank."""
DATA_STEPS = 64  # steps whose data alone is recorded, behind those whose gradients are
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_LIBRARIES = (
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    str(Path(__file__).parents[1]), "<",
)  # fmt: skip
_COARSE = (torch.bfloat16, torch.float16)


class OpenStep:
    """The step under way, as far as it was seen: facts fit for JSON, arrays, and whether taken."""

    def __init__(self, number: int) -> None:
        self.number, self.is_taken = number, False
        self.info: dict[str, Any] = {"backwards": [], "shards": {}}
        self.arrays: dict[str, Any] = {}  # Any: numpy's arrays
        self.local: dict[str, Tensor] = {}


class Observer:
    """Writes down what this process trains; one to a process.

    The gradients of some steps are recorded, of later ones only the data; then `when_full` is
    called. If the run is only for the audit, dropout is switched off, and parameters are set back
    after every step, so that every step begins from the same ones.
    """

    def __init__(
        self, folder: Path, steps: int, when_full: Callable[[], None], *, is_audit: bool
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._steps, self._is_audit = folder, steps, is_audit
        self._when_full, self._step = when_full, OpenStep(0)
        self._names: dict[int, str] = {}  # of parameters, by their identity
        self._parameters: dict[str, Tensor] = {}
        self._roots: dict[int, int] = {}  # number of a model by its identity
        self._first: dict[str, Tensor] = {}  # parameters before the first step
        self._losses: list[dict[str, Any]] = []  # since the last backward
        self._ids: list[Ids] = []  # that went into the embedding of tokens since then
        self._borders: list[int] = []
        self._data: Any = None  # the newest batch of a `DCPDataloader`, whose targets are listed
        self._table: tuple[int, ...] = ()  # the shape of the embedding of tokens
        self._backwards = 0  # under way: one may run another
        self._replicas: list[DistributedDataParallel] = []
        self._is_reduced: bool | None = None  # whether DDP adds up the next backward, if it ran
        self._is_sharding_off = False  # whether FSDP does not
        self._undo: list[Callable[[], Any]] = []
        self._log: dict[str, Any] = {
            "ties": {}, "loaders": [], "seen": [], "sums": {}, "ignored": [], "batch_norm": "",
        }  # fmt: skip

    def watch(self) -> None:
        """Begin: replace the functions of torch that are watched."""
        functions, clipping = torch.nn.functional, torch.nn.utils
        self._wrap(functions, "cross_entropy", self._see_loss)
        self._wrap(functions, "nll_loss", self._see_loss)
        self._wrap(functions, "embedding", self._see_embedding)
        self._wrap(functions, "batch_norm", self._see_batch_norm)
        self._wrap(DistributedDataParallel, "forward", self._see_replica)
        self._wrap(Tensor, "backward", self._see_backward)
        self._wrap(torch.autograd, "backward", self._see_backward)
        self._wrap(clipping.clip_grad, "clip_grad_norm_", self._see_clip)
        self._wrap(clipping, "clip_grad_norm_", self._see_clip)
        self._wrap(clipping, "clip_grads_with_norm_", self._see_clip)
        for owner in (clipping, clipping.clip_grad):
            self._wrap(owner, "clip_grad_value_", self._see_clip_of_values)
        self._wrap(dist, "all_reduce", self._see_sum)
        self._wrap(Optimizer, "add_param_group", self._see_group)
        self._wrap(Optimizer, "zero_grad", self._see_zero)
        self._wrap(torch.nn.Module, "zero_grad", self._see_zero)
        self._wrap(torch_loader._BaseDataLoaderIter, "__next__", self._see_batch)
        self._wrap(torch_loader._BaseDataLoaderIter, "_next_index", self._see_rows)
        with suppress(ImportError):  # a part of torch that has no public name
            from torch.distributed.fsdp import FSDPModule
            from torch.distributed.fsdp._fully_shard import _fsdp_param_group

            self._wrap(_fsdp_param_group, "foreach_reduce", self._see_shards)
            self._wrap(FSDPModule, "set_requires_gradient_sync", self._see_sync)
        from dcp_runtime.data.dataloader import DCPDataloader

        self._wrap(DCPDataloader, "_epoch", self._see_epoch)
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d") if self._is_audit else ():
            self._wrap(functions, name, lambda _, x, *__, **___: x)
        if self._is_audit:
            self._wrap(functions, "scaled_dot_product_attention", _without_dropout)
        self._undo.append(register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.append(register_optimizer_step_post_hook(self._after_step).remove)
        for found in gc.get_objects():
            if issubclass(type(found), Optimizer):
                self._name_parameters(found)

    def close(self, *, has_ended: bool) -> None:
        """End: put torch's functions back, and write what is left."""
        while self._undo:
            self._undo.pop()()
        self._finish_step()
        self._write_log(has_ended=has_ended)

    def _wrap(self, owner: Any, name: str, see: Callable[..., Any]) -> None:  # Any: of torch
        original = getattr(owner, name)

        @wraps(original)
        def call(*given: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*given, **named)
            return see(original, *given, **named)

        setattr(owner, name, call)
        self._undo.append(lambda: setattr(owner, name, original))

    # Data: token ids, targets, rows.

    def _see_loss(self, original: Any, *given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        target = integers_of(named.get("target", given[1] if len(given) > 1 else None))
        if self._backwards or not torch.is_grad_enabled() or not target:
            return result
        kind = named.get("reduction", given[6] if len(given) > 6 else "mean")
        ids = whole_ids(target[0]).flatten()
        ids[ids == named.get("ignore_index", given[4] if len(given) > 4 else -100)] = -100
        count, value = int((ids != -100).sum()), float(_plain(result.detach()).double().sum())
        tokens = ids_before(self._ids[::-1], ids.size)
        if self._data is not None and np.array_equal(ids, whole_ids(self._data.target_ids)):
            tokens, ids = whole_ids(self._data.tokens), whole_ids(self._data.labels)
        self._losses.append({
            "targets": ids, "tokens": tokens, "count": count,
            "sum": (value * count if kind == "mean" else value) if count else 0.0,
        })  # fmt: skip
        return result

    def _see_embedding(
        self, original: Any, input: Any, weight: Any, *given: Any, **named: Any
    ) -> Any:
        # Models look tokens up first; a table of positions, or of token types, comes after it.
        self._table = self._table or tuple(weight.shape)
        if not self._backwards and tuple(weight.shape) == self._table:
            self._log["seen"].append(check_sum(whole_ids(input)))
            self._ids += [whole_ids(input)] if torch.is_grad_enabled() else []
        return original(input, weight, *given, **named)

    def _see_batch_norm(self, original: Any, *given: Any, **named: Any) -> Any:
        if named.get("training", given[5] if len(given) > 5 else False):
            self._log["batch_norm"] = self._log["batch_norm"] or _line()
        return original(*given, **named)

    def _see_replica(self, original: Any, model: Any, *given: Any, **named: Any) -> Any:
        self._is_reduced = model.require_backward_grad_sync
        return original(model, *given, **named)

    def _see_sync(self, original: Any, model: Any, is_on: bool, **named: Any) -> None:
        self._is_sharding_off = not is_on
        original(model, is_on, **named)

    def _see_rows(self, original: Any, iterator: Any) -> Any:
        found = original(iterator)
        rows = [found] if isinstance(found, int) else found
        if isinstance(rows, list) and all(isinstance(row, int) for row in rows):
            loader = self._loader_of(iterator)
            loader["rows"] += rows
            loader["most"] = max(loader["most"], len(rows))
        return found

    def _see_zero(self, original: Any, owner: Any, *given: Any, **named: Any) -> None:
        if self._step.info["backwards"] and not self._step.is_taken:
            self._step.info["zeroed"] = _line()
        original(owner, *given, **named)

    def _see_batch(self, original: Any, iterator: Any) -> Any:
        loader = self._loader_of(iterator)
        try:
            batch = original(iterator)
        except StopIteration:
            loader["exhausted"] = True
            raise
        loader["given"].append([check_sum(whole_ids(each)) for each in integers_of(batch)])
        return batch

    def _loader_of(self, iterator: Any) -> dict[str, Any]:
        if not hasattr(iterator, "_dcp_audit"):
            rows, batches = iterator._dataset, iterator._index_sampler
            iterator._dcp_audit = self._new_loader(
                len(rows) if hasattr(rows, "__len__") else None,
                len(batches) if hasattr(batches, "__len__") else None,
                is_cut=bool(getattr(batches, "drop_last", False)),
                fills=type(batches) is not torch.utils.data.BatchSampler,
            )
        found: dict[str, Any] = iterator._dcp_audit
        return found

    def _new_loader(
        self, rows: int | None, batches: int | None, *, is_cut: bool, fills: bool = False
    ) -> dict[str, Any]:
        self._log["loaders"].append({
            "of": rows, "batches": batches, "drop_last": is_cut, "rows": [], "given": [],
            "exhausted": False, "line": _line(), "fills": fills, "most": 1,
        })  # fmt: skip
        found: dict[str, Any] = self._log["loaders"][-1]
        return found

    def _see_epoch(self, original: Any, loader: Any, iteration: int) -> Iterator[Any]:
        rows = loader._packer.usable_rows
        batches = None if rows is None else len(loader)
        seen = self._new_loader(rows, batches, is_cut=loader.packing.drop_last)
        for data, plan in original(loader, iteration):
            seen["rows"] += data.rows
            seen["given"].append([check_sum(data.tokens.numpy())] if len(data.tokens) else [])
            self._note_borders(data)
            self._data = data
            yield data, plan
        seen["exhausted"] = True

    def _note_borders(self, *given: Any) -> None:
        found = borders_of([whole_ids(each) for each in integers_of(given)])
        if found and torch.is_grad_enabled():
            self._borders = found

    # Gradients.

    def _see_group(self, original: Any, optimizer: Any, *given: Any, **named: Any) -> None:
        original(optimizer, *given, **named)
        self._name_parameters(optimizer)

    def _name_parameters(self, optimizer: Any) -> None:
        """Name every parameter of the models that an optimizer trains, and watch what enters it."""
        # Not between forward and backward, where modules of FSDP hold other tensors.
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        unknown = {id(p) for p in trained} - self._names.keys()
        for root in _roots(unknown) if unknown else ():
            number = self._roots.setdefault(id(root), len(self._roots))
            note = _disable_dynamo(lambda _, given, named: self._note_borders(given, named))
            self._undo.append(root.register_forward_pre_hook(note, with_kwargs=True).remove)
            self._replicas += [
                each for each in root.modules() if isinstance(each, DistributedDataParallel)
            ]
            groups = {dist.get_world_size(each.process_group) for each in self._replicas}
            self._log["replica_ranks"] = min(groups, default=None)
            self._log["ignored"] += [
                n for each in self._replicas for n in each.parameters_to_ignore
            ]
            for name, p in root.named_parameters(remove_duplicate=False):
                clean = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
                self._name(f"model{number}.{clean}" if number else clean, p)
        for p in trained:
            if id(p) not in self._names:
                self._name(f"unnamed {len(self._parameters)}", p)
        if (size := sum(p.numel() for p in self._parameters.values())) > MOST_ELEMENTS:
            raise RunError(
                f"an audit keeps several copies of all parameters: expected a model of at most "
                f"{MOST_ELEMENTS:,} elements, got {size:,}; give the script smaller sizes, after --"
            )

    def _name(self, name: str, p: Any) -> None:
        if id(p) in self._names:
            if self._names[id(p)] != name:
                self._log["ties"].setdefault(self._names[id(p)], []).append(name)
            return
        self._names[id(p)], self._parameters[name] = name, p
        if p.requires_grad and p.is_leaf:
            self._undo.append(p.register_hook(lambda g: self._add_local(name, g)).remove)
        if hasattr(p, "main_param"):  # Megatron's copy in float32, which is stepped
            self._names[id(p.main_param)], self._parameters[name] = name, p.main_param

    @_disable_dynamo
    def _add_local(self, name: str, gradient: Tensor) -> None:
        if not isinstance(gradient, DTensor) and self._step.number < self._steps:
            own = (gradient.to_dense() if gradient.is_sparse else gradient).detach().double()
            known = self._step.local.get(name)
            self._step.local[name] = own.clone() if known is None else known + own

    def _see_shards(
        self, original: Any, shards: Any, gradients: Any, *given: Any, **named: Any
    ) -> Any:
        for shard, gradient in zip(shards, gradients, strict=True):
            if (name := self._names.get(id(shard.sharded_param))) is not None:
                self._add_local(name, gradient)
        return original(shards, gradients, *given, **named)

    def _see_backward(self, original: Any, loss: Any, *given: Any, **named: Any) -> Any:
        if not self._backwards:
            self._begin_backward(loss)
        self._backwards += 1
        try:
            return original(loss, *given, **named)
        finally:
            self._backwards -= 1

    def _begin_backward(self, loss: Any) -> None:
        if self._step.is_taken:
            self._finish_step()
        number, arrays = len(self._step.info["backwards"]), self._step.arrays
        for key in ("targets", "tokens"):
            found = [each[key] for each in self._losses]
            if found and all(each is not None for each in found):
                arrays[f"{key}:{number}"] = np.concatenate(found)
        if self._ids:
            arrays[f"ids:{number}"] = np.concatenate([each.flatten() for each in self._ids])
            arrays[f"rows:{number}"] = row_sums(self._ids)
        arrays[f"borders:{number}"] = np.array(self._borders, np.int64)
        is_number = isinstance(loss, Tensor) and loss.numel() == 1
        self._step.info["backwards"].append({
            "loss": float(_plain(loss.detach())) if is_number else None, "line": _line(),
            "sum": sum(each["sum"] for each in self._losses),
            "count": sum(each["count"] for each in self._losses),
        })  # fmt: skip
        if self._is_sharding_off:
            self._step.info["replica"] = "no_sync"
        elif self._replicas:
            self._step.info["replica"] = {None: "passed by", False: "no_sync", True: "reduced"}[
                self._is_reduced
            ]
        self._losses, self._ids, self._borders, self._is_reduced = [], [], [], None

    def _see_clip(
        self, original: Any, parameters: Any, max_norm: Any, *given: Any, **named: Any
    ) -> Any:
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        before = self._gradients()
        result = original(listed, max_norm, *given, **named)
        if before and "clip" not in self._step.info:
            after = self._gradients()
            largest = max(before, key=lambda name: float(own_part(before[name]).norm()))
            whole = float(own_part(before[largest]).norm())
            norm = named.get("total_norm", (*given, None)[0]) if result is None else result
            self._step.info["clip"] = {
                "line": _line(), "most": float(max_norm),
                "kind": float(named.get("norm_type", 2.0)),
                "names": [self._names[id(p)] for p in listed if id(p) in self._names],
                "norm": None if isinstance(norm, DTensor) else float(norm),
                "scale": float(own_part(after[largest]).norm()) / whole if whole else 1.0,
            }  # fmt: skip
            self._keep("unclipped", before)
        return result

    def _see_clip_of_values(self, original: Any, *given: Any, **named: Any) -> None:
        self._keep("unclipped", self._gradients())
        self._step.info["is_cut"] = True
        original(*given, **named)

    def _see_sum(self, original: Any, *given: Any, **named: Any) -> Any:
        if self._step.info["backwards"] and not self._backwards:
            group = named.get("group", given[2] if len(given) > 2 else None)
            sums = self._log["sums"].setdefault(_line(), [0, dist.get_world_size(group)])
            sums[0] += 1
        return original(*given, **named)

    def _gradients(self) -> dict[str, Tensor]:
        return {
            name: p.grad.detach().clone()
            for name, p in self._parameters.items() if p.grad is not None
        }  # fmt: skip

    @_disable_dynamo
    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._name_parameters(optimizer)
        if self._step.is_taken:
            return
        self._step.is_taken = True
        self._step.info["line"] = _line()
        if not self._first:
            self._first = {name: p.detach().clone() for name, p in self._parameters.items()}
            self._keep("first", self._first)
        self._keep("grad", self._gradients())
        self._keep("local", self._step.local)

    @_disable_dynamo
    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            name = self._names.get(id(p))
            if name is not None and f"after:{name}" not in self._step.arrays:
                self._keep("after", {name: p})
                if self._is_audit and name in self._first:
                    p.copy_(self._first[name])

    def _keep(self, kind: str, values: dict[str, Tensor]) -> None:
        for name, value in values.items() if self._step.number < self._steps else ():
            if isinstance(value, DTensor) and not all(p.is_replicate() for p in value.placements):
                _, offset = compute_local_shape_and_global_offset(
                    value.shape, value.device_mesh, value.placements
                )
                self._step.info["shards"][name] = [list(value.shape), list(offset)]
            own = own_part(value).detach()
            own = (own.to_dense() if own.is_sparse else own).double().cpu()
            self._step.arrays[f"{kind}:{name}"] = own.numpy().copy()
            self._step.info["is_coarse"] = (
                self._step.info.get("is_coarse", False) or value.dtype in _COARSE
            )

    # Files.

    def _finish_step(self) -> None:
        step, self._step = self._step, OpenStep(self._step.number + 1)
        if not step.is_taken and not step.info["backwards"]:
            return
        step.info["is_taken"] = step.is_taken
        text = np.frombuffer(json.dumps(step.info).encode(), np.uint8)
        path = self._folder / f"step-{step.number}.npz"
        with replacing(path, RunError) as draft, draft.open("wb") as file:
            np.savez(file, **{"info": text, **step.arrays})
        self._write_log(has_ended=False)
        if self._step.number == self._steps + (DATA_STEPS if self._is_audit else 0):
            self._when_full()

    def _write_log(self, *, has_ended: bool) -> None:
        with replacing(self._folder / "rank.json", RunError) as draft:
            draft.write_text(json.dumps({**self._log, "ended": has_ended}), encoding="utf-8")


def _plain(value: Any) -> Any:  # Any: a tensor
    return value.full_tensor() if isinstance(value, DTensor) else value


def _roots(wanted: set[int]) -> list[torch.nn.Module]:
    """Return the outermost modules that hold some of the parameters with these identities."""
    found = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    holding = [each for each in found if any(id(p) in wanted for p in each.parameters())]
    inner = {id(child) for each in holding for child in each.children()}
    return [each for each in holding if id(each) not in inner]


def _line() -> str:
    """Return the line of the script that runs, as `file:line`."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARIES):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


def _without_dropout(original: Any, *given: Any, **named: Any) -> Any:  # Any: of torch
    """Call attention, whose fifth argument is the share that is dropped."""
    if len(given) > 4:
        return original(*given[:4], 0.0, *given[5:], **named)
    return original(*given, **{**named, "dropout_p": 0.0})
