"""What a run of Weights & Biases' that is kept offline holds, as JSON: `python seen_in_wandb.py FILE`."""

import json
import sys
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

HEADER, BLOCK, FULL, LAST = 7, 1 << 15, 1, 4
"""The file is a log as LevelDB writes it: a piece of a message has a sum of four bytes, a length of two and a kind."""


def messages(data):
    at, whole = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
            whole = b""


def items(found):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found}


seen = {"config": {}, "summary": {}, "history": [], "files": []}
for record in messages(Path(sys.argv[1]).read_bytes()):
    if record.HasField("run"):
        seen |= {"project": record.run.project, "name": record.run.display_name, "notes": record.run.notes}
        seen["tags"] = list(record.run.tags)
        seen["config"] |= items(record.run.config.update)
    elif record.HasField("config"):
        seen["config"] |= items(record.config.update)
    elif record.HasField("history"):
        seen["history"].append(items(record.history.item))
    elif record.HasField("summary"):
        seen["summary"] |= items(record.summary.update)
    elif record.HasField("artifact"):
        seen["files"] += [entry.path for entry in record.artifact.manifest.contents]
    elif record.HasField("request") and record.request.HasField("log_artifact"):
        seen["files"] += [entry.path for entry in record.request.log_artifact.artifact.manifest.contents]
json.dump(seen, sys.stdout)
