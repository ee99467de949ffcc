"""One figure of the page: title, legend, drawing, and what it shows on hover and to the arrow keys.

The readout is JSON inside the figure, its values already written as text, so that `page.js` only chooses
which of them to show. What is drawn is `charts`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrate.analysis.pages.html.markup import Attribute, Child, Html, embedded, tag


@dataclass(slots=True)
class Readout:
    """What hover and arrow keys show: for each place on the x axis one value per row of labels."""

    labels: list[tuple[int | None, str]] = field(default_factory=list)
    places: list[tuple[float, str, list[str | None]]] = field(default_factory=list)

    def row(self, series: int | None, label: str) -> int:
        if (series, label) not in self.labels:
            self.labels.append((series, label))
        return self.labels.index((series, label))

    def place(self, x: float, title: str, values: Mapping[int, str]) -> None:
        filled = [values.get(k) for k in range(max(values, default=-1) + 1)]
        self.places.append((round(100 * x, 2), title, filled))


def legend(names: Mapping[str, int], keys: Iterable[tuple[str, str]] = ()) -> Html:
    """Buttons that switch a variant on and off everywhere, then what lines and marks stand for."""
    buttons = [
        tag("button", tag("i", class_=f"swatch s{n}"), name, type="button", data_switch=n, aria_pressed="true")
        for name, n in names.items()
    ]
    notes = [tag("span", tag("i", class_=f"key {kind}"), text, class_="note") for kind, text in keys]
    return tag("div", buttons, notes, class_="legend", role="group", aria_label="Show or hide variants")


def figure(
    id_: str, title: str, note: Child, key: Html, panels: Child, readout: Readout, *, room: int = 0, **known: Attribute
) -> Html:
    """`known` becomes `data-…` of the figure, for what scripts have to know of it."""
    probe = tag(
        "div",
        class_="probe",
        tabindex=0,
        role="slider",
        aria_label=f"{title}: values, with the arrow keys",
        aria_valuemin=0,
        aria_valuemax=max(0, len(readout.places) - 1),
        aria_valuenow=0,
        aria_valuetext="press an arrow key to read values",
    )
    return tag(
        "figure",
        tag("figcaption", tag("strong", title), " ", tag("span", note)),
        key,
        tag("div", panels, probe, tag("div", class_="cross", hidden=True), class_="plots", style=f"--room:{room}"),
        embedded({"labels": readout.labels, "places": readout.places}),
        class_="chart",
        id=id_,
        **{f"data-{name}": value for name, value in known.items()},
    )


def one_of(drawn: Mapping[str, Html], first: str, label: str) -> Html:
    """Of several figures of one kind the one that a reader chooses by its name; without script the first stays."""
    figures = [tag("div", each, hidden=name != first, data_choice=k) for k, (name, each) in enumerate(drawn.items())]
    buttons = [
        tag("button", name, type="button", data_choose=k, aria_pressed="true" if name == first else "false")
        for k, name in enumerate(drawn)
    ]
    choices = tag("div", tag("span", "at"), buttons, class_="choices", role="group", aria_label=label)
    return tag("div", tag("div", choices, class_="scripted", hidden=True) if len(buttons) > 1 else None, figures)
