"""The two words of this package: what a model is (`ModelSpec`) and how it is executed (`Variant`).

A file in `models/` says one, a file in `variants/` the other, and neither knows of the other: an
endpoint is any pair that the variant does not refuse. Owns no torch: modules are made by the functions
that the specs carry, inside the replica's device thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.serve.wire import Array, TensorSpec

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, Array]


def as_tuple(found: Any) -> tuple[torch.Tensor, ...]:
    """What a module returned, as several tensors, though it may be one."""
    return found if isinstance(found, tuple) else (found,)


class ServeError(Exception):
    """Misuse, or a server that cannot start: one sentence that says what is wrong and what to do."""


def install(extra: str) -> str:
    """How to get what an extra brings: from the checkout, where there is one, since no index has this package."""
    checkout = Path(__file__).absolute().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install '{checkout}[{extra}]'"
    return f"install tailrate with its extra {extra}"


def unknown(kind: str, name: str, known: list[str]) -> ServeError:
    """The sentence for a name that is not among the known ones, with the closest of them."""
    near = get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return ServeError(f"unknown {kind} '{name}'{hint}; known are {', '.join(known) or 'none'}")


@dataclass(frozen=True, slots=True)
class Language:
    """What makes a model one that writes text: its module is a causal language model as transformers has them."""

    tokens: Callable[[], Any]
    """Its tokenizer (`models._text.TextTokens`); the first time that takes long, as it imports a library."""
    slots: tuple[int, int]
    """Answers that are written at once: on the CPU, on CUDA."""
    context: int
    """Tokens of prompt and answer together."""
    chunk: int
    """Tokens of a prompt that are read at once, while others wait for their next token."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model: its tensors on the wire, and how to make and feed its module."""

    name: str
    inputs: tuple[TensorSpec, ...]
    """What a request carries, as the metadata lists it."""
    outputs: tuple[TensorSpec, ...]
    """In the order in which the module returns them."""
    default_outputs: tuple[str, ...]
    """What a request gets that names none."""
    prepare: Callable[[Tensors], dict[str, Array]]
    """Checks a request's tensors and makes of them what the module takes, in its order; raises `WireError`.

    In the event loop, or where that would take long (`slow_prepare`, large BYTES) in several threads at once."""
    example: Callable[[int, int], dict[str, Array]]
    """(rows, seed) → prepared tensors, for warm-up, calibration and parity."""
    build: Callable[[], torch.nn.Module] | None = None
    """The eager fp32 module with random weights from torch's seed; None: no module (see `reply`)."""
    pretrained: Callable[[str], torch.nn.Module] | None = None
    """'pretrained' or a folder → the module with those weights; None: there are none to be had."""
    from_folder: bool = False
    """Whether `pretrained` reads folders, too."""
    only_from_folder: bool = False
    """Whether a folder says what it is at all."""
    text: str = ""
    """The input that takes texts, BYTES [-1, 1], of which the first default output makes a vector each; empty: none.
    `inputs` are then token ids, and maybe which of them count."""
    language: Language | None = None
    """Where it writes text, which no tensors say."""
    core: str = ""
    """The submodule that variants execute in their way, where not the whole: the module then has `with_core(core, …)`,
    which does what its `forward` does with that in place of the submodule."""
    reply: Callable[[int], dict[str, Array]] | None = None
    """rows → outputs, for a model without a module."""
    delay_s: float = 0.0
    """How long a batch of a model without a module takes."""
    max_batch: tuple[int, int] = (4, 16)
    """Rows per batch unless said otherwise: on the CPU, on CUDA."""
    lengths: tuple[int, ...] = ()
    """Sizes that the second dimension of every input is padded to, such as tokens; empty: it does not vary."""
    slow_prepare: bool = False
    """Whether `prepare` is work (decoding images), so that the event loop must not do it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What else the metadata should tell a client."""
    code: str = ""
    """Digest of the file that made it and of its helpers, filled in by `models.load`: other code is another model."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a variant is made of, in the engine's thread and for one replica."""

    spec: ModelSpec
    module: torch.nn.Module
    """In the variant's precision, on its device: fp32 inputs in, fp32 outputs out."""
    examples: tuple[tuple[torch.Tensor, ...], ...]
    """Inputs of every bucket, on the device, as they will come."""
    device: str
    """cpu or cuda"""
    mode: str
    folder: Path
    """Where what takes long to make is kept for the next start (see `artefacts`)."""
    say: Callable[[str], None]
    names: tuple[str, ...] = ()
    """Of the buckets, for files; empty: by their rows and lengths."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of executing a module, in one precision."""

    name: str
    build: Callable[[BuildContext], Callable[..., Any]]
    """What is called with the input tensors of any bucket."""
    what: str
    """One line for `tailrate serve --list`."""
    precision: str = "fp32"
    precisions: tuple[str, ...] = ("fp32",)
    """Those it can be asked for as NAME-PRECISION; the first is meant where none is named."""
    modes: Callable[[torch.nn.Module, str], tuple[str, ...]] = lambda module, device: ("",)
    """(module, device type) → the modes to try, best first; the next is tried when one fails to warm up."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    packages: tuple[str, ...] = ()
    """What must be installed beyond torch, and `extra` names what of ours brings it."""
    extra: str = ""
    refuse: Callable[[ModelSpec], str | None] = lambda spec: None
    """Why this variant cannot execute that model, or None."""
    stateful: bool = False
    """Whether a call may change the module's own buffers, as a language model's cache."""
    keeps: bool = False
    """Whether it leaves artefacts that make the next start faster."""
