"""Draw texts whose masks have keys of another sequence, and samples that fit them, from a seed."""

from itertools import pairwise
from random import Random
from typing import Any

from second_oracle_texts import Columns, Text

SIGNS = ["<", "<=", ">", ">=", "==", "!="]
MOST = 9  # tokens of a sequence


class AlignedText(Text):
    """A text in which queries are tokens of the keys' sequence, at one of two corners."""

    def __init__(self, rng: Random) -> None:
        self.keys = ""
        while not self.keys:  # until a text has one layout, and imports nothing
            super().__init__(rng)
            laid = [s for s in self.statements if s.startswith(("segment seg", "segment half"))]
            if len(laid) == 1 and "[..]" not in laid[0] and not self.imported:
                self.keys = laid[0].split()[1]
        self.corner = rng.choice(["bottom_right", "bottom_right", "top_left"])
        text = f"@keys({self.keys}, {self.corner}) @ahead @partial mask a ="
        self.source = self.source.replace("@ahead @partial mask a =", text)

    def sample(self) -> tuple[Columns, int]:
        columns, keys = super().sample()
        most = keys if self.corner == "top_left" else keys + 2
        return columns, self.rng.randint(0, most)


class CrossText:
    """A text in which queries and keys are tokens of two sequences."""

    imported = ""

    def __init__(self, rng: Random) -> None:
        self.rng, self.pick = rng, rng.choice
        self.queries = {"target": 0, "head": 1, "body": 1}
        self.keys = {"source": 0, "left": 1, "right": 1}
        self.mine = {"q": "mine", "k": "yours"}
        self.source = f"""
        segment target = (head[head_lens] body[body_lens])*
        segment source = lead[lead_len] (left[left_lens] right[right_lens])*
        segment tags = ids(tag_ids) as red, blue
        segment marks = {self.pick(["flags", "positions"])}(marks)
        segment page = every 2 in right
        token mine  token yours = theirs  token sel[2]
        column wide in left
        @keys(source) @ahead @partial mask a = {self.mask(3)}"""

    def sample(self) -> tuple[Columns, int]:
        heads, bodies = (self.lengths(3) for _ in range(2))
        size = min(len(heads), len(bodies))
        lefts, rights = (self.lengths(4) for _ in range(2))
        count = min(len(lefts), len(rights))
        columns: Columns = {
            "head_lens": heads[:size], "body_lens": bodies[:size], "left_lens": lefts[:count],
            "right_lens": rights[:count], "lead_len": self.rng.randint(0, 2),
        }  # fmt: skip
        n = sum(columns["head_lens"] + columns["body_lens"])
        keys = columns["lead_len"] + sum(columns["left_lens"] + columns["right_lens"])
        draw = lambda low, high, length: [self.rng.randint(low, high) for _ in range(length)]  # noqa: E731
        return columns | {
            "tag_ids": draw(-1, 1, n), "marks": draw(0, 1, keys), "mine": draw(-1, 4, n),
            "theirs": draw(-1, 4, keys), "sel": [draw(-1, 3, 2) for _ in range(n)],
            "wide": draw(0, 3, count), "limit": self.rng.randint(0, 4),
        }, n  # fmt: skip

    def lengths(self, most: int) -> list[int]:
        borders = sorted(self.rng.choices(range(MOST // 2 + 1), k=self.rng.randint(1, most)))
        return [b - a for a, b in pairwise([0, *borders])]

    def small(self) -> str:
        return str(self.rng.randint(0, 4))

    def names(self, side: str) -> list[str]:
        return list(self.queries if side == "q" else self.keys)

    def position(self, side: str) -> str:
        near = f"({side} {self.pick('+-')} {self.rng.randint(1, 2)})"
        border = f"{side}.{self.pick(self.names(side))}.{self.pick(['start', 'end'])}"
        return self.pick([side, side, side, near, border, f"max({side}, {self.small()})"])

    def number(self, side: str) -> str:
        name, at = self.pick(self.names(side)), self.position(side)
        own = ["k.left.wide", "k.page.pos"] if side == "k" else ["q.red.len"]
        return self.pick(
            [
                f"{at} // 2", f"{at} % 3", f"{at}.{name}.pos", f"{at}.{name}.len", "row.limit",
                f"{at}.{name}.count", f"{at}.{self.mine[side]}", f"{name}.count", *own,
            ]
        )  # fmt: skip

    def atom(self) -> str:
        side, sign = self.pick("qk"), self.pick(SIGNS)
        name, other = self.pick(self.names("q")), self.pick(self.names("k"))
        own = self.pick(self.names(side))
        extra = ["blue", "red", "tags"] if side == "q" else ["marks", "page", "lead"]
        choices: list[Any] = [
            f"{self.position('q')}.{name} {sign} {self.position('k')}.{other}",
            f"{self.position('q')}.{name} {sign} {self.position('k')}.{other}",
            f"{self.number('q')} {sign} {self.number('k')}",
            f"k {sign} ({self.position('q')}) // 2",
            f"k * 2 + 1 {sign} {self.position('q')}",
            f"log2({self.position('k')}) {sign} {self.position('q')} % 3",
            f"{self.position(side)} {sign} {self.small()}",
            f"{self.position(side)} {self.pick(['in', 'not in'])} {self.pick([own, *extra])}",
            f"{side} in {self.pick(['first', 'last'])}({own}, {self.rng.randint(1, 2)})",
            f"{self.number(side)} {sign} {self.small()}",
            f"k {self.pick(['', '// 2 '])}in q.sel",
            "{ head sees left, right  body sees lead }",
            self.pick(["true", "full"]),
        ]
        return f"({self.pick(choices)})"

    def mask(self, depth: int) -> str:
        kind = self.pick(["atom", "and", "and", "or", "minus", "not"])
        if depth == 0 or kind == "atom":
            return self.atom()
        if kind == "not":
            return f"not ({self.mask(depth - 1)})"
        return f"({self.mask(depth - 1)} {kind} {self.mask(depth - 1)})"
