"""What can be selected, as the text that URLs and links carry: ``tile.12~device.3~division.1``.

The first part names the type, the others are the ids that are known of it; `assets/state.js` is the
other half of this file.
"""

from dcp_planner import Direction, Plan


def selection(what: str, /, **ids: int | str) -> str:
    """Give the text of a selection; the id of `what` itself comes first.

    >>> selection("device", device=3, peer=4)
    'device.3~peer.4'
    """
    names = [what, *(name for name in ids if name != what)]
    return "~".join(f"{name}.{ids[name]}" for name in names)


def device_selection(device: int) -> str:
    """Select a device."""
    return selection("device", device=device)


def pair_selection(source: int, target: int) -> str:
    """Select what one device sends another."""
    return selection("device", device=source, peer=target)


def division_selection(division: int, direction: Direction, device: int | None = None) -> str:
    """Select a step of the schedule, of all devices or of one."""
    ids = {"division": division, "backward": int(direction == "backward")}
    return selection("division", **ids, **({} if device is None else {"device": device}))


def tile_selection(plan: Plan, tile: int) -> str:
    """Select a tile; its division is that of forward."""
    tiles = plan.tiles
    return selection(
        "tile", tile=tile, device=int(tiles.device[tile]), division=int(tiles.division[tile]),
        q=int(tiles.q_block[tile]), kv=int(tiles.kv_block[tile]),
    )  # fmt: skip


def transfer_selection(plan: Plan, transfer: int) -> str:
    """Select a message."""
    table = plan.transfers
    return selection(
        "transfer", transfer=transfer, device=int(table.source[transfer]),
        peer=int(table.target[transfer]), block=int(table.block[transfer]),
        division=int(table.division[transfer]), backward=int(table.is_backward[transfer]),
        kind=int(table.kind[transfer]),
        **({} if table.group is None else {"group": int(table.group[transfer])}),
    )  # fmt: skip
