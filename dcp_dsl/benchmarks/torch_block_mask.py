"""Time PyTorch's `create_block_mask`, eager and compiled, in a process of its own; prints JSON."""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import create_block_mask

MAX_EAGER_TOKENS = 16_384  # eager holds the whole matrix several times


def causal(b: object, h: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the causal mask."""
    return q >= k


def sliding(b: object, h: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return a window of 4096 tokens."""
    return (q >= k) & (q - k < 4096)


def streaming(b: object, h: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return 64 sinks beside a window of 4096 tokens."""
    return (q >= k) & ((k < 64) | (q - k < 4096))


MASKS = {"causal": causal, "sliding(4k)": sliding, "streaming(64, 4k)": streaming}


def fastest_ms(run: Callable[[], object], repeats: int = 3) -> float:
    """Return the CPU time of the shortest of a few warm runs."""
    run()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        times.append((time.process_time() - started) * 1e3)
    return min(times)


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, required=True)
    n = parser.parse_args().tokens
    torch.set_num_threads(1)
    compiled = torch.compile(create_block_mask)
    rows = []
    for name, mask in MASKS.items():
        eager = None
        if n <= MAX_EAGER_TOKENS:
            eager = fastest_ms(lambda m=mask: create_block_mask(m, None, None, n, n, device="cpu"))
        warm = fastest_ms(lambda m=mask: compiled(m, None, None, n, n, device="cpu"))
        rows.append({"mask": name, "tokens": n, "eager_ms": eager, "compiled_ms": warm})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
