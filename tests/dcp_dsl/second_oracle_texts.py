"""Draw texts of the mask language and samples that fit them, from a seed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from plain_layout import Refused
from second_oracle import Evaluator, FileKey, Frame, Pair, Scope
from second_oracle_masks import Masks, Segment
from second_oracle_parser import Parser

Columns = dict[str, Any]
LIMIT = 13  # tokens: small enough for an oracle that visits every pair


@dataclass
class Part:
    """A part of a layout: a group if it has `inner`, else a leaf of `scale * column + extra`."""

    name: str | None
    is_repeated: bool
    inner: list["Part"] = field(default_factory=list)
    column: str | None = None
    scale: int = 1
    extra: int = 0
    is_rest: bool = False
    is_branch: bool = False
    parents: str | None = None
    is_forked: bool = False
    is_join: bool = False

    def text(self) -> str:
        star = "*" if self.is_repeated else ""
        token = "token " if self.is_forked else ""
        star += f" from {token}{self.parents}" if self.parents else ""
        word = "branch " if self.is_branch else "join " if self.is_join else ""
        name = word + (self.name or "")
        if self.inner:
            return f"{name}({' '.join(part.text() for part in self.inner)}){star}"
        if self.is_rest:
            return f"{name}[..]"
        scale = f"{self.scale} * " if self.scale > 1 and self.column else ""
        length = [f"{scale}{self.column}"] if self.column else []
        extra = [str(self.extra)] if self.extra or not self.column else []
        return f"{name}[{' + '.join(length + extra)}]{star}"

    def columns(self) -> list[str]:
        own = [name for name in (self.column, self.parents) if name]
        return [c for part in self.inner for c in part.columns()] + own

    def fill(self, rng: Random, begin: int, at: int) -> tuple[Columns, int]:
        """Draw the columns of this part at `at`, and how many tokens they make.

        The repetition around it begins at `begin`.
        """
        if not self.is_repeated:
            return self.fill_once(rng, at)
        rounds: list[tuple[Columns, int]] = []
        starts = []
        for _ in range(rng.choice([0, 1, 1, 2, 2, 3])):
            starts.append(at + sum(length for _, length in rounds))
            rounds.append(self.fill_once(rng, starts[-1]))
        names = [name for name in self.columns() if name != self.parents]
        columns: Columns = {name: [each[name] for each, _ in rounds] for name in names}
        if self.parents:
            columns[self.parents] = [
                rng.choice([-1, *range(begin, start)] if self.is_forked else range(-1, i))
                for i, start in enumerate(starts)
            ]
        return columns, sum(length for _, length in rounds)

    def fill_once(self, rng: Random, at: int) -> tuple[Columns, int]:
        if self.inner:
            drawn: list[tuple[Columns, int]] = []
            for part in self.inner:
                drawn.append(part.fill(rng, at, at + sum(length for _, length in drawn)))
            columns = {name: value for each, _ in drawn for name, value in each.items()}
            return columns, sum(length for _, length in drawn)
        value = rng.choice([0, 0, 1, 1, 2, 3, 4]) if self.column or self.is_rest else 0
        if self.is_rest:
            return {}, value
        return {self.column: value} if self.column else {}, self.scale * value + self.extra


class Text:
    """One text and the samples that fit it."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.segments: list[Segment] = []
        self.tokens: list[str] = []
        self.statements: list[str] = []
        self.layout: list[Part] = []
        self.per_token: dict[str, Callable[[int], list[Any]]] = {}
        self.rows: list[str] = []
        self.lists: list[str] = []  # columns of lists, as they are read: `.sel`, `.doc.sel`
        self.owned: list[str] = []  # columns of integers of instances
        self.per_instance: dict[str, tuple[str, bool]] = {}  # segment, and whether it has lists
        self.used = 0
        self.constants: dict[str, int] = {}
        self.has_derived = False  # segments made of others, which are not imported
        self.layouts: list[list[str]] = []
        self.tree: list[str] = []  # names of the layout with branches, if there is one
        self.declare()
        self.masks = Masks(self)
        *helpers, main = self.masks.statements()
        self.imported, names = "", [*self.tokens, *[each.name for each in self.segments]]
        can_move = all(each.parent is None for each in self.segments if "tile" in each.name)
        can_move = can_move and not self.per_instance and not self.has_derived
        can_move = can_move and not self.constants
        if names and can_move and self.chance(20):  # tiles inside a segment are not imported
            self.imported = "\n".join([*self.statements, *helpers])
            names += [f"h{i}" for i in range(len(helpers))]
            self.source = f'import {", ".join(names)} from "lib.dcpm"\n{main}'
        else:
            self.source = "\n".join([*self.statements, *helpers, main])

    def new_name(self, stem: str) -> str:
        self.used += 1
        return f"{stem}{self.used}"

    def chance(self, percent: int) -> bool:
        return self.rng.random() * 100 < percent

    def declare_constants(self) -> None:
        """Declare constants, of which one names the one declared behind it."""
        if not self.chance(25):
            return
        first, second = self.new_name("size"), self.new_name("size")
        low, more = self.rng.randint(1, 4), self.rng.randint(0, 2)
        self.statements += [f"let {first} = {second} + {more}", f"let {second} = {low}"]
        self.constants = {first: low + more, second: low}

    def declare(self) -> None:
        self.declare_constants()
        if self.chance(80):
            self.declare_layout()
        if self.chance(25):
            self.declare_halves()
        for kind in ("flags", "spans", "positions", "ids"):
            if self.chance(12):
                self.declare_columns(kind)
        if self.chance(35):
            self.declare_tiles()
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            name = self.new_name("drop")
            self.tokens.append(name)
            column = self.new_name("at") if self.chance(30) else name
            self.statements.append(f"token {name}" + (f" = {column}" if column != name else ""))
            self.per_token[column] = self.integers
        if self.chance(25):
            self.rows.append(self.new_name("wide"))
        if self.chance(25):
            name = self.new_name("sel")
            self.statements.append(f"token {name}[2]")
            self.lists.append(name)
            self.per_token[name] = lambda n: [self.few(n) for _ in range(n)]
        if any(each.has_numbers for each in self.segments):
            self.declare_of_segments()

    def declare_of_segments(self) -> None:
        if self.chance(30):
            owners = [each.name for each in self.segments if each.has_numbers]
            self.declare_owned(self.rng.choice(owners))
        if self.chance(30):
            self.declare_filter()
        if self.chance(25):
            self.declare_union()

    def few(self, n: int) -> list[int]:
        return self.rng.choices([each for each in (-1, 0, 0, 1, 2) if each < max(n, 1)], k=2)

    def declare_owned(self, owner: str) -> None:
        name, is_listed = self.new_name("own"), self.chance(50)
        size = "[2]" if is_listed else ""
        self.statements.append(f"column {name}{size} in {owner}")
        (self.lists if is_listed else self.owned).append(f"{owner}.{name}")
        self.per_instance[name] = owner, is_listed

    def declare_filter(self) -> None:
        base = self.rng.choice([each for each in self.segments if each.has_numbers])
        name, kind = self.new_name("pick"), self.new_name("kind")
        condition = self.rng.choice(
            ["K == 1", "K != 1", "K > 0 and not K == 2", "K == 0 or K == 2", "4 // K == 2",
             "K * 2 - 1 >= max(K, 1)", "log2(K) == 1 or exp2(K) == 1", "true",
             "K % 2 == 0 and K < 2"]
        )  # fmt: skip
        self.statements += [
            f"column {kind} in {base.name}",
            f"segment {name} = {base.name} where {condition.replace('K', kind)}",
        ]
        self.owned.append(f"{base.name}.{kind}")
        self.per_instance[kind] = base.name, False
        self.segments.append(Segment(name, base.parent))
        self.has_derived = True

    def declare_union(self) -> None:
        able = [each.name for each in self.segments if each.has_numbers]
        beside = [names for names in self.layouts if len(names) > 1]
        is_beside = bool(beside) and self.chance(80)
        pool = self.rng.choice(beside) if is_beside else able
        if len(pool) > 1:
            name = self.new_name("both")
            self.statements.append(f"segment {name} = {' or '.join(self.rng.sample(pool, 2))}")
            # others may share tokens, so that only `in` and `same` ask about them
            self.segments.append(Segment(name, has_numbers=is_beside))
            self.has_derived = True

    def count(self, owner: str, columns: Columns, length: int) -> int:
        """Count the instances of a segment as the oracle lays them out; 0 where it cannot."""
        if not length:
            return 0
        file = FileKey("", Parser("\n".join(self.statements)).module())
        key = Evaluator().segment(
            ("name", owner), Scope(file, {}), Pair(frame := Frame(columns, 0, length), 0, 0)
        )
        try:
            return len(frame.instances(key))
        except Refused:
            return 0

    def integers(self, n: int) -> list[int]:
        return [self.rng.randint(-1, n + 1) for _ in range(n)]

    def declare_layout(self) -> None:
        name = self.new_name("seg")
        self.layout = self.parts(name, 0, None, is_listed=False)
        if self.chance(30):
            rest = Part(self.new_name("rest"), is_repeated=False, is_rest=True)
            self.layout.insert(self.rng.randint(0, len(self.layout)), rest)
            self.segments.append(Segment(str(rest.name)))
        text = " ".join(part.text() for part in self.layout)
        self.statements.append(f"segment {name} = {text}")
        self.segments.append(Segment(name))
        if "branch " in text:
            self.tree = [each.name for each in self.segments]
        names = [part.name for part in self.layout if part.name]
        self.layouts += [names] if names else []

    def parts(self, top: str, depth: int, parent: str | None, is_listed: bool) -> list[Part]:
        count = self.rng.choice([1, 1, 2, 2, 3] if depth < 2 else [1, 1, 2])
        parts = [self.part(depth, parent, is_listed) for _ in range(count)]
        if is_listed and not any(part.columns() for part in parts):
            return [*parts, Part(None, is_repeated=False, column=self.new_name("c"))]
        return parts

    def part(self, depth: int, parent: str | None, is_listed: bool) -> Part:
        is_group = depth < 2 and self.chance(40)
        is_repeated = self.chance(60)
        name = self.new_name("doc" if is_group else "part") if self.chance(85) else None
        if name:
            self.segments.append(Segment(name, parent))
        if is_group:
            inner = self.parts("", depth + 1, name or parent, is_listed or is_repeated)
            if is_repeated and not any(part.columns() for part in inner):
                is_repeated = False
            return self.forked(Part(name, is_repeated, inner))
        if not is_repeated and self.chance(15):
            return self.forked(Part(name, is_repeated=False, extra=self.rng.randint(0, 3)))
        scale, extra = self.rng.choice([1, 1, 1, 2]), self.rng.choice([0, 0, 0, 1])
        if is_repeated:
            scale, extra = 1, 0
        column = self.new_name("c")
        return self.forked(Part(name, is_repeated, column=column, scale=scale, extra=extra))

    def forked(self, part: Part) -> Part:
        """Make some parts branches, some of them with a column of parents."""
        part.is_branch = self.chance(30)
        part.is_join = not part.is_branch and self.chance(25)
        if part.is_branch and part.is_repeated and self.chance(50):
            part.parents = self.new_name("from")
            part.is_forked = self.chance(50)
            if not part.inner and self.chance(20):
                part.column, part.extra = None, self.rng.randint(0, 2)
        return part

    def declare_halves(self) -> None:
        name, first, second = (self.new_name(stem) for stem in ("half", "noisy", "clean"))
        length = self.rng.choice(
            [
                *(f"len // {c}" for c in self.constants),
                "len // 2",
                "len // 3",
                "(len + 1) // 2",
                "len - len // 2",
            ]
        )
        self.statements.append(f"segment {name} = {first}[{length}] {second}[..]")
        self.segments += [Segment(name), Segment(first), Segment(second)]
        self.layouts.append([first, second])

    def declare_columns(self, kind: str) -> None:
        name, column = self.new_name(kind), self.new_name("c")
        parts = [self.new_name("role") for _ in "ab"] if kind == "ids" and self.chance(70) else []
        names = f" as {', '.join(parts)}" if parts else ""
        self.statements.append(f"segment {name} = {kind}({column}){names}")
        self.segments += [Segment(part) for part in parts]
        self.segments.append(Segment(name, has_numbers=kind != "ids"))
        choices = {
            "flags": lambda n: self.rng.choices([0, 1], k=n),
            "ids": lambda n: self.rng.choices([-1, 0, 1] if parts else [-1, 0, 4, 2], k=n),
            "positions": lambda n: self.rng.choices([0, 1, 2], k=n),
            "spans": self.spans,
        }
        self.per_token[column] = choices[kind]

    def spans(self, n: int) -> list[list[int]]:
        borders = sorted(self.rng.sample(range(n + 1), min(n + 1, self.rng.choice([0, 2, 4]))))
        spans = [list(pair) for pair in zip(borders[::2], borders[1::2], strict=False)]
        return self.rng.sample(spans, len(spans))

    def declare_tiles(self) -> None:
        homes = [each for each in self.segments if each.has_numbers]
        home = self.rng.choice(homes) if homes and self.chance(60) else None
        name = self.new_name("tile")
        inside = f" in {home.name}" if home else ""
        size = self.rng.choice([*self.constants, str(self.rng.randint(1, 4))])
        self.statements.append(f"segment {name} = every {size}{inside}")
        self.segments.append(Segment(name, home.name if home else None))

    def sample(self) -> tuple[Columns, int]:
        columns, length = self.laid_out()
        for name, draw in self.per_token.items():
            columns[name] = draw(length)
        for name in self.rows:
            columns[name] = self.rng.randint(1, 4)
        for name, (owner, is_listed) in self.per_instance.items():
            high = 2 if "kind" in name else length + 1
            columns[name] = [
                self.few(length) if is_listed else self.rng.randint(-1, high)
                for _ in range(self.count(owner, columns, length))
            ]
        return columns | self.of_the_library(length), length

    def of_the_library(self, length: int) -> Columns:
        """Draw the columns that masks of the standard library read."""
        prefix = self.rng.randint(0, length)
        return {
            "prefix_len": prefix,
            "doc_lens": self.partition(length),
            "demo_lens": self.partition(length),
            "chat_lens": self.partition(length - prefix),
            "passage_lens": self.partition(self.rng.randint(0, length)),
            "subtree_end": self.integers(length),
        }

    def partition(self, length: int) -> list[int]:
        borders = sorted(self.rng.choices(range(length + 1), k=self.rng.randint(0, 3)))
        return [b - a for a, b in pairwise([0, *borders, length])]

    def laid_out(self) -> tuple[Columns, int]:
        if not self.layout:
            return {}, self.rng.choice([1, 1, 2, 5, 8, 11])
        for _ in range(20):
            values, length = Part(None, is_repeated=False, inner=self.layout).fill(self.rng, 0, 0)
            if length <= LIMIT and (length or self.chance(10)):
                break
        return values, length
