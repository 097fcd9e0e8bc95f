"""Hypothesis strategies: random masks over a fixed set of layouts, and samples that fit them."""

from typing import Any

from hypothesis import strategies as st

# Every kind of segment: parts, repeated parts, an unnamed and a named repeated group, nesting,
# tiles inside another segment, remaining tokens.
LAYOUTS = """
segment part = question[question_len] answer[answer_lens]*
segment seq = (text[text_lens] image[image_lens])* tail[..]
segment pack = doc(head[head_lens] body[body_lens]*)*
segment half = left[len // 2] right[..]
segment tile = every 3
segment inner = every 2 in answer
token mark
"""

SEGMENTS = (
    "part", "question", "answer", "seq", "text", "image", "tail", "pack", "doc", "head", "body",
    "half", "left", "right", "tile", "inner",
)  # fmt: skip
COMPARISONS = ("<=", "<", ">=", ">", "==", "!=")

small = st.integers(0, 12).map(str)
segment = st.sampled_from(SEGMENTS)
position = st.sampled_from(["q", "k"])


@st.composite
def numbers_of(draw: st.DrawFn, name: str) -> str:
    """Draw a number that depends on one position only."""
    kind = draw(st.integers(0, 11))
    s = draw(segment)
    c = draw(st.integers(1, 6))
    forms = (
        name, f"{name}.{s}", f"{name} // {c}", f"{name} % {c}", f"{name}.{s}.start",
        f"{name}.{s}.end - 1", f"{name}.{s}.pos", f"{name}.{s}.len", f"{name}.mark",
        f"clamp({name}, {c}, {c + 3})", f"{name}.{s}.count", f"{name}.{s}.end.{s}",
    )  # fmt: skip
    return forms[kind]


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """Draw a comparison of numbers; kinds are left to chance, so unit errors are filtered later."""
    op = draw(st.sampled_from(COMPARISONS))
    shape = draw(st.integers(0, 7))
    a, b = draw(numbers_of("q")), draw(numbers_of("k"))
    c = draw(small)
    if shape == 0:
        return f"{a} {op} {b}"
    if shape == 1:
        return f"q - k {op} {c}"
    if shape == 2:
        return f"{draw(st.sampled_from([a, b]))} {op} {c}"
    if shape == 3:
        s = draw(segment)
        return f"q.{s} - k.{s} {op} {draw(st.integers(-2, 3))}"
    if shape == 4:
        return f"{draw(st.integers(2, 3))} * q - {draw(st.integers(1, 3))} * k {op} {c}"
    if shape == 7:
        p, s = draw(position), draw(segment)
        return f"{p}.{s} {op} {p}.{s}.count - {draw(st.integers(0, 2))}"
    if shape == 5:
        return f"abs({a} - {b}) {op} {c}"
    return f"k {draw(st.sampled_from(['<', '<=']))} q {op} {c}"


@st.composite
def atoms(draw: st.DrawFn) -> str:
    """Draw a mask without operators."""
    kind = draw(st.integers(0, 8))
    s, p, m = draw(segment), draw(position), draw(st.integers(0, 3))
    if kind <= 2:
        return draw(comparisons())
    forms = (
        f"same({s})", f"{p} in {s}", f"{p} not in {s}", f"{p} in first({s}, {m})",
        f"{p} in last({s}, {m})", f"{p} in first(last({s}, {m}))",
    )  # fmt: skip
    return forms[kind - 3]


RULES = (
    "{ question sees self causally  answer sees question, self causally }",
    "{ text sees all causally within 4  image sees self  tail sees all }",
    "{ doc sees self within 2 }",
)
LIBRARY = ("causal", "full", "sliding(3)", "streaming(2, 3)", "chunked(4)", "true", "false")

masks = st.recursive(
    st.one_of(atoms(), atoms(), st.sampled_from(LIBRARY), st.sampled_from(RULES)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or", "minus"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda text: f"not ({text})"),
    ),
    max_leaves=5,
)

lengths = st.integers(0, 4)


@st.composite
def samples(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Draw columns that fill all layouts at once, and the length; parts may be empty."""
    length = draw(st.integers(0, 17))

    def parts(total: int, most: int) -> list[int]:
        """Cut a length into a few parts, some of them empty."""
        cuts = draw(st.lists(st.integers(0, total), max_size=most))
        cuts += draw(st.lists(st.sampled_from([0, *cuts, total]), max_size=2))  # empty parts
        cuts.sort()
        return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]

    question, *answers = parts(length, 4)
    if not answers:
        question, answers = 0, [length]
    images = parts(draw(st.integers(0, length)), 5)
    texts = images[::2]
    images = [*images[1::2], 0][: len(texts)]
    images += [0] * (len(texts) - len(images))
    docs = [parts(n, 2) for n in parts(length, 2)]
    columns = {
        "question_len": question,
        "answer_lens": answers,
        "text_lens": texts,
        "image_lens": images,
        "head_lens": [d[0] for d in docs],
        "body_lens": [d[1:] for d in docs],
        "mark": draw(st.lists(st.integers(-2, 9), min_size=length, max_size=length)),
    }
    return columns, length
