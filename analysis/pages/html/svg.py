"""One plot area as inline SVG: scales, grid, lines and marks.

x is in per cent of the width and y in pixels of a fixed height, so a chart fills 300 or 1200 pixels
without its text, marks or line widths ever being scaled. Colours, dashes and fonts are classes that
`page.css` owns; what is drawn is `charts`' business.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tailrate.analysis.pages.html.markup import Attribute, Html, tag
from tailrate.analysis.text import words

Point = tuple[float, float | None]
"""x and y as values; None breaks the line, infinity leaves at the top."""

_WIDTH = 1000  # of the stretched inner drawing that holds lines and areas
EDGE = 0.02
"""Of the width: text so near to an end would be cut in its middle."""
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""As in `chart.js`."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a value to 0…1."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round values inside the scale, at most about `most` of them."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for steps in ((1, 2, 5), (1, 3), (1,)):
                found = [m * 10.0**e for e in decades for m in steps]
                found = [tick for tick in found if self.low * 0.999 <= tick <= self.high * 1.001]
                if len(found) <= most:
                    break
            return found
        step = round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        return [round(k * step, 12) for k in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def labels(
        self, most: int, written: Callable[[float], str] = words.tick, *, whole: bool = False
    ) -> list[tuple[float, str]]:
        """Ticks with what is written at them; `whole` leaves out those between whole numbers."""
        return [(tick, written(tick)) for tick in self.ticks(most) if not whole or float(tick).is_integer()]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that is not under `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * 0.999)


def time_ticks(seconds: float, most: int) -> list[float]:
    step = next((s for s in _TIME_STEPS_S if seconds / s <= most), 86400 * math.ceil(seconds / 86400 / most))
    return [k * step for k in range(int(seconds / step) + 1)]


def linear(values: Iterable[float]) -> Scale:
    """From zero to just above the largest value."""
    top = max((v for v in values if math.isfinite(v)), default=0.0) or 1.0
    return Scale(0.0, top * 1.06)


def fitting(values: Iterable[float]) -> Scale:
    """Logarithmic where the values span more than a factor of 12, else from zero."""
    found = [v for v in values if math.isfinite(v) and v > 0]
    if not found or max(found) / min(found) <= 12:
        return linear(found)
    return Scale(min(found) / 1.25, max(found) * 1.25, log=True)


def _at(x: float) -> str:
    return f"{100 * x:.2f}%"


def _cut(label: str, most: int = 24) -> str:
    """The text, or its end where it is too long: variants differ at the end, models at the start."""
    return label if len(label) <= most else f"…{label[1 - most :]}"


@dataclass(slots=True)
class Panel:
    """A plot area; marks are added in the order in which they are painted.

    Where it `zooms`, all that has a place on x lies over the rest, in a drawing of its own that can be widened.
    """

    x: Scale
    y: Scale
    height: int
    zooms: bool = False
    marks: list[Html] = field(default_factory=list)
    placed: list[Html] = field(init=False)

    def __post_init__(self) -> None:
        self.placed = [] if self.zooms else self.marks

    def _y(self, value: float) -> float:
        return round(self.height * (1 - self.y(value)), 1) if math.isfinite(value) else 0.0

    def grid(self, ticks: Iterable[tuple[float, str]]) -> None:
        """Horizontal rules with their labels on the left."""
        for value, label in ticks:
            y = self._y(value)
            self.marks.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
            self.marks.append(tag("text", label, x=-8, y=y, dy="0.32em", text_anchor="end"))

    def x_ticks(self, ticks: Sequence[tuple[float, str]]) -> None:
        """Labels under the axis; on a narrow page every second one is hidden (class `odd`)."""
        self.marks.append(tag("line", x1="0", x2="100%", y1=self.height, y2=self.height, class_="axis"))
        drawn = []
        for number, (value, label) in enumerate(ticks):
            odd = "odd" if number % 2 and len(ticks) > 5 else None
            x = _at(self.x(value))
            drawn.append(tag("line", x1=x, x2=x, y1=self.height, y2=self.height + 4, class_="axis"))
            drawn.append(tag("text", label, x=x, y=self.height + 18, text_anchor="middle", class_=odd))
        self.marks.append(tag("g", drawn, class_="ticks", data_y=self.height))

    def rule(self, value: float, class_: str) -> None:
        """A horizontal reference line."""
        y = self._y(value)
        self.marks.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_=class_))

    def upright(self, x: float, class_: str) -> None:
        at = _at(self.x(x))
        self.placed.append(tag("line", x1=at, x2=at, y1=0, y2=self.height, class_=class_))

    def stripe(self, start: float, end: float, y: float, height: float, class_: str) -> None:
        left, right = self.x(start), self.x(end)
        self.placed.append(
            tag("rect", x=_at(left), width=_at(max(0.0, right - left)), y=y, height=height, class_=class_)
        )

    def column(self, start: float, end: float, low: float, high: float, class_: str, series: int | None = None) -> None:
        """A bar from `low` to `high`."""
        left, top, bottom = self.x(start), self._y(high), self._y(low)
        place: dict[str, Attribute] = {"x": _at(left), "width": _at(self.x(end) - left), "y": top}
        self.placed.append(tag("rect", height=round(bottom - top, 1), class_=class_, data_series=series, **place))

    def image(self, png: bytes, end: float, low: float, high: float, class_: str, series: int) -> None:
        """A picture from 0 to `end` on x and from `low` to `high` on y; its grey is how much colour there is."""
        top, bottom, width = self._y(high), self._y(low), _at(self.x(end))
        place: dict[str, Attribute] = {"x": 0, "y": top, "width": width, "height": bottom - top}
        address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        picture = tag("image", href=address, preserveAspectRatio="none", **place)
        name = f"heat{series}"
        self.placed.append(tag("mask", picture, id=name, maskUnits="userSpaceOnUse", **place))
        self.placed.append(tag("rect", mask=f"url(#{name})", class_=class_, data_series=series, **place))

    def text(self, x: float, y: float, label: str, class_: str) -> None:
        """Text at pixel height `y`, centred on the value `x`; at the ends it keeps inside."""
        share = self.x(x)
        anchor = "start" if share < EDGE else "end" if share > 1 - EDGE else "middle"
        self.placed.append(tag("text", label, x=_at(share), y=y, text_anchor=anchor, class_=class_))

    def _path(self, d: str, class_: str, series: int | None) -> None:
        inner = tag("path", d=d, class_=class_)
        box = f"0 0 {_WIDTH} {self.height}"
        size: dict[str, Attribute] = {
            "width": "100%",
            "height": self.height,
            "viewBox": box,
            "preserveAspectRatio": "none",
        }
        self.placed.append(tag("svg", inner, class_="stretched", data_series=series, **size))

    def _place(self, x: float, y: float) -> str:
        return f"{_WIDTH * self.x(x):.1f} {self._y(y):g}"

    def line(self, points: Iterable[Point], class_: str, series: int | None = None) -> None:
        """A line through the points, broken where y is None and between infinities; a lone point is a dot."""
        pieces: list[list[str]] = [[]]
        before = 0.0
        for x, y in points:
            if y is None or (math.isinf(y) and math.isinf(before)):
                pieces.append([])
            if y is not None:
                pieces[-1].append(self._place(x, y))
                before = y
        d = "".join("M" + "L".join(piece if len(piece) > 1 else piece * 2) for piece in pieces if piece)
        if d:
            self._path(d, class_, series)

    def area(self, band: Sequence[tuple[float, float, float]], class_: str, series: int | None = None) -> None:
        """The area between low and high over x."""
        if len(band) > 1:
            edge = [self._place(x, high) for x, _, high in band] + [self._place(x, low) for x, low, _ in reversed(band)]
            self._path("M" + "L".join(edge) + "Z", class_, series)

    def dot(self, x: float, y: float, class_: str, series: int | None = None, *, radius: float = 4) -> None:
        """A circle; where y is infinite an arrow that leaves at the top."""
        at = _at(self.x(x))
        if math.isfinite(y):
            self.placed.append(tag("circle", cx=at, cy=self._y(y), r=radius, class_=class_, data_series=series))
        else:
            self.glyph(x, 0, "M-5 0L0-9L5 0Z", class_, series)

    def glyph(self, x: float, y: float, d: str, class_: str, series: int | None = None) -> None:
        """A small shape around the value `x` and pixel height `y`."""
        shape = tag("path", d=d, class_=class_)
        self.placed.append(tag("svg", shape, x=_at(self.x(x)), y=y, data_series=series, class_="mark"))

    def whisker(self, x: float, low: float, high: float, class_: str, series: int | None = None) -> None:
        """A vertical bar from low to high; an infinite end lies at the top."""
        self._bar((x, x), (low, high), class_, series)

    def lying(self, y: float, low: float, high: float, class_: str, series: int | None = None) -> None:
        """A horizontal one."""
        self._bar((low, high), (y, y), class_, series)

    def _bar(self, x: tuple[float, float], y: tuple[float, float], class_: str, series: int | None) -> None:
        ends: dict[str, Attribute] = {"x1": _at(self.x(x[0])), "x2": _at(self.x(x[1]))}
        ends |= {"y1": self._y(y[0]), "y2": self._y(y[1])}
        self.placed.append(tag("line", class_=class_, data_series=series, **ends))

    def end_labels(self, labels: Sequence[tuple[float, str, str, int | None]]) -> None:
        """Names (y, text, class, series) at the right end of lines, pushed apart where they would overlap."""
        last = -math.inf
        for y, label, class_, series in sorted((self._y(value), text, kind, n) for value, text, kind, n in labels):
            last = max(y, last + 15)
            place: dict[str, Attribute] = {"x": "100%", "dx": 10, "y": last, "dy": "0.32em"}
            self.marks.append(tag("text", _cut(label), class_=f"end {class_}", data_series=series, **place))

    def svg(self, label: str | None, *, below: int = 4, above: int = 0) -> Html:
        """The drawing; `label` is its text alternative, None where the figure has one already."""
        marks = self.marks
        if self.zooms:
            moving = tag("svg", self.placed, x=0, y=above, width="100%", class_="mark moving")
            marks = [*marks, tag("svg", moving, y=-above, width="100%", height=above + self.height, class_="cut")]
        inner = tag("svg", marks, y=above, class_="mark")
        role: dict[str, Attribute] = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
        return tag("svg", inner, width="100%", height=above + self.height + below, class_="plot", **role)
