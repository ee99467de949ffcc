"""Prints what Locust's statistics say of the same requests, told at once and told by its event one by one.

In a process of its own: Locust patches the standard library of whoever imports it.
"""

import json

import locust  # noqa: F401 -- before all else
import numpy as np
from locust.env import Environment

from tailrate.loadtest.engine.workers.locust_statistics import TOGETHER, LocustStatistics

NAMES = ("a/eager", "a/compiled")


def environment():
    found = Environment(user_classes=[])
    found.create_local_runner()
    return found


def requests(many):
    """(method, name, ms, bytes, error); without ms: not sent."""
    draw = np.random.default_rng(5)
    for number in range(many):
        if number % 17 == 3:
            yield "POST", NAMES[number % 2], None, 0, "dropped: 4 requests were unanswered"
        else:
            error = "500: no" if number % 11 == 5 else None
            yield "POST", NAMES[number % 2], float(draw.lognormal(3, 2)), int(draw.integers(1, 999)), error


def by_event(to, asked):
    for method, name, ms, size, error in asked:
        to.events.request.fire(
            request_type=method, name=name, response_time=ms, response_length=size,
            exception=error and RuntimeError(error), context={}, response=None,
        )  # fmt: skip


def said(of):
    """All that Locust knows; when it was told is left to the clock."""
    entries = {"/".join(key): entry.serialize() for key, entry in of.stats.entries.items()}
    entries["all"] = of.stats.total.serialize()
    for entry in entries.values():
        entry["by_second"] = [sum(entry.pop(name).values()) for name in ("num_reqs_per_sec", "num_fail_per_sec")]
        entry["in_order"] = (entry.pop("last_request_timestamp") or 1e12) >= entry.pop("start_time")
        entry["total_response_time"] = round(entry["total_response_time"], 3)
    return {"entries": entries, "errors": sorted(error.occurrences for error in of.stats.errors.values())}


def at_once(asked):
    ours, theirs = environment(), environment()
    statistics = LocustStatistics(ours)
    for each in asked:
        statistics.tell(*each)
    statistics.flush()
    by_event(theirs, asked)
    found = [said(ours), said(theirs)]
    statistics.flush()
    return [*found, said(ours)]


def waiting():
    """How many Locust knows of while they come."""
    ours = environment()
    statistics = LocustStatistics(ours)
    found = []
    for each in [("POST", NAMES[0], 1.0, 1, None)] * TOGETHER:
        statistics.tell(*each)
        found.append(ours.stats.total.num_requests)
    return found


def heard_by_others(asked):
    ours, theirs, heard = environment(), environment(), []
    statistics = LocustStatistics(ours)
    ours.events.request.add_listener(lambda **what: heard.append(what))
    statistics.flush()
    for number, each in enumerate(asked, 1):
        statistics.tell(*each)
        assert len(heard) == number
    keys = ("request_type", "name", "response_time", "response_length")
    found = [[*map(what.get, keys), str(what["exception"] or "") or None] for what in heard]
    by_event(theirs, asked)
    return {"heard": found, "told": asked, "ours": said(ours), "theirs": said(theirs)}


if __name__ == "__main__":
    asked = [list(requests(many)) for many in (0, 1, 2, TOGETHER, 1000)]
    dropped = [each for each in asked[-1] if each[2] is None]
    found = {"at_once": [*map(at_once, [dropped, *asked])], "waiting": waiting(), "others": heard_by_others(asked[-1])}
    print(json.dumps(found))
