"""Colours that Python writes into pictures and charts are those of the style sheets."""

import re
from pathlib import Path

import dcp_dashboard
from dcp_dashboard.api.encoding import KIND_COLOURS, NEUTRAL
from dcp_dashboard.exports.overview import THEMES

TOKENS = (Path(dcp_dashboard.__file__).parent / "assets" / "tokens.css").read_text()


def tokens(selector):
    block = TOKENS[TOKENS.index(selector + " {") :].partition("}")[0]
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))


def test_kinds_and_themes_have_the_colours_of_the_tokens():
    light = tokens(":root")
    dark = light | tokens(':root[data-mantine-color-scheme="dark"]')
    assert {kind: light[kind] for kind in KIND_COLOURS} == KIND_COLOURS
    assert light["neutral"] == NEUTRAL
    for theme, colours in (("light", light), ("dark", dark)):
        names = ("panel", "canvas", "ink", "muted", "line")
        assert {name: getattr(THEMES[theme], name) for name in names} == {
            name: colours[name] for name in names
        }
