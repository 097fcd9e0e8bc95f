"""Draw mask expressions over the names of a text, from a seed."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Segment:
    """A name that masks can ask about; `parent` names the segment its instances lie in."""

    name: str
    parent: str | None = None
    has_numbers: bool = True


class Masks:
    """Expressions over the names of a text, typed as docs/language/mask.md has it."""

    def __init__(self, text: Any) -> None:
        self.text, self.rng, self.pick = text, text.rng, text.rng.choice
        self.positions = ["q", "k"]
        self.sizes: list[str] = []
        self.local: list[Segment] = []
        self.functions: list[str] = []
        self.calls: list[str] = []

    def number(self, low: int = 0, high: int = 6) -> str:
        known = [name for name, value in self.text.constants.items() if low <= value <= high]
        if known and self.text.chance(40):
            return str(self.pick(known))
        return str(self.rng.randint(low, high))

    def statements(self) -> list[str]:
        found = [self.helper(i) for i in range(self.pick([0, 0, 1, 2]))]
        where = []
        if self.text.chance(25):
            where.append(self.local_tiles())
        if self.text.chance(20):
            where.append(f"f(t) = {self.pick(['t // 3', 't % 3', 't - 1', 'max(t, 2)'])}")
            self.functions.append("f")
        if self.text.chance(20):
            self.positions.append("t")
            where.append(f"g(t) = {self.mask(2)}")
            self.positions.remove("t")
            self.calls.append(f"g({self.position(1)})")
        if self.text.chance(20):
            where.append(f"v = {self.mask(2)}")
            self.calls.append("v")
        body = self.mask(self.pick([1, 2, 3, 3, 4]))
        return [*found, f"@ahead @partial mask a = {body}" + self.where(where)]

    def where(self, bindings: list[str]) -> str:
        return " where " + ", ".join(bindings) if bindings else ""

    def local_tiles(self) -> str:
        homes = [each for each in self.text.segments if each.has_numbers]
        home = self.pick(homes) if homes and self.text.chance(50) else None
        self.local.append(Segment("b", home.name if home else None))
        size = self.pick([*self.sizes, self.number(1, 4)])
        return f"b = every {size}" + (f" in {home.name}" if home else "")

    def helper(self, index: int) -> str:
        name, kind = f"h{index}", self.pick(["size", "mask", "pos", "tiles", "bool"])
        if kind == "size":
            self.sizes = ["w"]
            text = f"mask {name}(w: tokens = {self.number(1, 4)}) = {self.mask(2)}"
            call = self.pick([name, f"{name}({self.number(1)})", f"{name}(w = len // 2)"])
        elif kind == "mask":
            self.calls.append("m")
            text = f"mask {name}(m: mask, j: int = 2) = {self.mask(2)}"
            self.calls.remove("m")
            call = f"{name}({self.pick(['causal', 'k < 3', self.mask(1)])})"
        elif kind == "pos":
            self.positions.append("t")
            text = f"mask {name}(t: pos) = {self.mask(2)}"
            self.positions.remove("t")
            call = f"{name}({self.position(1)})"
        elif kind == "bool":
            self.calls.append("c")
            text = f"mask {name}(c: bool, w: tokens = 2) = {self.mask(2)}"
            self.calls.remove("c")
            call = f"{name}({self.pick(['len > 3', 'true', 'q - k < 2'])}, w = {self.number(1)})"
        else:
            self.sizes = ["n"]
            tiles = self.local_tiles()
            text = f"mask {name}(n: tokens = 3) = {self.mask(2)} where {tiles}"
            self.local.clear()
            call = self.pick([name, f"{name}({self.number(1, 4)})"])
        self.sizes = []
        self.calls.append(call)
        return f"@ahead @partial {text}"

    def segments(self) -> list[Segment]:
        return [*self.text.segments, *self.local]

    def numbered(self) -> list[Segment]:
        return [each for each in self.segments() if each.has_numbers]

    def position(self, depth: int) -> str:
        choices = [lambda: self.pick(self.positions)] * 4
        if depth > 0:
            choices += [
                lambda: f"({self.position(depth - 1)} {self.pick('+-')} {self.number(1, 3)})",
                lambda: f"{self.pick(['max', 'min'])}({self.position(0)}, {self.position(0)})",
            ]
            if self.numbered():
                choices += [lambda: self.border(depth)] * 2
        return self.pick(choices)()

    def border(self, depth: int) -> str:
        name = self.pick(self.numbered()).name
        return f"{self.position(depth - 1)}.{name}.{self.pick(['start', 'end'])}"

    def length(self, depth: int) -> str:
        choices = [lambda: self.pick(["len", *self.sizes, self.number(1)])] * 2
        choices.append(lambda: f"{self.position(1)} - {self.position(0)}")
        choices.append(lambda: f"abs({self.position(0)} - {self.position(0)})")
        if self.numbered():
            name = self.pick(self.numbered()).name
            choices += [lambda: f"{self.position(1)}.{name}.{self.pick(['len', 'pos'])}"] * 2
        if self.text.tree:
            choices += [lambda: f"{self.position(1)}.path"] * 4
            choices += [lambda: f"{self.position(1)}.{self.pick(self.text.tree)}.path"]
        if depth > 0:
            choices += [
                lambda: f"{self.number(1, 3)} * ({self.length(depth - 1)})",
                lambda: f"({self.length(depth - 1)}) {self.pick('+-')} ({self.length(0)})",
                lambda: f"-({self.length(depth - 1)})",
                lambda: f"clamp({self.length(depth - 1)}, 1, {self.number(1, 5)})",
                lambda: f"{self.pick(['exp2', 'log2', 'log2'])}({self.length(depth - 1)})",
            ]
        return self.pick(choices)()

    def integer(self, depth: int) -> str:
        choices: list[Any] = [lambda: self.number(0, 4)]
        choices += [lambda: f"({self.length(0)}) {self.pick(['//', '%'])} {self.divisor()}"] * 2
        choices += [lambda: f"{self.position(0)} {self.pick(['//', '%'])} {self.divisor()}"]
        choices += [lambda: f"{self.position(1)}.{self.pick(self.text.tokens)}"] * (
            3 * bool(self.text.tokens)
        )
        choices += [lambda: f"{self.pick('qk')}.{self.pick(self.text.owned)}"] * (
            3 * bool(self.text.owned)
        )
        choices += [lambda: f"row.{self.pick(self.text.rows)}"] * bool(self.text.rows)
        if self.functions:
            choices.append(lambda: f"f({self.position(0)})")
        if self.numbered():
            choices += [lambda: f"{self.position(1)}.{self.pick(self.numbered()).name}.count"]
        if roots := [each.name for each in self.numbered() if each.parent is None]:
            choices.append(lambda: f"{self.pick(roots)}.count")
        if depth > 0:
            choices.append(lambda: f"({self.integer(0)}) {self.pick('+-*')} ({self.integer(0)})")
        return self.pick(choices)()

    def divisor(self) -> str:
        read = [f"{self.pick('qk')}.{name}" for name in (*self.text.owned, *self.text.tokens)]
        return self.pick([self.number(1, 4), *[f"row.{name}" for name in self.text.rows], *read])

    def sign(self) -> str:
        return self.pick(["<", "<=", ">", ">=", "==", "!="])

    def compared(self) -> str:
        draw = self.pick([self.position, self.length, self.integer])
        text = f"{draw(2)} {self.sign()} {draw(1)}"
        return f"{text} {self.sign()} {draw(0)}" if self.text.chance(15) else text

    def listed(self) -> str:
        draw = self.pick([self.position, self.integer, lambda _: f"{self.position(0)} // 2"])
        read = f"{self.pick('qk')}.{self.pick(self.text.lists)}"
        return f"{draw(1)} {self.pick(['in', 'in', 'not in'])} {read}"

    def ends(self, segment: str) -> str:
        return f"{self.pick(['first', 'last'])}({segment}{self.pick(['', ', 1', ', 2', ', 3'])})"

    def asked(self) -> str:
        segment = self.pick(self.segments())
        name, place = segment.name, self.position(1)
        choices = [f"{place} in {name}", f"{place} not in {name}", f"same({name})"]
        if segment.has_numbers and self.text.chance(30):
            either = f"({name} or {self.pick(self.numbered()).name})"
            choices += [f"{place} in {either}", f"{place} not in {either}", f"same{either}"]
        if segment.has_numbers:
            ends = self.ends(name)
            if self.text.chance(20):
                ends = self.ends(ends)
            other = f"{self.position(1)}.{name}"
            choices += [
                f"{place} in {ends}",
                f"same({ends})",
                f"{place}.{name} {self.sign()} {other} {self.pick('+-')} {self.number(0, 2)}",
                f"{place}.{name} {self.sign()} {self.number(0, 3)}",
                f"abs({place}.{name} - {other}) {self.sign()} {self.number(0, 2)}",
            ]
        return self.pick(choices)

    def counted(self) -> str:
        """Ask for the count of a segment without a token, inside `per`."""
        nested = [each for each in self.numbered() if each.parent]
        roots = [each.name for each in self.numbered() if each.parent is None]
        if roots and (not nested or self.text.chance(60)):
            return f"({self.pick(roots)}.count {self.sign()} {self.number(1, 3)})"
        if not nested:
            return f"({self.atom()})"
        each, token = self.pick(nested), self.pick("qk")
        text = f"{token}.{each.name} {self.sign()} {each.name}.count - 1"
        return f"({text}) per {each.parent}"

    def library(self) -> str:
        size = lambda: self.number(1, 5)  # noqa: E731
        return self.pick(
            [
                "causal", "causal", "full", f"sliding({size()})", f"chunked({size()})",
                f"streaming({size()}, {size()})", f"local(window = {size()})",
                f"dilated({size()}, {size()})", f"strided({size()})", f"fixed({size()}, 1)",
                f"fa_window({size()}, {size()})", f"longformer({size()}, 1)",
                f"blockwise({size()}, {size()})", f"blockwise_dcp({size()}, 2)",
                f"block_diffusion({size()})", f"svg_spatial({size()}, 1)",
                "document", "document_full", "demonstrations", "rag", "prefix_lm", "tree",
                f"document_streaming({size()}, {size()})", f"shared_prefix({size()})",
                "natten(3, 5, 1)", "sta(1, 4, 3, r = 1)",
            ]
        )  # fmt: skip

    def rules(self) -> str:
        subjects = self.pick(self.text.layouts)
        rules = [f"{name} sees {self.targets()}" for name in subjects]
        if len(subjects) > 1 and self.text.chance(30):
            rules.append(f"{', '.join(self.rng.sample(subjects, 2))} see {self.targets()}")
        return "{ " + " ".join(rules) + " }"

    def targets(self) -> str:
        names = ["self", "all", *[each.name for each in self.segments()]]
        return ", ".join(
            self.pick(names)
            + self.pick(["", " causally", f" within {self.number(1, 4)}", " causally within 3"])
            for _ in range(self.pick([1, 1, 2]))
        )

    def atom(self) -> str:
        choices = [self.compared, self.compared, self.library]
        choices += [self.listed] * (3 * bool(self.text.lists))
        choices += [self.asked] * (3 * bool(self.segments()))
        choices += [self.rules] * bool(self.text.layouts)
        if self.text.tree:
            choices += [
                lambda: self.pick(["paths", "paths", f"paths({self.pick(self.text.tree)})"])
            ] * 4
        choices += [lambda: self.pick(self.calls)] * (2 * bool(self.calls))
        choices += [lambda: self.pick(["true", "false"])] * self.text.chance(10)
        return self.pick(choices)()

    def mask(self, depth: int) -> str:
        if depth == 0:
            return self.atom()
        kinds = ["and", "or", "minus", "not", "plain", *["per"] * (2 * bool(self.segments()))]
        kind = self.pick(kinds)
        if kind == "plain":
            return self.mask(depth - 1)
        if kind == "not":
            return f"not ({self.mask(depth - 1)})"
        if kind == "per":
            names = [each.name for each in self.numbered()]
            inner = self.counted() if self.text.chance(20) else f"({self.mask(depth - 1)})"
            return inner + (f" per {self.pick(names)}" if names else "")
        left, right = self.mask(depth - 1), self.mask(depth - 1)
        return f"({left}) {kind} ({right})" if self.text.chance(70) else f"{left} {kind} {right}"
