"""How HAProxy finds the replicas of a model that a request names in its body, as OpenAI's API does."""

from __future__ import annotations

from collections.abc import Sequence

from tailrate.serve.options import ServeOptions

NAME = "[A-Za-z0-9_.-]+"


def rules(options: ServeOptions, paths: Sequence[str], wait_s: int) -> str:
    """Of these paths. Who names a model alone means its first variant."""
    there, model = f"{{ path {' '.join(paths)} }}", "var(txn.model)"
    return f"""\
    http-request wait-for-body time {wait_s}s if METH_POST {there}
    http-request set-var(txn.model) req.body,json_query('$.model') if METH_POST {there}
    http-request set-var(txn.model) {model},concat(/{options.variants[0]}) if {{ {model} -m reg '^{NAME}$' }}
    http-request set-path /v2/models/%[{model},field(1,/)]/versions/%[{model},field(2,/)]%[path] \
if {{ {model} -m reg '^{NAME}/{NAME}$' }}
"""
