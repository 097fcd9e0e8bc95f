"""Define the cases of `first_light.py`, and plan them: one file per rank of each plan.

``python gpu/cases.py`` plans them on a machine with the planner's libraries (numba) and writes
`gpu/plans/`. The machine with the GPU reads these files with numpy alone.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLANS = HERE / "plans"
ROOTS = [str(HERE.parent / name) for name in ("grammar", "dcp_dsl", "planner", "runtime")]
sys.path[:0] = [root for root in ROOTS if root not in sys.path]

from dcp_dsl import Mask, Sample, Spec  # noqa: E402  # the packages need not be installed

SPEC = """
segment doc = [doc_lens]*
segment chosen = flags(is_chosen)
mask streaming_llm = causal and (k < 64 or q - k < 1k)
mask documents = causal per doc
mask sparse = causal and (k in chosen or q - k < 32)
"""
HEADS = (32, 8)  # query and key/value heads of the timed plans


@dataclass(frozen=True)
class Case:
    """A mask on one packed sequence, planned for some ranks."""

    mask: str  # of `SPEC`, or of the library
    tokens: int
    ranks: int = 1
    head_dim: int = 128
    heads: tuple[int, int] = HEADS  # of queries, and of keys and values
    block: int = 1024  # tokens

    @property
    def name(self) -> str:
        """Name of the case, with which the names of its files begin."""
        return f"{self.mask}-{self.tokens}-{self.ranks}-{self.head_dim}"

    def mask_and_sample(self) -> tuple[Mask, Sample]:
        """Return the checked mask and the columns of its sequence."""
        eighth = self.tokens // 8
        lengths = [eighth, 3 * eighth, eighth // 2, self.tokens - 4 * eighth - eighth // 2]
        chosen = [int((7 * token) % 11 == 3) for token in range(self.tokens)]
        columns = {"documents": {"doc_lens": lengths}, "sparse": {"is_chosen": chosen}}
        sample = Sample(columns.get(self.mask, {}), self.tokens)
        return Spec.from_text(SPEC).mask(self.mask), sample

    def parts(self) -> list[bytes]:
        """Read the files of all ranks.

        Raises:
            SystemExit: if they have not been made.
        """
        paths = [PLANS / f"{self.name}-{rank}.part" for rank in range(self.ranks)]
        if missing := [path for path in paths if not path.exists()]:
            sys.exit(f"{missing[0]} is missing: run `python gpu/cases.py` where numba is installed")
        return [path.read_bytes() for path in paths]


SMALL = [
    Case(mask, 1000, head_dim=dim, heads=(dim // 16, 2), block=128)
    for mask in ("full", "sparse", "causal", "streaming_llm", "documents")
    for dim in (128, 64, 96)
]
"""Cases compared with dense attention in float64. Tiles are full, or have bits per pair, or ranges
of keys; the masks that differ most come first. Four, two and three query heads use one key head; of
these, four, two and one share a tile of the Triton kernels."""
SHARED = [Case("streaming_llm", 1024, ranks, 64, (4, 2), 128) for ranks in (2, 4, 8)]
"""Cases run on ranks that are threads of one process."""
SPREAD = [Case("causal", 16_384, ranks) for ranks in (2, 4, 8)]
"""Cases run on processes, with messages that travel while ranks compute."""
TIMED = [
    Case(mask, tokens)
    for tokens in (16_384, 65_536)
    for mask in ("causal", "streaming_llm", "documents")
]


def main() -> None:
    """Plan all cases and write their files."""
    from dcp_dsl import block_sparsity
    from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
    from dcp_planner.plan import encode_parts

    PLANS.mkdir(exist_ok=True)
    for case in SMALL + SHARED + SPREAD + TIMED:
        mask, sample = case.mask_and_sample()
        sparsity = block_sparsity([mask.bind(sample)], case.block, case.block)
        shape = ModelShape(*case.heads, case.head_dim)
        plan = build_plan(sparsity, shape, Cluster(1, case.ranks), PlanConfig("static:zigzag"))
        for rank, part in enumerate(encode_parts(plan)):
            (PLANS / f"{case.name}-{rank}.part").write_bytes(part)
    size = sum(path.stat().st_size for path in PLANS.iterdir())
    print(f"{len(SMALL + SHARED + SPREAD + TIMED)} plans, {size / 2**20:.1f} MiB in {PLANS}")


if __name__ == "__main__":
    main()
