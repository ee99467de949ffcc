"""Builds the wheel and the source archive of the last commit into dist/, and looks at both: `make dist`.

`--release v1.2.3`: that has to be the version, and the changelog has to have its day. `--pages URL`: of the repository,
for the pictures and links of the README, which a package's page cannot find beside it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LINKS = ("serve", "loadtest", "analysis")
"""Folders that lie in the package by links."""
PACKAGE = tuple(f"{folder}/" for folder in ("tailrate", *LINKS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="")
    parser.add_argument("--pages", default="")
    asked = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if asked.release:
        check_release(asked.release, version, (ROOT / "CHANGELOG.md").read_text())
    tracked = run("git", "-C", ROOT, "ls-files").split("\n")
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        archive = Path(folder, "source.tar")
        run("git", "-C", ROOT, "archive", "--format=tar", f"--output={archive}", "HEAD")
        with tarfile.open(archive) as packed:
            packed.extractall(source, filter="tar")
        if asked.pages:
            readme = source / "README.md"
            readme.write_text(
                elsewhere(readme.read_text(), asked.pages, asked.release or run("git", "-C", ROOT, "rev-parse", "HEAD"))
            )
        run(sys.executable, "-m", "build", "--outdir", DIST, source)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    check_files(wheel, sdist, tracked)
    check_installed(wheel, version)
    print(f"{wheel.name} and {sdist.name} are in dist/")


def check_release(tag: str, version: str, changelog: str) -> None:
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, but pyproject.toml says {version}")
    if not re.search(rf"^## {re.escape(version)} — \d{{4}}-\d\d-\d\d$", changelog, re.M):
        sys.exit(f"CHANGELOG.md has no line '## {version} — ' with the day of the release")


def elsewhere(readme: str, pages: str, commit: str) -> str:
    """With the addresses of what lies beside it.

    >>> elsewhere('![x](docs/a.png) [b](docs/b.md#c) [d](#e) <img src="docs/f.png">', "https://it", "v1")
    '![x](https://it/raw/v1/docs/a.png) [b](https://it/blob/v1/docs/b.md#c) [d](#e) <img src="https://it/raw/v1/docs/f.png">'
    """
    here = r"(?!https?:|#)"
    readme = re.sub(rf'((?:src|srcset)="){here}', rf"\g<1>{pages}/raw/{commit}/", readme)
    readme = re.sub(rf"(!\[[^]]*\]\(){here}", rf"\g<1>{pages}/raw/{commit}/", readme)
    return re.sub(rf"(\]\(){here}", rf"\g<1>{pages}/blob/{commit}/", readme)


def check_files(wheel: Path, sdist: Path, tracked: list[str]) -> None:
    """Both have all of the package."""
    with tarfile.open(sdist) as packed:
        held = {
            wheel: set(zipfile.ZipFile(wheel).namelist()),
            sdist: {name.partition("/")[2] for name in packed.getnames()},
        }
    code = [
        path if path.startswith("tailrate/") else f"tailrate/{path}" for path in tracked if path.startswith(PACKAGE)
    ]
    for archive, names in held.items():
        if missing := sorted({*code} - {f"tailrate/{link}" for link in LINKS} - names):
            sys.exit(f"{archive.name} lacks {len(missing)} files, such as {missing[0]}")


def check_installed(wheel: Path, version: str) -> None:
    """From an empty environment to the command."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        constraints = ROOT / "docker" / "constraints" / "common.txt"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints, wheel)
        said = run(python.parent / "tailrate", "--version", cwd=folder)
        if said.split() != ["tailrate", version]:
            sys.exit(f"the installed command says {said}")
        if "bert" not in run(python.parent / "tailrate", "scenarios", cwd=folder):
            sys.exit("the installed command has no scenarios")


def run(*words: object, cwd: str | None = None) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
