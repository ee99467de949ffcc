"""A command on a timer, in words for systemd and for cron. Pure; installs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from tailrate.loadtest.engine.scenario.scenario import ScenarioError

CRON = {"hourly": "0 * * * *", "daily": "0 0 * * *", "weekly": "0 0 * * 1", "monthly": "0 0 1 * *"}
FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
PART = r"(\*|\d{1,2}(-\d{1,2})?)(/[1-9]\d?)?"
"""Of a field: any, a number or a range, each so many."""
DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def text(when: str, command: Sequence[str], folder: str, name: str = "tailrate-soak") -> str:
    """`when`: daily, weekly or five fields of cron; paths in `command` are to be absolute."""
    line = shlex.join(command)
    # systemd takes % for a specifier, and $ for a variable
    escaped = line.replace("%", "%%").replace("$", "$$")
    return f"""\
# /etc/systemd/system/{name}.service
[Unit]
Description=tailrate: a soak test
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
WorkingDirectory={folder}
# what nobody else may read, mode 600: TAILRATE_TOKEN=… and TAILRATE_WEBHOOK=…
EnvironmentFile=-/etc/tailrate.env
ExecStart={escaped}
# SIGINT: what there is is kept and reported; 1 and 3 are verdicts, not failures of the service
KillSignal=SIGINT
KillMode=mixed
TimeoutStopSec=120
SuccessExitStatus=1 3

# /etc/systemd/system/{name}.timer
[Unit]
Description=tailrate: a soak test, {when}

[Timer]
OnCalendar={calendar(when)}
Persistent=true

[Install]
WantedBy=timers.target

# systemctl daemon-reload && systemctl enable --now {name}.timer

# or a line for crontab -e, below those of TAILRATE_TOKEN=… and TAILRATE_WEBHOOK=…
{CRON.get(when, when)} cd {shlex.quote(folder)} && {line.replace("%", chr(92) + "%")}
"""


def read(when: str) -> str:
    """One of `CRON`, or five fields of cron with one space between; `ScenarioError` where it is neither."""
    fields = when.split()
    if when in CRON or (len(fields) == len(FIELDS) and all(map(_is_field, fields, FIELDS))):
        return " ".join(fields)
    known = ", ".join(CRON)
    raise ScenarioError(f"--print-schedule '{when}' is not understood; write {known}, or for instance 0 2 * * 1-5")


def _is_field(text: str, least_and_most: tuple[int, int]) -> bool:
    least, most = least_and_most
    numbers = map(int, re.findall(r"(?<![/\d])\d+", text))
    return bool(re.fullmatch(f"{PART}(,{PART})*", text, re.ASCII)) and all(least <= n <= most for n in numbers)


def calendar(when: str) -> str:
    """Five fields of cron as systemd writes them; anything else as it is.

    >>> calendar("30 2 * * 1-5")
    'Mon..Fri *-*-* 02:30:00'
    """
    fields = when.split()
    if len(fields) != 5:
        return when
    minute, hour, day, month, weekday = (field.replace("*/", "0/") for field in fields)
    day, month = (re.sub("^0/", "1/", field) for field in (day, month))  # these two count from 1
    days = re.sub(r"\d", lambda found: DAYS[int(found[0]) % 8], weekday).replace("-", "..")
    hour, minute = (re.sub(r"(?<![\d/])\d(?!\d)", lambda found: f"0{found[0]}", field) for field in (hour, minute))
    day, month, hour, minute = (field.replace("-", "..") for field in (day, month, hour, minute))
    return f"{'' if weekday == '*' else days + ' '}*-{month}-{day} {hour}:{minute}:00"
