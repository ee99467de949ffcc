"""What a campaign measures, as plain values: subjects (a model in some settings), and the cells of each, in order.

Pure. A cell is done once its file is there, and has a name that says which it is, so that a campaign that was killed
goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["bare", "lone", "ramp", "knee", "mixed", "profile"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in some settings: what one table is about."""

    label: str
    model: str
    settings: tuple[tuple[str, str], ...] = ()
    step: bool = False
    """Whether a call of the bare loop is a part of a request only (a step of the UNet)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    kind: Kind
    subject: Subject
    variant: str = ""
    """Of a bare loop or a profile; runs drive two."""

    @property
    def name(self) -> str:
        return "--".join(part for part in (self.kind, self.subject.label, self.variant) if part)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it: quick or full, on a CPU or a GPU."""

    subjects: tuple[Subject, ...]
    served: tuple[str, ...]
    """Labels of those that are driven, too."""
    variants: tuple[str, ...]
    few: tuple[str, ...]
    """Variants of the subjects that take long; empty: all of them."""
    batches: tuple[int, ...]
    seconds: float
    """Of each batch size of a bare loop."""
    step_seconds: float
    settle_seconds: float
    rounds: int
    budget_seconds: float
    """Of the search for a knee."""
    limit_seconds: float
    """After which a cell is given up."""
    weighty: tuple[str, ...] = ()
    """Labels of the subjects that take long."""

    def of(self, subject: Subject) -> tuple[str, ...]:
        """The variants in which it is measured."""
        return self.few if subject.label in self.weighty else self.variants

    def pair(self, subject: Subject) -> tuple[str, str]:
        """The two that are driven side by side: eager, and the compiled form that is meant to be its better."""
        mine = self.of(subject)
        for better in ("compiled-reduce-overhead", "compiled", "compiled-default"):
            if better in mine:
                return "eager", better
        return "eager", mine[-1]


STEP = (("steps", "1"), ("guidance", "1"))
CNN = Subject("custom_cnn", "custom_cnn")
RESNET = Subject("resnet50", "resnet50")
BERT = {length: Subject(f"bert-{length}", "bert", (("sequence", str(length)),)) for length in (32, 128, 512)}
UNET = Subject("sd15-unet-step", "stable_diffusion", (("size", "sd15"), *STEP), step=True)
TINY_UNET = Subject("tiny-unet-step", "stable_diffusion", (("size", "tiny"), *STEP), step=True)

MODES = ("compiled-default", "compiled-reduce-overhead", "compiled-max-autotune", "compiled-max-autotune-no-cudagraphs")
EVERY = (
    "eager", *MODES, "cudagraph", "scripted", "onnx", "aot", "eager-tf32", "eager-fp16", "eager-bf16",
    "compiled-default-bf16", "compiled-reduce-overhead-bf16", "int8",
)  # fmt: skip

SIZES: Mapping[tuple[str, str], Size] = {
    ("quick", "cpu"): Size(
        (CNN, RESNET, BERT[32]), ("custom_cnn",), ("eager", "compiled", "scripted", "onnx", "eager-bf16"),
        ("eager", "compiled"), (1, 4, 8), 2.0, 8.0, 2.0, 2, 150.0, 240.0, ("resnet50", "bert-32"),
    ),
    ("full", "cpu"): Size(
        (CNN, RESNET, *BERT.values(), TINY_UNET), ("custom_cnn", "resnet50", "bert-128"), EVERY, (), (1, 4, 8, 16, 32),
        6.0, 60.0, 5.0, 4, 1200.0, 1800.0,
    ),
    ("quick", "cuda"): Size(
        (CNN, RESNET, BERT[128], UNET), ("resnet50", "bert-128"),
        ("eager", "compiled-default", "compiled-reduce-overhead", "cudagraph", "compiled-reduce-overhead-bf16"),
        ("eager", "compiled-default"), (1, 8, 32), 1.5, 6.0, 1.5, 2, 60.0, 240.0, ("sd15-unet-step",),
    ),
    ("full", "cuda"): Size(
        (CNN, RESNET, *BERT.values(), UNET), ("custom_cnn", "resnet50", "bert-128"), EVERY, (), (1, 4, 8, 16, 32, 64),
        4.0, 30.0, 5.0, 4, 900.0, 3600.0,
    ),
}  # fmt: skip


def cells(size: Size, only: Sequence[str] = ()) -> Iterator[Cell]:
    """In the order in which they are measured: the ceiling first, as it says which rates to drive."""
    for subject in size.subjects:
        if only and subject.label not in only:
            continue
        for variant in size.of(subject):
            yield Cell("bare", subject, variant)
        if subject.label in size.served:
            for kind in ("lone", "ramp", "knee", "mixed"):
                yield Cell(kind, subject)
            for variant in size.pair(subject):
                yield Cell("profile", subject, variant)
