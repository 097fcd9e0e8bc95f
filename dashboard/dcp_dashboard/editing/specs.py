"""Texts to start from: examples, the standard library, files of the folder, the text of a plan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from dcp_dashboard.library.folder import SPEC_SUFFIX, DashboardError
from dcp_dashboard.library.plans import PlanLibrary
from dcp_grammar import MASKS
from dcp_planner import Plan, Provenance
from dcp_planner.model import PRESETS

MAX_FILES = 200
MAX_BYTES = 200_000

START = """\
# What may every token see? Change a line: findings, picture and prediction follow.
segment part = question[question_len] branch answer[answer_lens]*

mask shared_question = causal and (k in question or same(answer))

sample tiny(question_len = 4, answer_lens = [3, 3, 2])
check shared_question implies causal
"""

PACKED = """# Packed documents: causal, and nothing crosses a document's border.
segment doc = branch [doc_lens]*
mask document = causal and same(doc)
"""

LAMBDA = """# The first tokens stay visible beside a sliding window (StreamingLLM).
mask streaming(sink: tokens = 64, window: tokens = 4k) = causal and (k < sink or q - k < window)
"""

DOCUMENTS = (9000, 400, 5200, 1300, 700, 11000, 2600, 2568)

EXAMPLES: tuple[dict[str, Any], ...] = tuple(  # Any: JSON values
    {
        "label": f"example: {name}",
        "text": text,
        "mask": mask,
        "sample": json.dumps(sample),
        "nodes": 2,
        "devices_per_node": 4,
        "method": method,
        "budget": "fast",
    }
    for name, text, mask, sample, method in (
        ("documents", PACKED, "document", {"doc_lens": DOCUMENTS}, "portfolio"),
        ("documents, zigzag", PACKED, "document", {"doc_lens": DOCUMENTS}, "static:zigzag"),
        ("streaming", LAMBDA, "streaming", {"len": 32_768}, "portfolio"),
    )
)
"""Bodies of requests, each with the `label` that the list shows."""


@dataclass(frozen=True, slots=True)
class Start:
    """A text to begin with.

    Attributes:
        name: shown on the page.
        text: of the language.
        home: key of the file it comes from, empty if it lies in no served folder.
        batch: key of the plan it comes from, empty if it comes from none.
        settings: of the page, by name, as the address writes them.
    """

    name: str
    text: str
    home: str = ""
    batch: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@cache
def library_texts() -> dict[str, str]:
    """Read the files of the standard library, by the name of their mask.

    >>> "streaming" in library_texts()
    True
    """
    files = sorted(MASKS.iterdir(), key=lambda item: item.name)
    return {
        item.name.removesuffix(SPEC_SUFFIX): item.read_text(encoding="utf-8")
        for item in files
        if item.name.endswith(SPEC_SUFFIX)
    }


def folder_files(library: PlanLibrary) -> dict[str, str]:
    """Return the names of the first `.dcpm` files below the served folder, by their key."""
    found = library.folder.files(SPEC_SUFFIX)[:MAX_FILES]
    return {entry.key: entry.relative for entry in found}


def home_of(library: PlanLibrary, key: str) -> str | None:
    """Return the path of a `.dcpm` file of the folder by its key, ``None`` if there is none."""
    entry = library.folder.find(key, SPEC_SUFFIX)
    return None if entry is None else str(entry.path)


def start_of(library: PlanLibrary, query: str) -> Start:
    """Return the text that a URL asks for.

    ``?spec=`` is ``std:NAME`` for a mask of the standard library, the key of a `.dcpm` file of the
    folder or of a plan, whose text it is then, or a text itself.

    Raises:
        DCPError: if there is no such text.
    """
    wanted = parse_qs(query.removeprefix("?")).get("spec", [""])[0]
    if not wanted:
        return Start("shared_question.dcpm", START)
    if wanted.startswith("std:"):
        return _library_start(wanted.removeprefix("std:"))
    if any(c in wanted for c in " =\n"):
        return Start("shared.dcpm", wanted[:MAX_BYTES])
    entry = library.folder.find(wanted, SPEC_SUFFIX)
    if entry is not None:
        return Start(entry.relative, _read(entry.path), wanted)
    loaded = library.load(wanted)
    name, provenance = loaded.entry.relative, loaded.provenance
    if provenance is None:
        raise DashboardError(
            f"{name} does not hold the text it was planned from; open a .dcpm file"
        )
    settings = plan_settings(loaded.plan, provenance, wanted)
    return Start(f"{name} (its text)", provenance.spec, batch=wanted, settings=settings)


def plan_settings(plan: Plan, provenance: Provenance, key: str) -> dict[str, str]:
    """Return the settings that plan this batch again for the same cluster, beside the plan."""
    cluster, shape = plan.cluster, plan.shape
    found = {
        "expression": provenance.mask,
        "mask": "other",
        "sample": "batch",
        "scale": "1",
        "nodes": str(cluster.nodes),
        "per": str(cluster.devices_per_node),
        "heads": f"{shape.q_heads}/{shape.kv_heads}/{shape.head_dim}",
        "dtype": str(shape.dtype_bytes),
        "b": key,
    }
    return found | ({"cluster": cluster.name} if cluster.name in PRESETS else {})


def batch_of(library: PlanLibrary, key: str) -> list[str]:
    """Return the samples of a plan's batch, as JSON objects."""
    loaded = library.load(key)
    provenance = loaded.plan.provenance
    if provenance is None or not provenance.samples:
        raise DashboardError(f"{loaded.entry.relative} does not say what its batch was")
    return list(provenance.samples)


def _library_start(name: str) -> Start:
    texts = library_texts()
    if name not in texts:
        known = ", ".join(texts)
        raise DashboardError(
            f"expected a mask of the standard library, got {name[:40]!r}; there are {known}"
        )
    return Start(f"{name}.dcpm", texts[name])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise DashboardError(
                f"{path.name}: expected at most {MAX_BYTES:,} bytes, got more; check it with: "
                f"dcpm check {path.name}"
            )
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DashboardError(f"{path.name}: cannot be read as text: {error}") from error
