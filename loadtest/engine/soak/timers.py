"""A command on a timer, in words for systemd and for cron. Pure; installs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

CRON = {"hourly": "0 * * * *", "daily": "0 0 * * *", "weekly": "0 0 * * 1", "monthly": "0 0 1 * *"}
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
