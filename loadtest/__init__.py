"""Drives traffic at an endpoint from a laptop with Linux or macOS: no torch, no ray."""

import sys

if sys.platform == "win32":  # locustfiles and `tailrate` both come here first, and nothing below would import
    sys.stderr.write("tailrate: Windows is not supported; use Linux or macOS, or WSL on this machine\n")
    raise SystemExit(2)
