"""`Observer`: sees what a training script does, and writes it down, without a line in the script.

It stands between the script and torch: losses, targets and token ids where they are computed, what
each backward adds to a parameter's gradient, the gradients before they are clipped and where the
optimizer takes its step, the parameters after it, and the rows that loaders give. A step's arrays
go into one file without pickle, `record.py` reads them.
"""

import gc
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader as torch_loader

from dcp_dsl.files import replacing
from dcp_runtime.auditing.contents import (
    borders_of,
    check_sum,
    ids_before,
    integers_of,
    own_part,
    whole_ids,
)
from dcp_runtime.errors import RunError

MOST_ELEMENTS = 1 << 26
"""Most elements of a model's parameters: several copies are kept, on every rank."""
DATA_STEPS = 64
"""Steps whose data alone is recorded, behind those whose gradients are."""
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_LIBRARIES = (
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    str(Path(__file__).parents[1]), "<",
)  # fmt: skip

Arrays = dict[str, NDArray[Any]]  # Any: integers or floats


@dataclass
class Step:
    """What has been seen of the step under way."""

    number: int
    info: dict[str, Any] = field(default_factory=dict)  # Any: fit for JSON
    arrays: Arrays = field(default_factory=dict)
    local: dict[str, Tensor] = field(default_factory=dict)
    is_taken: bool = False


