"""Draw texts of the mask language and samples that fit them, from a seed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Columns = dict[str, Any]
LIMIT = 13  # tokens: small enough for an oracle that visits every pair


@dataclass(frozen=True)
class Segment:
    """A name that masks can ask about; `parent` names the segment its instances lie in."""

    name: str
    parent: str | None = None
    has_numbers: bool = True


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

    def text(self) -> str:
        star = "*" if self.is_repeated else ""
        name = self.name or ""
        if self.inner:
            return f"{name}({' '.join(part.text() for part in self.inner)}){star}"
        if self.is_rest:
            return f"{name}[..]"
        scale = f"{self.scale} * " if self.scale > 1 and self.column else ""
        length = [f"{scale}{self.column}"] if self.column else []
        extra = [str(self.extra)] if self.extra or not self.column else []
        return f"{name}[{' + '.join(length + extra)}]{star}"

    def columns(self) -> list[str]:
        return [c for part in self.inner for c in part.columns()] + [self.column] * bool(
            self.column
        )

    def fill(self, rng: Random) -> tuple[Columns, int]:
        """Draw the columns of this part, and how many tokens they make."""
        if not self.is_repeated:
            return self.fill_once(rng)
        rounds = [self.fill_once(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))]
        columns = {name: [each[name] for each, _ in rounds] for name in self.columns()}
        return columns, sum(length for _, length in rounds)

    def fill_once(self, rng: Random) -> tuple[Columns, int]:
        if self.inner:
            drawn = [part.fill(rng) for part in self.inner]
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
        self.used = 0
        self.layouts: list[list[str]] = []
        self.declare()
        self.masks = Masks(self)
        self.source = "\n".join([*self.statements, *self.masks.statements()])

    def new_name(self, stem: str) -> str:
        self.used += 1
        return f"{stem}{self.used}"

    def chance(self, percent: int) -> bool:
        return self.rng.random() * 100 < percent

    def declare(self) -> None:
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
            return Part(name, is_repeated, inner)
        if not is_repeated and self.chance(15):
            return Part(name, is_repeated=False, extra=self.rng.randint(0, 3))
        scale, extra = self.rng.choice([1, 1, 1, 2]), self.rng.choice([0, 0, 0, 1])
        if is_repeated:
            scale, extra = 1, 0
        return Part(name, is_repeated, column=self.new_name("c"), scale=scale, extra=extra)

    def declare_halves(self) -> None:
        name, first, second = (self.new_name(stem) for stem in ("half", "noisy", "clean"))
        length = self.rng.choice(["len // 2", "len // 3", "(len + 1) // 2", "len - len // 2"])
        self.statements.append(f"segment {name} = {first}[{length}] {second}[..]")
        self.segments += [Segment(name), Segment(first), Segment(second)]
        self.layouts.append([first, second])

    def declare_columns(self, kind: str) -> None:
        name, column = self.new_name(kind), self.new_name("c")
        parts = [self.new_name("role") for _ in range(2)] if kind == "ids" else []
        names = f" as {', '.join(parts)}" if parts else ""
        self.statements.append(f"segment {name} = {kind}({column}){names}")
        self.segments += [Segment(part) for part in parts]
        self.segments.append(Segment(name, has_numbers=kind != "ids"))
        choices = {
            "flags": lambda n: self.rng.choices([0, 1], k=n),
            "ids": lambda n: self.rng.choices([-1, 0, 1], k=n),
            "positions": lambda n: self.rng.choices([0, 1, 2], k=n),
            "spans": self.spans,
        }
        self.per_token[column] = choices[kind]

    def spans(self, n: int) -> list[list[int]]:
        borders = sorted(self.rng.sample(range(n + 1), min(n + 1, self.rng.choice([0, 2, 4]))))
        return [list(pair) for pair in zip(borders[::2], borders[1::2], strict=False)]

    def declare_tiles(self) -> None:
        homes = [each for each in self.segments if each.has_numbers]
        home = self.rng.choice(homes) if homes and self.chance(60) else None
        name = self.new_name("tile")
        inside = f" in {home.name}" if home else ""
        self.statements.append(f"segment {name} = every {self.rng.randint(1, 4)}{inside}")
        self.segments.append(Segment(name, home.name if home else None))

    def sample(self) -> tuple[Columns, int]:
        columns, length = self.laid_out()
        for name, draw in self.per_token.items():
            columns[name] = draw(length)
        for name in self.rows:
            columns[name] = self.rng.randint(1, 4)
        return columns, length

    def laid_out(self) -> tuple[Columns, int]:
        if not self.layout:
            return {}, self.rng.choice([1, 1, 2, 5, 8, 11])
        for _ in range(20):
            drawn = [part.fill(self.rng) for part in self.layout]
            length = sum(count for _, count in drawn)
            if length <= LIMIT and (length or self.chance(10)):
                break
        return {name: value for each, _ in drawn for name, value in each.items()}, length


class Masks:
    """Expressions over the names of a text, typed as docs/language/types.md has it."""

    def __init__(self, text: Text) -> None:
        self.text, self.rng, self.pick = text, text.rng, text.rng.choice
        self.positions = ["q", "k"]
        self.sizes: list[str] = []
        self.local: list[Segment] = []
        self.functions: list[str] = []
        self.calls: list[str] = []

    def number(self, low: int = 0, high: int = 6) -> str:
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
        name, kind = f"h{index}", self.pick(["size", "mask", "pos", "tiles"])
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
        if depth > 0:
            choices += [
                lambda: f"{self.number(1, 3)} * ({self.length(depth - 1)})",
                lambda: f"({self.length(depth - 1)}) {self.pick('+-')} ({self.length(0)})",
                lambda: f"-({self.length(depth - 1)})",
                lambda: f"clamp({self.length(depth - 1)}, 1, {self.number(1, 5)})",
            ]
        return self.pick(choices)()

    def integer(self, depth: int) -> str:
        choices: list[Any] = [lambda: self.number(0, 4)]
        choices += [lambda: f"({self.length(0)}) {self.pick(['//', '%'])} {self.divisor()}"] * 2
        choices += [lambda: f"{self.position(0)} {self.pick(['//', '%'])} {self.divisor()}"]
        choices += [lambda: f"{self.position(1)}.{self.pick(self.text.tokens)}"] * (
            3 * bool(self.text.tokens)
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
        return self.pick([self.number(1, 4), *[f"row.{name}" for name in self.text.rows]])

    def sign(self) -> str:
        return self.pick(["<", "<=", ">", ">=", "==", "!="])

    def compared(self) -> str:
        draw = self.pick([self.position, self.length, self.integer])
        text = f"{draw(2)} {self.sign()} {draw(1)}"
        return f"{text} {self.sign()} {draw(0)}" if self.text.chance(15) else text

    def asked(self) -> str:
        segment = self.pick(self.segments())
        name, place = segment.name, self.position(1)
        choices = [f"{place} in {name}", f"{place} not in {name}", f"same({name})"]
        if segment.has_numbers:
            ends = f"{self.pick(['first', 'last'])}({name}{self.pick(['', ', 1', ', 2'])})"
            other = f"{self.position(1)}.{name}"
            choices += [
                f"{place} in {ends}",
                f"same({ends})",
                f"{place}.{name} {self.sign()} {other} {self.pick('+-')} {self.number(0, 2)}",
                f"{place}.{name} {self.sign()} {self.number(0, 3)}",
                f"abs({place}.{name} - {other}) {self.sign()} {self.number(0, 2)}",
            ]
        return self.pick(choices)

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
                "natten(3, 5, 1)", "sta(1, 4, 3, r = 1)",
            ]
        )  # fmt: skip

    def rules(self) -> str:
        subjects = self.pick(self.text.layouts)
        rules = [f"{name} sees {self.targets()}" for name in subjects]
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
        choices += [self.asked] * (3 * bool(self.segments()))
        choices += [self.rules] * bool(self.text.layouts)
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
            return f"({self.mask(depth - 1)}) per {self.pick(names)}" if names else self.atom()
        left, right = self.mask(depth - 1), self.mask(depth - 1)
        return f"({left}) {kind} ({right})" if self.text.chance(70) else f"{left} {kind} {right}"
