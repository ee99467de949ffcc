"""`tailrate cache`."""

from __future__ import annotations

import json
import time

import click

from tailrate.cli.misuse import refuse


@click.command()
@click.option("--cache-dir", help="the folder [default: TAILRATE_CACHE, or ~/.cache/tailrate]")
@click.option("--prune", is_flag=True, help="remove what --older-than and --keep-gb say")
@click.option("--older-than", metavar="30d", help="with --prune: what was last used before so many h, d or w")
@click.option("--keep-gb", type=float, help="with --prune: the oldest, until the rest is no larger than this")
@click.option("--dry-run", is_flag=True, help="with --prune: only say what it would do")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def cache(
    cache_dir: str | None, prune: bool, older_than: str | None, keep_gb: float | None, dry_run: bool, as_json: bool
) -> None:
    """Lists what is kept for the next start of a server (compiled code, weights, profiles), and removes what is old."""
    from tailrate.analysis.text import console, words
    from tailrate.analysis.text.table import Table
    from tailrate.serve.options import ServeOptions
    from tailrate.serve.runner import cache_folders as kept

    if prune and older_than is None and keep_gb is None:
        refuse("prune what? give an age, such as --older-than 30d, or a size, such as --keep-gb 20")
    if not prune and (dry_run or older_than is not None or keep_gb is not None):
        refuse("--older-than, --keep-gb and --dry-run are of --prune")
    older_s = None if older_than is None else kept.age_s(older_than)
    folder = ServeOptions(models=(), cache_dir=cache_dir).cache_folder
    items, others = kept.listed(folder)
    now_s = time.time()
    become = kept.tried if dry_run else kept.removed
    most_bytes = None if keep_gb is None else 1e9 * keep_gb
    done = [become(item) for item in kept.chosen(items, now_s, older_s, most_bytes)] if prune else []
    did = "would be removed" if dry_run else "removed"
    became = {one.item: f"stays: {one.why}" if one.why else did for one in done}
    if as_json:
        click.echo(json.dumps(kept.as_json(folder, items, others, became, now_s), indent=1))
    else:
        rows = []
        for one in items:
            state = became.get(one, "in use" if one.locked else "")
            rows.append((one.name, one.kind, words.size(one.bytes), kept.age(now_s - one.used_s), state))
        about = f"{len(items)} kept, {words.size(sum(one.bytes for one in items))}"
        console.tables([Table(str(folder), ("name", "kind", "size", "last used", ""), rows, 2, about)])
        for path in others:
            what = f"{path.relative_to(folder)}, {words.size(kept.size(path))}"
            click.echo(f"{what}: neither code, weights nor a profile of this user's, so left alone")
        if prune:
            gone = [one.item.bytes for one in done if not one.why]
            click.echo(f"{did}: {len(gone)}, {words.size(sum(gone))}")
    raise SystemExit(1 if any(one.failed for one in done) else 0)
