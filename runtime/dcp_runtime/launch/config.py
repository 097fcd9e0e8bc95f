"""`RunConfig`: how a plan is run on processes of this machine."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from dcp_runtime.errors import RunError
from dcp_runtime.transport.limits import LinkLimit, check_timeout

TransportName: TypeAlias = Literal["gloo", "nccl", "loopback"]
DtypeName: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The options of `run_plan`.

    Attributes:
        ranks: processes; the plan must be for as many devices.
        kernel: ``"cpu"``, ``"reference"``, or ``None`` for the fastest.
        dtype: element type of q, k, v and their gradients.
        seed: of the random tensors, at least 0.
        verify: compare with dense attention in float64.
        timeout_s: how long a rank may keep the others waiting before it counts as stalled; at most
            a day.
        layers: attention layers; all run forward, then all backward.
        transport: ``"gloo"``, a process per rank; ``"nccl"``, the same on a CUDA device each; or
            ``"loopback"``, all ranks as threads of one process that compute in turns.
        device: ``"cpu"`` or ``"cuda"``; NCCL needs the latter.
        check_finite: raise if a tensor that arrives or results is not finite.
        link: hold the messages of gloo back as a slower link would.
        overlap: send while computing; ``False`` shows what that gains.
        warmup: passes before the one that is timed and returned: the first pass of a process pays
            for threads, connections and memory that later ones find.
    """

    ranks: int
    kernel: str | None = None
    dtype: DtypeName = "float32"
    seed: int = 0
    verify: bool = False
    timeout_s: float = 60.0
    layers: int = 1
    transport: TransportName = "gloo"
    device: Literal["cpu", "cuda"] = "cpu"
    check_finite: bool = False
    link: LinkLimit | None = None
    overlap: bool = True
    warmup: int = 0

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)
        if self.ranks < 1 or self.layers < 1 or self.warmup < 0:
            raise RunError(
                "expected at least 1 rank, 1 layer and 0 passes of warm-up, got "
                f"{self.ranks}, {self.layers} and {self.warmup}"
            )
        if self.dtype not in get_args(DtypeName) or self.seed < 0:
            raise RunError(
                f"expected a dtype out of {', '.join(get_args(DtypeName))} and a seed of at least "
                f"0, got {self.dtype!r} and {self.seed}"
            )
        if self.transport not in ("gloo", "nccl", "loopback") or self.device not in ("cpu", "cuda"):
            raise RunError(
                "expected a transport out of gloo, nccl, loopback and a device out of cpu, cuda, "
                f"got {self.transport!r} and {self.device!r}"
            )
        if self.transport == "nccl" and self.device != "cuda":
            raise RunError("transport 'nccl' moves CUDA tensors: say device 'cuda', or use 'gloo'")
        if self.link is not None and self.transport != "gloo":
            raise RunError(f"only the links of gloo can be slowed down, not {self.transport!r}")
