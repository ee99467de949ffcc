"""Whether what `tailrate serve` was asked for makes sense: checked fast, without torch or Ray."""

from __future__ import annotations

from importlib.util import find_spec

from tailrate.serve import models, variants
from tailrate.serve.edge import auth, listener
from tailrate.serve.edge.listener import check_port, check_tls
from tailrate.serve.models import _weights
from tailrate.serve.options import DEVICES, WAYS, ServeOptions
from tailrate.serve.spec import ServeError, install, unknown
from tailrate.serve.telemetry.sampler import MIN_PERIOD_MS


def check(options: ServeOptions) -> None:
    """Raises `ServeError` with one sentence for what cannot work."""
    if not options.models or not options.variants:
        raise ServeError(f"name at least one model and one variant; models are {', '.join(models.names())}")
    if len(set(options.endpoints)) < len(options.endpoints):
        raise ServeError("a model or variant is named twice")
    for key in options.settings:
        if key not in (known := options.known_settings()):
            raise unknown(f"setting of {', '.join(options.models)}", key, sorted(known))
    for name in options.models:
        spec = options.spec(name)
        _weights.check(spec, options.weights)
        for variant in options.variants:
            if why := variants.refusal(variants.load(variant), spec, options.device):
                raise ServeError(why)
        if spec.build is not None and (missing := [p for p in ("torch", "safetensors") if find_spec(p) is None]):
            raise ServeError(f"{name} needs {', '.join(missing)}: {install('serve')}")
    if options.device not in DEVICES:
        raise ServeError(f"unknown device '{options.device}'; known are {', '.join(DEVICES)}")
    if options.ingress not in WAYS:
        raise ServeError(f"unknown ingress '{options.ingress}'; known are {', '.join(WAYS)}")
    if options.max_replicas is not None and options.max_replicas < options.replicas:
        raise ServeError("max_replicas must be at least replicas")
    leasts = {
        "replicas": 1,
        "max_queue": 1,
        "max_body_bytes": 1,
        "max_wait_ms": 0,
        "drain_s": 0,
        "sample_ms": MIN_PERIOD_MS,
    }
    for name, least in leasts.items():
        if getattr(options, name) < least:
            raise ServeError(f"{name} must be at least {least}")
    if not 0 <= options.parity_share <= 1:
        raise ServeError("parity_share must be between 0 and 1")
    if options.buckets and (min(options.buckets) < 1 or len(set(options.buckets)) < len(options.buckets)):
        raise ServeError("buckets must be different numbers of rows, each at least 1, such as 1,4,16")
    if options.buckets and options.max_batch not in (None, max(options.buckets)):
        raise ServeError("name buckets or max_batch, not both: the largest bucket is the largest batch")
    for name in ("max_batch", "max_rows", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ServeError(f"{name} must be at least 1")
    if missing := [package for package in ("ray", "psutil") if find_spec(package) is None]:
        raise ServeError(f"serving needs {', '.join(missing)}: {install('serve')}")
    check_tls(options.tls_cert, options.tls_key)
    exposure(options)
    check_port(options.host, options.port)
    if options.grpc_port:
        if options.grpc_port == options.port:
            raise ServeError("--grpc-port and --port must be two ports")
        check_port(options.host, options.grpc_port)


def exposure(options: ServeOptions) -> str | None:
    """What to say of a server that more than this machine reaches; raises `ServeError` where that can't be meant."""
    if not auth.is_loopback(options.host) and not auth.tokens():
        for name in ("allow_faults", "profile"):
            if getattr(options, name):
                option = f"--{name.replace('_', '-')}"
                raise ServeError(
                    f"{option} needs a token where others reach the server: set {auth.TOKEN}, or --host 127.0.0.1"
                )
    return listener.exposure(options.host, options.port, tls=bool(options.tls_cert), what="tensors")
