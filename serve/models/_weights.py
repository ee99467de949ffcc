"""Where a model's numbers come from, so that every variant and replica of it holds the same.

`random` is made from a seed. Where BatchNorm is in the model its statistics are calibrated on a few
seeded batches (uncalibrated, a deep random net amplifies rounding until its outputs mean nothing), and
the result is kept in the cache folder: whoever comes second loads the very same numbers. Files are read
as safetensors or with torch's `weights_only`: never a pickle that could run code.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.serve.file_locks import locked
from tailrate.serve.models._code_digest import installed
from tailrate.serve.spec import ModelSpec, ServeError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

CALIBRATION_BATCHES = 3
CALIBRATION_ROWS = 8


@dataclass(frozen=True, slots=True)
class Weights:
    """What the metadata says of a module's numbers."""

    origin: str
    digest: str


def check(spec: ModelSpec, weights: str) -> None:
    """Raises `ServeError` where these weights cannot be had, before anything is started."""
    path = Path(weights)
    if spec.only_from_folder and not path.is_dir():
        raise ServeError(f"{spec.name} is whatever lies in a folder: name one with --weights")
    if weights == "random" or spec.build is None:
        return
    if weights == "pretrained" or path.is_dir():
        if spec.pretrained is None or (path.is_dir() and not spec.from_folder):
            raise ServeError(f"{spec.name} has no {weights} weights; use random, or a .safetensors or checkpoint file")
    elif not path.is_file():
        raise ServeError(f"weights '{weights}' are neither random, pretrained nor a file or folder that exists")


def load(
    spec: ModelSpec, weights: str, seed: int, cache: Path, baked: Path | None = None
) -> tuple[torch.nn.Module, Weights]:
    """The eager fp32 module in eval mode, and where its numbers are from."""
    import torch

    check(spec, weights)
    assert spec.build is not None
    if weights == "random":
        module, origin = _random(spec, seed, cache, baked), f"random, seed {seed}"
    elif weights == "pretrained" or Path(weights).is_dir():
        assert spec.pretrained is not None
        module, origin = spec.pretrained(weights), weights
    else:
        module, origin = _seeded(spec, seed), weights
        _fill(module, _read(Path(weights)), weights)
    module = module.eval().requires_grad_(False).to(torch.float32)
    return module, Weights(origin, digest(module.state_dict()))


def digest(state: Mapping[str, torch.Tensor]) -> str:
    """Sixteen hex digits over names and numbers: equal exactly when the weights are."""
    import torch

    found = hashlib.blake2b(digest_size=8)
    for name in sorted(state):
        found.update(name.encode())
        found.update(state[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _seeded(spec: ModelSpec, seed: int) -> torch.nn.Module:
    import torch

    assert spec.build is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return spec.build().eval()


def _random(spec: ModelSpec, seed: int, cache: Path, baked: Path | None) -> torch.nn.Module:
    module = _seeded(spec, seed)
    # what is baked comes first: compiled code that is baked is of these very numbers
    if not _norms(module) or (baked and _take_kept(module, kept_path(spec, seed, baked))):
        return module
    path = kept_path(spec, seed, cache)
    try:
        with locked(path.with_suffix(".lock")):
            if not _take_kept(module, path):
                _calibrate(spec, module, seed)
                _keep(module, path)
    except OSError as problem:
        log.warning("calibrated weights are not kept, so that variants may differ by rounding: %s", problem)
        _calibrate(spec, module, seed)
    return module


def kept_path(spec: ModelSpec, seed: int, cache: Path) -> Path:
    """Where the calibrated random weights of this model lie."""
    # other code, or another torch, makes other numbers of the same seed
    made_by = [dict(spec.settings), spec.code, *map(installed, ("torch", "torchvision"))]
    key = hashlib.blake2b(json.dumps(made_by, sort_keys=True).encode(), digest_size=6).hexdigest()
    return cache / "weights" / f"{spec.name}-{key}-seed{seed}.safetensors"


def _norms(module: torch.nn.Module) -> list[torch.nn.modules.batchnorm._BatchNorm]:
    from torch.nn.modules.batchnorm import _BatchNorm

    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


def _calibrate(spec: ModelSpec, module: torch.nn.Module, seed: int) -> None:
    """Sets every BatchNorm's statistics to the plain mean over a few seeded batches."""
    import torch

    norms = _norms(module)
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    module.train()
    with torch.no_grad():
        for batch in range(CALIBRATION_BATCHES):
            drawn = spec.example(CALIBRATION_ROWS, seed + batch)
            module(*(torch.from_numpy(tensor) for tensor in drawn.values()))
    module.eval()
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum


def _keep(module: torch.nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    state = module.state_dict()
    scratch = path.with_suffix(".part")
    save_file(state, scratch, metadata={"digest": digest(state)})
    scratch.replace(path)


def _take_kept(module: torch.nn.Module, path: Path) -> bool:
    """Whether there is a kept file that is whole and fits; a broken one is made anew."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as kept:
            state = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
            if (kept.metadata() or {}).get("digest") != digest(state):
                raise ServeError("its digest does not match")
        _fill(module, state, str(path))
    except (OSError, SafetensorError, ServeError) as problem:
        log.warning("the kept weights %s are broken (%s) and not used", path, problem)
        return False
    return True


def _read(path: Path) -> Mapping[str, torch.Tensor]:
    from pickle import UnpicklingError  # what torch raises for more than weights_only allows

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: Any
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
            found = found.get("state_dict", found) if isinstance(found, dict) else found
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, UnpicklingError) as problem:
        reason = str(problem).split("\n", 1)[0]
        raise ServeError(
            f"weights {path} cannot be read as safetensors or a weights_only checkpoint: {reason}"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise ServeError(f"weights {path} hold no state dict (tensors by name)")
    return found


def _fill(module: torch.nn.Module, state: Mapping[str, torch.Tensor], where: str) -> None:
    own = module.state_dict()
    if missing := [name for name in own if name not in state]:
        raise ServeError(f"weights {where} do not fit: {len(missing)} tensors are missing, such as {missing[0]}")
    if extra := [name for name in state if name not in own]:
        raise ServeError(f"weights {where} do not fit: {len(extra)} tensors are unknown, such as {extra[0]}")
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            have, want = list(state[name].shape), list(tensor.shape)
            raise ServeError(f"weights {where} do not fit: {name} is {have}, but the model has {want}")
    module.load_state_dict(state)
