from __future__ import annotations

from tailrate.loadtest.engine.scenario.mode import Mode


class Hold(Mode):
    name = "hold"
    what = "every rate once in the order given, the variants one after the other"
