"""Several tensors in one message: their bytes one behind the other, the widest type first."""

import torch


def join(*tensors: torch.Tensor) -> torch.Tensor:
    """Give the bytes of all tensors, uint8.

    Wider types must come first, so that every part stays aligned.

    >>> join(torch.zeros(2, dtype=torch.float64), torch.zeros(3, dtype=torch.bfloat16)).numel()
    22
    """
    return torch.cat([t.contiguous().view(torch.uint8).reshape(-1) for t in tensors])


def split(message: torch.Tensor, *like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Give views of the parts of a joined message, in shape and type of the tensors in `like`.

    >>> a, b = torch.ones(2, 2), torch.full((3,), 5, dtype=torch.int16)
    >>> split(join(a, b), a, b)[1].tolist()
    [5, 5, 5]
    """
    parts, at = [], 0
    for tensor in like:
        parts.append(message[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        at += tensor.nbytes
    assert at == message.numel(), f"a message of {message.numel()} bytes, {at} expected"
    return tuple(parts)


def room_for(*like: torch.Tensor) -> torch.Tensor:
    """Give an empty message for tensors like these."""
    return torch.empty(sum(t.numel() * t.element_size() for t in like), dtype=torch.uint8)
