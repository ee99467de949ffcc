"""An exporter's page, for whoever reads one: what a file says, and what goes wrong with pages of others.

Runs as a program of its own; prints its port first. `--how` is one of `HOWS`; with `page`, what `--file` holds, where
`{now_s}`, `{joules}` and `{millijoules}` stand for the time and for what 200 W have used since 1970.
"""

from __future__ import annotations

import argparse
import http.server
import socketserver
import time
from contextlib import AbstractContextManager
from pathlib import Path

import starts

HOWS = ("page", "hang", "half", "endless", "html", "nan", "negative", "broken", "slow", "error", "bytes")
WATTS = 200.0
LINE = 'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-{how}",device="nvidia0",Hostname="h"}} {value}\n'
BODIES = {
    "html": "<html><body>it works</body></html>",
    "nan": LINE.format(how="nan", value="NaN"),
    "negative": LINE.format(how="negative", value="-5"),
    "broken": LINE.format(how="broken", value="4x2") + 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUI',
    "bytes": "\x00\x01\xff\xfe" * 1000,
}


class Page(http.server.BaseHTTPRequestHandler):
    how = "page"
    text = ""
    every_s = 0.0
    """How often what it shows is measured anew, as by an exporter with an interval of its own; 0: at each scrape."""

    def do_GET(self) -> None:
        if self.how == "hang":
            time.sleep(3600)
        if self.how == "error":
            self.send_error(500)
            return
        now_s = time.time()
        if self.every_s:
            now_s -= now_s % self.every_s
        shown = {"{now_s}": now_s, "{joules}": WATTS * now_s, "{millijoules}": round(WATTS * now_s * 1e3)}
        text = BODIES.get(self.how, self.text)
        for name, value in shown.items():
            text = text.replace(name, repr(value))
        raw = text.encode("utf-8", "surrogateescape")
        self.send_response(200)
        if self.how not in ("endless", "slow"):
            self.send_header("content-length", str(len(raw) * (2 if self.how == "half" else 1)))
        self.end_headers()
        try:
            self.wfile.write(raw)
            while self.how in ("endless", "slow", "half"):
                self.wfile.write(b"x" * (1 << 20 if self.how == "endless" else 1))
                time.sleep(0 if self.how == "endless" else 0.2)
        except OSError:
            pass  # whoever asked has enough

    def log_message(self, *_: object) -> None:
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


def page(**options: object) -> AbstractContextManager[str]:
    """Its URL, without a path."""
    return starts.stand_in(Path(__file__), options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", default="page", choices=HOWS)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--every-s", type=float, default=0.0)
    given = parser.parse_args()
    Page.how, Page.every_s = given.how, given.every_s
    Page.text = given.file.read_text() if given.file else LINE.format(how="page", value=42)
    server = Server(("127.0.0.1", 0), Page)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
