"""Random texts and samples that use every construct of masks, from a seeded generator.

Texts are random, so some of them mix units; the caller leaves out what the checker refuses.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from dcp_dsl import Mask, Spec, SpecError

LAYOUTS = """
segment part = question[question_len] answer[answer_lens]*
segment seq = (text[text_lens] image["image lens"])* tail[..]
segment pack = doc(head[head_lens] body[body_lens]*)*
segment grove = plant(trunk[trunk_lens] twig(bud[bud_lens]*)* fruit[fruit_lens])*
segment thread = ask[ask_len] branch try(step[step_lens]* branch note[note_lens])* from "tr#y"
segment half = left[len // 2] right[..]
segment tile = every 3
segment inner = every 2 in answer
segment slice = every 2 in plant
segment shred = every 2 in span
segment role = ids(role_ids) as planner, solver, critic
segment word = ids("文 ids")
segment span = spans(span_list)
segment mark = flags(mark_list)
segment turn = positions(position_ids)
token weight
token evict = "for"
mask either(a: mask, w: tokens = 2) = a or sliding(w)
mask after(p: pos, w: tokens) = near(p) and k <= q where near(t) = t - k < w
"""

STRETCHES = (
    "part", "question", "answer", "seq", "text", "image", "tail", "pack", "doc", "head", "body",
    "half", "left", "right", "tile", "inner", "planner", "solver", "critic", "span", "mark",
    "turn", "thread", "ask", "try", "step", "note",
    "grove", "plant", "trunk", "twig", "bud", "fruit", "slice", "shred",
)  # fmt: skip
SEGMENTS = (*STRETCHES, "role", "word")
LIBRARY = (
    "causal", "full", "sliding(3)", "sliding(len // 3)", "streaming(2, 3)", "chunked(4)",
    "local(2)", "blockwise(2, 2)", "true", "false",
)  # fmt: skip
RULES = (
    "{ question sees self causally  answer sees question, self causally }",
    "{ text sees all causally within 4  image sees self  tail sees all }",
    "{ planner sees self  solver sees planner, self causally  critic sees all within 3 }",
    "{ role sees self causally within 5 }",
    "{ doc sees self within 2 }",
)  # fmt: skip


@dataclass(slots=True)
class MaskWriter:
    rng: Random

    def pick(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def position(self, name: str) -> str:
        """Write a position: the token itself or one near it."""
        near = f"({name} {self.pick('+', '-')} {self.rng.randint(1, 3)})"
        return name if self.rng.random() < 0.8 else near

    def number(self, name: str) -> str:
        """Write a number that depends on one position."""
        c, s, at = self.rng.randint(1, 6), self.rng.choice(STRETCHES), self.position(name)
        return self.pick(
            name, f"{name} // {c}", f"{name} % {c}", f"{at}.{s}", f"{at}.{s}.start",
            f"{at}.{s}.end - 1", f"{at}.{s}.pos", f"{at}.{s}.len", f"{at}.weight", f"{at}.evict",
            f"{at}.word", f"clamp({name}, {c}, {c + 3})", f"abs({name} - {c})", f"max({name}, {c})",
            f"{name} // 2 % {c}", f"min({name} + {c}, len - 1)", f"f({name})", f"{name} - mid",
            f"{name} // {name}.{s}.len", f"{self.rng.choice(SEGMENTS)}.count", f"{at}.{s}.count",
            f"{at}.{s}.{self.pick('start', 'end')}.{self.rng.choice(SEGMENTS)}",
            f"{at}.{s}.end.weight", f"{at}.path", f"{at}.path", f"{at}.note.path",
        )  # fmt: skip

    def comparison(self) -> str:
        op, c = self.pick("<=", "<", ">=", ">", "==", "!="), self.rng.randint(0, 8)
        a, b, d = self.number("q"), self.number("k"), self.rng.randint(1, 5)
        s = self.rng.choice(SEGMENTS)
        return self.pick(
            f"{a} {op} {b}", f"{a} {op} {b}", f"q - k {op} {c}", f"{self.pick(a, b)} {op} {c}",
            f"q.{s} - k.{s} {op} {c - 4}", f"{d} * q - {c % 4} * k {op} {c}",
            f"abs({a} - {b}) {op} {c}", f"k {self.pick('<', '<=')} q {op} {c}",
            f"(q - k) % {d} {op} {c % d}", f"q % {d} {self.pick('==', '!=')} k % {d}",
            f"(q - k) // {d} {op} {c - 3}", f"((q - k) // {d} + 1) % 3 {op} 1",
            f"q * k % {d + 1} {op} {c % 3}", f"max(q - k, {c}) {op} {d}",
            f"{a} * {b} {op} {c}", f"(q - k) % (k + 1) {op} {c % 3}", f"len - q {op} {c}",
            f"k.{s} {op} k.{s}.count - {d}", f"max(q, k).{s} {op} {c % 3}",
        )  # fmt: skip

    def atom(self) -> str:
        s, m = self.rng.choice(SEGMENTS), self.rng.randint(0, 3)
        kind = self.rng.random()
        if kind < 0.45:
            return self.comparison()
        at = self.position(self.pick("q", "k"))
        if kind < 0.8:
            return self.pick(
                "paths", "paths", "paths(try)", "q.path - k.path < 2", f"same({s})", f"{at} in {s}",
                f"{at} not in {s}", f"{at} in first({s}, {m})",
                f"{at} in last({s}, {m})", f"{at} in last(b)", "same(b)", "same(c)",
                f"k in first(last({s}, 3))", f"after({at}, {m})", "k < row.limit",
                f"{at} in last(first({s}, 3), {m})", f"{self.pick('max', 'min')}(q, k) in {s}",
            )  # fmt: skip
        return self.rng.choice((*LIBRARY, *RULES))

    def mask(self, depth: int) -> str:
        kind = self.rng.random()
        if depth == 0 or kind < 0.2:
            return self.atom()
        if kind < 0.65:
            op = self.pick("and", "and", "or", "minus")
            return f"({self.mask(depth - 1)} {op} {self.mask(depth - 1)})"
        if kind < 0.75:
            return f"not ({self.mask(depth - 1)})"
        if kind < 0.82:
            return f"either({self.mask(depth - 1)}, {self.rng.randint(0, 3)})"
        return f"({self.mask(depth - 1)}) per {self.rng.choice(STRETCHES)}"

    def statement(self, name: str) -> str:
        """Write a `mask` statement in one line."""
        parent = self.pick("", "", f" in {self.rng.choice(STRETCHES)}")
        every = self.pick(f"{self.rng.randint(1, 5)}", f"{self.rng.randint(1, 5)}", "len // 2 + 1")
        function = self.pick("t // 3", "t % 4 * 2", "clamp(t - mid, 0, len)", "t.tile")
        return (
            f"mask {name}(w: tokens = 4) = {self.mask(3)} where b = every {every}{parent}, "
            f"c = every w, mid = w // 2, f(t) = {function}"
        )


def write_sample(rng: Random, longest: int = 17) -> tuple[dict[str, Any], int]:
    """Return columns that fill all layouts at once, and the length; parts may be empty."""
    length = rng.randint(0, longest)

    def parts(total: int, most: int) -> list[int]:
        cuts = [rng.randint(0, total) for _ in range(rng.randint(0, most))]
        cuts += rng.choices([0, *cuts, total], k=rng.choice([0, 0, 1, 2]))  # empty parts
        cuts.sort()
        return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]

    question, *answers = parts(length, 4)
    pairs = parts(rng.randint(0, length), 5)
    texts, images = pairs[::2], pairs[1::2]  # images may be one short
    if rng.random() < 0.5:
        images = [*images, 0][: len(texts)]
    if not answers:
        question, answers = 0, [length]
    docs = [parts(n, 2) for n in parts(length, 2)]
    trees = [parts(n, 2) if n else [0] * rng.randint(1, 4) for n in parts(length, 2)]
    trees = [t if len(t) > 1 else [0, *t] for t in trees]  # trunk, twigs, fruit
    twigs = [[parts(n, 2) if n else [0] * rng.randint(0, 2) for n in t[1:-1]] for t in trees]
    borders = sorted(rng.randint(0, length) for _ in range(2 * rng.randint(0, 3)))
    spans = [list(pair) for pair in zip(borders[::2], borders[1::2], strict=True)]
    rng.shuffle(spans)
    positions: list[int] = []
    for size in parts(length, 3):
        positions += range(size)
    asked, *tries = [parts(n, 3) for n in parts(length, 3)]
    return {
        "ask_len": sum(asked), "step_lens": [t[:-1] for t in tries],
        "note_lens": [t[-1] for t in tries],
        "tr#y": [rng.randint(-1, i - 1) for i in range(len(tries))],
        "question_len": question, "answer_lens": answers, "text_lens": texts, "image lens": images,
        "head_lens": [d[0] for d in docs], "body_lens": [d[1:] for d in docs],
        "trunk_lens": [t[0] for t in trees], "bud_lens": twigs,
        "fruit_lens": [t[-1] for t in trees],
        "role_ids": stretches(rng, length, 2), "文 ids": stretches(rng, length, 4),
        "span_list": spans, "mark_list": [rng.randint(0, 1) for _ in range(length)],
        "position_ids": positions, "weight": [rng.randint(-2, 9) for _ in range(length)],
        "for": [rng.randint(0, length + 3) for _ in range(length)],
        "limit": rng.randint(0, 9),
    }, length  # fmt: skip


def stretches(rng: Random, length: int, largest: int) -> list[int]:
    """Return ids that stay for some tokens and come back; -1 is none."""
    found: list[int] = []
    while len(found) < length:
        found += [rng.randint(-1, largest)] * rng.randint(1, 5)
    return found[:length]


UNSUITED = {"E102", "E103", "E104", "E105", "E107", "E111", "E124"}  # units that do not fit


def draw_masks(seed: int, count: int) -> list[tuple[str, Mask]]:
    """Return random masks whose units fit, with their texts; many share a text of statements."""
    writer = MaskWriter(Random(seed))
    found: list[tuple[str, Mask]] = []
    while len(found) < count:
        lines = [writer.statement(f"m{i}") for i in range(60)]
        bad: set[int] = set()
        try:
            Spec.from_text(LAYOUTS + "\n".join(lines))
        except SpecError as error:
            if {d.code for d in error.diagnostics} - UNSUITED:
                raise
            bad = {d.line - LAYOUTS.count("\n") - 1 for d in error.diagnostics}
        kept = [line for i, line in enumerate(lines) if i not in bad]
        try:
            spec = Spec.from_text(LAYOUTS + "\n".join(kept))
        except SpecError:  # more was wrong than is reported at once
            continue
        found += [(line, spec.mask(line.split()[1].split("(")[0])) for line in kept]
    return found[:count]
