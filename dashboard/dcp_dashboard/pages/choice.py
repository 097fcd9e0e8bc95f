"""A row of choices that is one key of the state; `assets/choice.js` connects it."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.pages.layout import attributes


def choice(
    key: str, options: Sequence[tuple[str, str]], default: str, label: str, *, name: str
) -> Component:
    """Give a group of buttons of which one is chosen.

    Args:
        key: of the state, see `assets/state.js`.
        options: (value, text) each.
        default: value while the state has none.
        label: what is chosen, for people who cannot see it.
        name: id of the element.
    """
    buttons = [
        html.Button(
            text, role="radio", type="button",
            **attributes(data_value=value, aria_checked=str(value == default).lower()),
        )
        for value, text in options
    ]  # fmt: skip
    return html.Div(
        buttons, id=name, className="dcp-choice", role="radiogroup",
        **attributes(data_key=key, data_default=default, aria_label=label),
    )  # fmt: skip
