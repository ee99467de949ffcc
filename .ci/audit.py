"""Known vulnerabilities of what is installed here, by pip-audit: `make audit`.

Exit codes: 0 none is known; 1 some are; 3 nothing could be looked up, which pip-audit itself takes for none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main() -> int:
    words = [Path(sys.executable).with_name("pip-audit"), "--local", "--skip-editable", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(f"audit: pip-audit could not work: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        return 3
    known = [package for package in packages if "vulns" in package]
    if not known:
        print(f"audit: PyPI's vulnerability data cannot be had here, so none of {len(packages)} packages was looked up")
        return 3
    found = [(package, one) for package in known for one in package["vulns"]]
    for package, one in found:
        fixed = ", ".join(one["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    unknown = [package["name"] for package in packages if "vulns" not in package]
    rest = f"; not looked up, as PyPI has no such version: {', '.join(unknown)}" if unknown else ""
    print(f"audit: known vulnerabilities: {len(found)} in {len(known)} packages{rest}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
