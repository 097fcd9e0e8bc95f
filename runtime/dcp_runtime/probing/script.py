"""What a file with a model says: the model, and what a row becomes."""

import inspect
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dcp_dsl import Mask, Sample, Stack, dense_mask, token_paths
from dcp_dsl.arrays import Ints
from dcp_runtime.errors import RunError
from dcp_runtime.probing.tiny_models import tiny_model


def read_script(
    path: str, mask: Mask | Stack, sample: Sample, given: Mapping[str, Any]
) -> tuple[nn.Module, Any]:
    """Run a file; return its model, and its batch of a row or else `default_batch`."""
    # A path hf:CLASS names a class of transformers (`tiny_model`), with `given` in its config.
    if path.startswith("hf:"):
        layers = max(2, mask.period) if isinstance(mask, Stack) else 2
        tiny = tiny_model(path.removeprefix("hf:"), layers, given)
        return tiny, default_batch(tiny, mask, sample)
    if given or not Path(path).is_file():
        got = "--config, which is for hf:CLASS" if given else "no such file"
        raise RunError(f"{path}: expected a file, or hf:CLASS of transformers; got {got}")
    sys.path.insert(0, str(Path(path).resolve().parent))  # as Python does for a script
    found = runpy.run_path(path, run_name="dcpm_probe")
    model = found["make_model"]() if "make_model" in found else found.get("model")
    if not isinstance(model, nn.Module):
        raise RunError(
            f"{path}: expected a file that defines `model`, a torch module, or `make_model()`, "
            f"which returns one; got {type(model).__name__}"
        )
    batch = found["batch"](sample) if "batch" in found else default_batch(model, mask, sample)
    return model, batch


def default_batch(model: nn.Module, mask: Mask | Stack, sample: Sample) -> dict[str, Any]:
    """Return random `input_ids`, and `position_ids` if the model takes them."""
    # Positions count along the branches of the mask, else from 0 in every stretch of tokens that
    # sees no token outside it.
    names = inspect.signature(model.forward).parameters
    table = next((each for each in model.modules() if isinstance(each, nn.Embedding)), None)
    if "input_ids" not in names or table is None:
        raise RunError(
            f"{type(model).__name__}: expected a model that takes input_ids and has an embedding; "
            f"its forward takes {', '.join(names)}: define batch(row) in the file, which returns a "
            "tensor, a tuple of positional or a dict of named arguments"
        )
    draw = torch.Generator().manual_seed(0)
    size = 1, sample.length
    ids = torch.randint(table.num_embeddings, size, generator=draw, device="cpu")
    found: dict[str, Any] = {"input_ids": ids.to(table.weight.device)}
    if "position_ids" in names:
        at = torch.from_numpy(_positions(mask, sample))[None]
        found["position_ids"] = at.to(table.weight.device)
    return found | ({"use_cache": False} if "use_cache" in names else {})


def _positions(mask: Mask | Stack, sample: Sample) -> Ints:
    masks = mask.masks if isinstance(mask, Stack) else (mask,)
    for paths in (token_paths(each, sample) for each in masks):
        if paths is not None:
            return np.array(paths.position)
    seen = np.any([dense_mask(each, sample) for each in masks], axis=0)
    ties = np.logical_or(seen, seen.T)
    starts = [t for t in range(len(seen)) if not ties[t:, :t].any()]
    begins: Ints = np.repeat(starts, np.diff([*starts, len(seen)]))
    positions: Ints = np.arange(len(seen)) - begins
    return positions
