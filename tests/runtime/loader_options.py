"""Loaders, with options by name, and the rows and policies that their tests share."""

from dataclasses import fields

from dcp_runtime import DCPDataloader, LookAhead, Packing, Planning, RowRules

POLICIES = {
    "work": {},
    "order": {"balance": "order"},
    "all": {"group": "all"},
    "best": {"group": "best"},
    "per_document": {"width": "per_document"},
    "window": {"window": 2},
}
"""Ways to deal rows to replicas and micro-batches, by name."""


class Stream:
    """Rows that can be iterated again and have neither length nor numbers."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def make_loader(dataset, mask_fn, *, ahead=2, processes=0, planner="each", **options):
    """Make a loader; `ahead` is `LookAhead.batches`, the other names are those of the groups.

    `group` is `Packing.group` where it is a text, else `Planning.group`, as `mesh` always is.
    """
    groups = []
    for group in (Packing, RowRules, Planning):
        names = {field.name for field in fields(group)} & options.keys()
        if group is Packing and not isinstance(options.get("group"), str):
            names -= {"group"}
        given = {name: options.pop(name) for name in names}
        if group is Planning and "mesh" in options:
            given["group"] = options.pop("mesh")
        groups.append(group(**given))
    assert not options, f"no group has {sorted(options)}"
    packing, rows, planning = groups
    look_ahead = LookAhead(ahead, processes, planner)
    return DCPDataloader(
        dataset, mask_fn, packing, rows=rows, planning=planning, look_ahead=look_ahead
    )
