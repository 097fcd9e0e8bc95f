"""Which files pytest imports to look for tests and doctests, and how many threads they use."""

import os
from pathlib import Path

# Tests run side by side and start processes: threads of torch and numpy would wait for each other.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files without a doctest: each worker would import them for nothing."""
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return ">>>" not in collection_path.read_text(encoding="utf-8") or None
