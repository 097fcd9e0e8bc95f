"""Pictures show exactly the pairs that the oracle says are visible."""

import io
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageColor

from dcp_dsl import Picture, Sample, Slabs, Spec, dense_mask, preview
from dcp_dsl.pictures import svg as svg_writer
from dcp_dsl.pictures.frame import LIGHT, Stripe

SVG = "{http://www.w3.org/2000/svg}"
SPEC = Spec.from_text("""
segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
mask band(w: tokens = 4) = causal and q - k < w
@partial mask holes = q - k == 3 or k - q == 2
sample tiny(question_len = 3, answer_lens = [4, 2])
""")
MASKS = [
    "shared",
    "band",
    "holes",
    "full",
    "local(3)",
    "shared minus band(2)",
    "dilated(6, 2)",
    "tree",
    "causal and (q - k) % 3 != 1",
]


def bound(call, length):
    sample = Sample(
        {
            "question_len": length - length // 2,
            "answer_lens": [length // 2],
            "subtree_end": [min(length, q + 1 + q % 3) for q in range(length)],
        },
        length,
    )
    return Picture.of(SPEC.mask(call), sample), dense_mask(SPEC.mask(call), sample)


def polygons(text):
    for element in ElementTree.fromstring(text).iter(f"{SVG}polygon"):
        yield [tuple(map(int, point.split(","))) for point in element.get("points").split()]


def is_inside(x, y, points):
    """Count the edges to the right of a point: odd is inside."""
    crossed = False
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            crossed = not crossed
    return crossed


@given(st.sampled_from(MASKS), st.integers(1, 14))
def test_polygons_of_a_short_sample_cover_exactly_the_visible_pairs(call, length):
    picture, dense = bound(call, length)
    shapes = list(polygons(picture.svg()))
    if isinstance(picture.bound, Slabs):
        assert len(shapes) == len(picture.bound)
    drawn = np.array(
        [[sum(is_inside(k + 0.5, q + 0.5, p) for p in shapes) for k in range(length)]
         for q in range(length)]
    )  # fmt: skip
    assert np.array_equal(drawn, dense)


@given(st.sampled_from(MASKS), st.integers(1, 14))
def test_half_blocks_are_exactly_the_visible_pairs(call, length):
    picture, dense = bound(call, length)
    rows = [line[4:-1] for line in picture.text().splitlines() if line.endswith("│")]
    bits = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}
    drawn = np.array([[bits[c][half] for c in row] for row in rows for half in (0, 1)])
    assert np.array_equal(drawn[:length], dense)
    assert not drawn[length:].any()


@given(st.sampled_from(MASKS), st.integers(1, 14))
def test_pixels_are_exactly_the_visible_pairs(call, length):
    picture, dense = bound(call, length)
    image = np.asarray(Image.open(io.BytesIO(picture.png(side=280))).convert("RGB"))
    size = 280 // length
    left, top = 14 + 12 + 4, 14 + 40 + 4 + 12 + 4
    visible = [int(LIGHT.visible[i : i + 2], 16) for i in (1, 3, 5)]
    middle = np.arange(length) * size + size // 2
    drawn = (image[top + middle][:, left + middle] == visible).all(axis=2)
    assert np.array_equal(drawn, dense)


def test_the_legend_of_a_png_has_a_square_of_every_kind():
    sample = Sample({"question_len": 4, "answer_lens": [4, 4]}, 12)
    picture = Picture.of(SPEC.mask("shared"), sample)
    image = Image.open(io.BytesIO(picture.png(side=280))).convert("RGB")
    below = image.crop((0, image.height - 34, image.width, image.height))
    counts = {colour: count for count, colour in below.getcolors()}
    colours = picture.frame.colours
    assert list(colours) == ["question", "answer"]
    for colour in colours.values():
        assert counts[ImageColor.getrgb(colour)] == 12 * 12


def test_long_samples_have_one_straight_polygon_per_slab():
    picture = Picture.of(SPEC.mask("band(4k)"), Sample(length=131_072))
    assert list(polygons(picture.svg())) == [
        [(0, 0), (1, 0), (4097, 4096), (0, 4096)],
        [(1, 4096), (4097, 4096), (131_073, 131_072), (126_977, 131_072)],
    ]
    assert len(picture.svg()) < 3000


def test_forms_without_slabs_are_drawn_at_any_length():
    spec = Spec.from_text("token evict  mask kept = k <= q and q < k.evict")
    ends = [min(8192, t + 1 + 37 * t % 4001) for t in range(8192)]
    for mask, sample in ((SPEC.mask("strided(64)"), Sample(length=131_072)),
                         (spec.mask("kept"), Sample({"evict": ends}, 8192))):  # fmt: skip
        picture = Picture.of(mask, sample)
        assert picture.bound.form != "slabs"
        tree = ElementTree.fromstring(picture.svg())
        assert list(tree.iter(f"{SVG}rect"))
        assert picture.text(40).count("│") > 10
        assert picture.png(side=64).startswith(b"\x89PNG")


