"""`audit_script`: one run on one process, one on ranks, and what their records say."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from dcp_runtime.auditing.findings import AuditFinding
from dcp_runtime.auditing.judge import judge
from dcp_runtime.auditing.runs import RunOrder, run_script


@dataclass(frozen=True, slots=True)
class AuditOrder:
    """What to audit: the words of the script, its ranks, and the words for one process."""

    words: tuple[str, ...]
    ranks: int = 2
    steps: int = 2
    alone: tuple[str, ...] | None = None
    timeout_s: float = 300.0


def audit_script(order: AuditOrder) -> list[AuditFinding]:
    """Run a script on ranks of this machine and on one process, and compare.

    Raises:
        RunError: if a run fails, or takes no step of an optimizer.
    """
    with tempfile.TemporaryDirectory(prefix="dcpm-audit-") as name:
        # One process reads the batches of all ranks one by one, where they read their own.
        single = RunOrder(order.alone or order.words, 1, order.steps * order.ranks, order.timeout_s)
        alone = run_script(single, Path(name, "alone"))
        many = RunOrder(order.words, order.ranks, order.steps, order.timeout_s)
        ranks = run_script(many, Path(name, "ranks"))
        return judge(alone, ranks, order.steps)