class Observer:
    """Writes down what this process trains; one to a process.

    Args:
        folder: for the files of this rank, `step-N.npz` and `rank.json`.
        steps: whose gradients are recorded; of later ones only the data is.
        is_audit: whether the run is only for the audit: dropout is switched off, and parameters are
            set back after every step, so that every step begins from the same ones.
        when_full: called when nothing more is to be recorded.
    """

    def __init__(
        self, folder: Path, steps: int, *, is_audit: bool, when_full: Callable[[], None]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._steps, self._is_audit = folder, steps, is_audit
        self._when_full = when_full
        self._step = Step(0)
        self._names: dict[int, str] = {}
        self._parameters: dict[str, Tensor] = {}
        self._roots: dict[int, int] = {}  # number of a model by its identity
        self._first: dict[str, Tensor] = {}  # parameters before the first step
        self._calls: list[dict[str, Any]] = []  # losses since the last backward
        self._ids: list[NDArray[np.int64]] = []  # token ids that went into embeddings since then
        self._borders: list[list[int]] = []
        self._table: tuple[int, ...] = ()  # the shape of the embedding of tokens
        self._backwards = 0  # under way: one may run another
        self._undo: list[Callable[[], None]] = []
        self._log: dict[str, Any] = {
            "ended": False, "ties": {}, "loaders": [], "seen": [], "sums": {}, "failed": None
        }  # fmt: skip

    # -- what stands between the script and torch

    def watch(self) -> None:
        """Begin: replace the functions of torch that are watched."""
        for name in ("cross_entropy", "nll_loss"):
            self._wrap(torch.nn.functional, name, self._around_loss)
        self._wrap(torch.nn.functional, "embedding", self._around_embedding)
        self._wrap(torch.Tensor, "backward", self._around_backward)
        self._wrap(torch.autograd, "backward", self._around_backward)
        self._wrap(torch.nn.utils.clip_grad, "clip_grad_norm_", self._around_clip)
        for name in ("clip_grad_norm_", "clip_grads_with_norm_"):
            self._wrap(torch.nn.utils, name, self._around_clip)
        self._wrap(torch.distributed, "all_reduce", self._around_sum)
        self._wrap(Optimizer, "add_param_group", self._around_group)
        self._wrap(torch_loader._BaseDataLoaderIter, "__next__", self._around_next)
        self._wrap(torch_loader._BaseDataLoaderIter, "_next_index", self._around_index)
        with suppress(ImportError):  # a part of torch that has no public name
            from torch.distributed.fsdp._fully_shard import _fsdp_param_group

            self._wrap(_fsdp_param_group, "foreach_reduce", self._around_shards)
        from dcp_runtime.data.dataloader import DCPDataloader

        self._wrap(DCPDataloader, "_epoch", self._around_epoch)
        if self._is_audit:
            for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"):
                self._wrap(torch.nn.functional, name, lambda _: lambda x, *_, **__: x)
        before = register_optimizer_step_pre_hook(self._before_step)
        after = register_optimizer_step_post_hook(self._after_step)
        self._undo += [before.remove, after.remove]

    def close(self, failed: str | None = None) -> None:
        """End: put torch's functions back, and write what is left."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._finish_step()
        self._log |= {"ended": failed is None, "failed": failed}
        self._write_log()

    def _wrap(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:  # Any: torch's
        original = getattr(owner, name)
        setattr(owner, name, wraps(original)(around(original)))
        self._undo.append(lambda: setattr(owner, name, original))

    # -- data: token ids, targets, rows

    def _around_loss(self, original: Any) -> Any:  # Any: a function of torch
        def call(*given: Any, **named: Any) -> Any:
            result = original(*given, **named)
            if not torch.compiler.is_compiling() and torch.is_grad_enabled():
                target = named.get("target", given[1] if len(given) > 1 else None)
                kind = named.get("reduction", given[6] if len(given) > 6 else "mean")
                ignored = named.get("ignore_index", given[4] if len(given) > 4 else -100)
                self._note_loss(result, target, kind, ignored)
            return result

        return call

    @_disable_dynamo
    def _note_loss(self, result: Any, target: Any, kind: str, ignored: int) -> None:
        if self._backwards or not isinstance(target, Tensor) or target.is_floating_point():
            return
        ids = whole_ids(target).flatten()
        ids = np.where(ids == ignored, -100, ids)
        count = int((ids != -100).sum())
        value = float(_plain(result.detach()).double().sum())
        total = value * count if kind == "mean" else value
        self._calls.append({
            "targets": ids, "count": count, "sum": total if count else 0.0,
            "tokens": ids_before(self._ids[::-1], ids.size),
        })  # fmt: skip

    def _around_embedding(self, original: Any) -> Any:
        def call(ids: Any, weight: Any, *given: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                self._note_ids(ids, tuple(weight.shape))
            return original(ids, weight, *given, **named)

        return call

    @_disable_dynamo
    def _note_ids(self, ids: Tensor, table: tuple[int, ...]) -> None:
        # Models look tokens up first; a table of positions, or of token types, comes after it.
        self._table = self._table or table
        if self._backwards or table != self._table:
            return
        whole = whole_ids(ids)
        self._log["seen"].append(check_sum(whole))
        if torch.is_grad_enabled():
            self._ids.append(whole)

    def _around_index(self, original: Any) -> Any:
        def call(iterator: Any) -> Any:
            number = original(iterator)
            rows = [number] if isinstance(number, int) else number
            if isinstance(rows, list) and all(isinstance(row, int) for row in rows):
                self._loader(iterator)["rows"] += rows
            return number

        return call

    def _around_next(self, original: Any) -> Any:
        def call(iterator: Any) -> Any:
            loader = self._loader(iterator)
            try:
                batch = original(iterator)
            except StopIteration:
                loader["exhausted"] = True
                raise
            loader["given"].append([check_sum(whole_ids(each)) for each in integers_of(batch)])
            return batch

        return call

    def _loader(self, iterator: Any) -> dict[str, Any]:
        if not hasattr(iterator, "_dcp_audit"):
            rows = getattr(iterator, "_dataset", None)
            batches = getattr(iterator, "_index_sampler", None)
            iterator._dcp_audit = self._new_loader(
                len(rows) if hasattr(rows, "__len__") else None,
                len(batches) if hasattr(batches, "__len__") else None,
                is_cut=bool(getattr(batches, "drop_last", False)),
            )
        found: dict[str, Any] = iterator._dcp_audit
        return found

    def _new_loader(self, rows: int | None, batches: int | None, *, is_cut: bool) -> dict[str, Any]:
        loader = {
            "of": rows, "batches": batches, "drop_last": is_cut, "rows": [], "given": [],
            "exhausted": False, "line": _line(),
        }  # fmt: skip
        self._log["loaders"].append(loader)
        return loader

    def _around_epoch(self, original: Any) -> Any:
        def call(loader: Any, iteration: int) -> Iterator[Any]:
            usable = loader._usable
            seen = self._new_loader(
                None if usable is None else len(usable[0]),
                None if usable is None else len(loader), is_cut=loader.packing.drop_last,
            )  # fmt: skip
            for data, plan in original(loader, iteration):
                seen["rows"] += data.rows
                seen["given"].append([check_sum(data.tokens.numpy())])
                self._note_borders(data)
                yield data, plan
            seen["exhausted"] = True

        return call

    def _note_borders(self, *given: Any) -> None:
        if torch.is_grad_enabled() and (
            found := borders_of([whole_ids(x) for x in integers_of(given)])
        ):
            self._borders.append(found)

    # -- gradients

    def _around_group(self, original: Any) -> Any:
        def call(optimizer: Any, *given: Any, **named: Any) -> None:
            original(optimizer, *given, **named)
            self._name_parameters(optimizer)

        return call

    def _name_parameters(self, optimizer: Any) -> None:
        """Name every parameter of the models that an optimizer trains, and watch what enters each.

        Not between forward and backward, where modules of FSDP hold other tensors.
        """
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        unknown = {id(p) for p in trained} - self._names.keys()
        for root in _roots(unknown) if unknown else ():
            number = self._roots.setdefault(id(root), len(self._roots))
            note = _disable_dynamo(lambda _, given, named: self._note_borders(given, named))
            self._undo.append(root.register_forward_pre_hook(note, with_kwargs=True).remove)
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
        if isinstance(gradient, DTensor) or self._step.number >= self._steps:
            return
        own = (gradient.to_dense() if gradient.is_sparse else gradient).detach().double()
        known = self._step.local.get(name)
        self._step.local[name] = own.clone() if known is None else known + own

    def _around_shards(self, original: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            shards = named.get("fsdp_params", given[0] if given else ())
            gradients = named.get("unsharded_grads", given[1] if len(given) > 1 else ())
            for shard, gradient in zip(shards, gradients, strict=True):
                name = self._names.get(id(shard.sharded_param))
                if name is not None:
                    self._add_local(name, gradient)
            return original(*given, **named)

        return call

    def _around_backward(self, original: Any) -> Any:
        @_disable_dynamo
        def call(loss: Any, *given: Any, **named: Any) -> Any:
            if not self._backwards:
                self._begin_backward(loss)
            self._backwards += 1
            try:
                return original(loss, *given, **named)
            finally:
                self._backwards -= 1

        return call

    def _begin_backward(self, loss: Any) -> None:
        if self._step.is_taken:
            self._finish_step()
        losses = self._step.info.setdefault("backwards", [])
        number = len(losses)
        value = None
        if isinstance(loss, Tensor) and loss.numel() == 1:
            value = float(_plain(loss.detach()))
        for key in ("targets", "tokens"):
            found = [call[key] for call in self._calls]
            if found and all(each is not None for each in found):
                self._step.arrays[f"{key}:{number}"] = np.concatenate(found)
        if self._ids:
            self._step.arrays[f"ids:{number}"] = np.concatenate([x.flatten() for x in self._ids])
        if self._borders:
            self._step.arrays[f"borders:{number}"] = np.array(self._borders[-1])
        losses.append({
            "loss": value, "line": _line(),
            "sum": sum(call["sum"] for call in self._calls),
            "count": sum(call["count"] for call in self._calls),
        })  # fmt: skip
        self._calls, self._ids, self._borders = [], [], []

    def _around_clip(self, original: Any) -> Any:
        @_disable_dynamo
        def call(*given: Any, **named: Any) -> Any:
            before = {} if "clip" in self._step.info else self._gradients()
            if given and not isinstance(given[0], Tensor):
                given = (list(given[0]), *given[1:])  # a generator is read once
            result = original(*given, **named)
            if "clip" not in self._step.info:
                for name, gradient in before.items():
                    self._keep("unclipped", name, gradient)
                after = self._gradients()
                largest = max(
                    before, key=lambda name: float(own_part(before[name]).norm()), default=""
                )
                whole = float(own_part(before[largest]).norm()) if before else 0.0
                norm = result if result is not None else named.get("total_norm", given[-1])
                self._step.info["clip"] = {
                    "line": _line(),
                    "names": self._known(named.get("parameters", given[0] if given else ())),
                    "kind": float(named.get("norm_type", 2.0)),
                    "most": float(named.get("max_norm", given[1] if len(given) > 1 else 0.0)),
                    "norm": None if isinstance(norm, DTensor) else float(norm),
                    "scale": float(own_part(after[largest]).norm()) / whole if whole else 1.0,
                }
            return result

        return call

    def _known(self, parameters: Any) -> list[str]:
        listed = [parameters] if isinstance(parameters, Tensor) else parameters
        return [self._names[id(p)] for p in listed if id(p) in self._names]

    def _around_sum(self, original: Any) -> Any:
        def call(tensor: Any, *given: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling() and self._names and not self._backwards:
                line = _line()
                self._log["sums"][line] = self._log["sums"].get(line, 0) + 1
            return original(tensor, *given, **named)

        return call

    def _gradients(self) -> dict[str, Tensor]:
        return {
            name: p.grad.detach().clone()
            for name, p in self._parameters.items()
            if p.grad is not None
        }

    @_disable_dynamo
    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._name_parameters(optimizer)
        if self._step.is_taken:
            return
        self._step.is_taken = True
        self._step.info["line"] = _line()
        if not self._first:
            self._first = {name: p.detach().clone() for name, p in self._parameters.items()}
            for name, p in self._first.items():
                self._keep("first", name, p)
        for name, gradient in self._gradients().items():
            self._keep("grad", name, gradient)
        for name, gradient in self._step.local.items():
            self._keep("local", name, gradient)

    @_disable_dynamo
    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                name = self._names.get(id(p))
                if name is None or f"after:{name}" in self._step.arrays:
                    continue
                self._keep("after", name, p)
                if self._is_audit and name in self._first:
                    p.copy_(self._first[name])

    def _keep(self, kind: str, name: str, value: Tensor) -> None:
        if self._step.number >= self._steps:
            return
        if isinstance(value, DTensor) and not all(each.is_replicate() for each in value.placements):
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            _, offset = compute_local_shape_and_global_offset(
                value.shape, value.device_mesh, value.placements
            )
            shards = self._step.info.setdefault("shards", {})
            shards[name] = [list(value.shape), list(offset)]
        own = own_part(value).detach()
        own = own.to_dense() if own.is_sparse else own
        precise = own.double() if own.is_floating_point() else own
        self._step.arrays[f"{kind}:{name}"] = precise.cpu().numpy().copy()
        if own.dtype in (torch.bfloat16, torch.float16):
            self._step.info["is_coarse"] = True

    # -- files

    def _finish_step(self) -> None:
        step, self._step = self._step, Step(self._step.number + 1)
        if not step.is_taken and not step.info.get("backwards"):
            return
        step.info["is_taken"] = step.is_taken
        text = np.frombuffer(json.dumps(step.info).encode(), np.uint8)
        path = self._folder / f"step-{step.number}.npz"
        with replacing(path, RunError) as draft, draft.open("wb") as file:
            np.savez(file, **{"info": text, **step.arrays})
        if self._step.number >= self._steps:
            self._write_log()
        if self._step.number == self._steps + DATA_STEPS:
            self._when_full()

    def _write_log(self) -> None:
        with replacing(self._folder / "rank.json", RunError) as draft:
            draft.write_text(json.dumps(self._log), encoding="utf-8")


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