def test_shades_of_a_long_sample_follow_the_density():
    lines = Picture.of(SPEC.mask("causal"), Sample(length=4096)).text(8).splitlines()
    rows = [line[4:-1] for line in lines if line.endswith("│")]
    assert rows == ["▓░      ", "██▓░    ", "████▓░  ", "██████▓░"]
    assert "1024 queries by 512 keys" in lines[-1]


def test_more_slabs_than_polygons_a_browser_likes_are_shaded(monkeypatch):
    monkeypatch.setattr(svg_writer, "MAX_POLYGONS", 1)
    tree = ElementTree.fromstring(Picture.of(SPEC.mask("band"), Sample(length=512)).svg())
    cells = [e for e in tree.iter(f"{SVG}rect") if e.get("fill-opacity")]
    assert not list(tree.iter(f"{SVG}polygon"))
    shades = [e.get("fill-opacity") for e in cells]
    # The cell on the diagonal holds 3 of 4 pairs, the one before all 4, the one before that 1.
    assert [shades.count(s) for s in ("0.75", "1", "0.25")] == [256, 255, 254]
    assert len(cells) == 256 + 255 + 254


def test_the_axes_name_the_kinds_of_the_layout():
    picture = Picture.of(SPEC.mask("shared"), SPEC.sample("tiny"))
    assert [(s.kind, s.start, s.end) for s in picture.stripes] == [
        ("question", 0, 3), ("answer", 3, 7), ("answer", 7, 9),
    ]  # fmt: skip
    text = picture.text()
    assert "    qqqaaaaAA\n" in text
    assert "    qaaAA\n" in picture.text(5)  # the kind of the token in the middle of two
    assert text.endswith("    q question  a answer")
    boxes = re.findall(r'<svg x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', picture.svg())
    assert [tuple(map(int, box)) for box in boxes] == [  # 4 pixels between stripes and mask
        (26, 52, 320, 10), (12, 66, 10, 320), (26, 66, 320, 320),
    ]  # fmt: skip
    titles = re.findall(r"<title>(\w+ \d)</title>", picture.svg())
    assert titles == ["question 0", "answer 0", "answer 1"] * 2


def test_colours_are_only_for_the_kinds_and_only_when_asked_for():
    picture = Picture.of(SPEC.mask("shared"), SPEC.sample("tiny"))
    assert "\x1b[34mq\x1b[0m" in picture.text(has_colour=True)
    assert "\x1b" not in picture.text()
    assert picture.text(is_ascii=True).isascii()


def test_names_of_a_mask_are_escaped_in_svg():
    tree = ElementTree.fromstring(Picture("a < b & c", Slabs(0, [], [], [], [], [], [])).svg())
    assert tree.find(f"{SVG}title").text == "a < b & c: 0 tokens, 0 of 0 pairs"


def test_many_stripes_are_condensed_to_what_can_be_seen():
    spec = Spec.from_text("segment doc = a[x]* b[y]*  mask m = causal and same(doc)")
    sample = Sample({"x": [1] * 5000, "y": [1] * 5000}, 10_000)
    picture = Picture.of(spec.mask("m"), sample)
    assert len(picture.stripes) == 10_000
    assert len(picture.svg().split("<rect")) < 2 * svg_writer.MAX_STRIPES + 10


def test_a_mask_without_declared_samples_is_drawn_on_one_made_up_from_its_layout():
    spec = Spec.from_text("segment d = doc(head[h] part[p]*)*  mask m = causal per doc")
    assert preview(spec.mask("m")).bound.num_tokens == 3 + 2 + 3 + 2 + 2 + 1
    assert preview(Spec.from_text("token t = ids  mask m = q.t == 1 or q == k").mask("m")) is None


def test_notebooks_draw_pictures_of_masks_and_of_slabs():
    mask = SPEC.mask("shared")
    tiny = SPEC.sample("tiny")
    for shown in (preview(mask), Picture.of(mask, tiny), Picture("slabs", mask.bind(tiny))):
        assert shown._repr_svg_().startswith("<svg ")


# ---- the command ---------------------------------------------------------------------------------


def test_parts_of_many_tokens_have_borders_between_them_alone():
    stripes = [Stripe("part", 20 * i, 20 * i + 20, i) for i in range(3)]
    frame = SimpleNamespace(above=stripes, stripes=stripes, width=60, size=60)
    places = [re.findall(r"M(\d+) 0", line) for line in svg_writer.grid_lines(frame)]
    assert places == [["20"], ["40"]]
