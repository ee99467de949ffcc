"""What a campaign measures, as plain values: subjects (a model in some settings), and the cells of each, in order.

Pure. A cell is done once its file is there, and has a name that says which it is, so that a campaign that was killed
goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

RATES = 5
"""Of a ramp."""

Kind = Literal["bare", "lone", "ramp", "knee", "mixed", "profile"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in some settings: what one table is about."""

    label: str
    model: str
    settings: tuple[tuple[str, str], ...] = ()
    step: bool = False
    """Whether a call of the bare loop is a part of a request only (a step of the UNet)."""
    load: tuple[str, ...] = ()
    """What the load must be told to send such requests."""
    batches: tuple[int, ...] = ()
    """Its own, where those of the campaign are too large."""
    limit_seconds: float = 0.0
    """Its own, where that is more than the campaign's."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of it: quick or full, on a CPU or a GPU."""

    subjects: tuple[Subject, ...] = ()
    served: tuple[str, ...] = ()
    """Labels of those that are driven, too."""
    slow_subjects: tuple[str, ...] = ()
    """Labels of those that take long."""
    variants: tuple[str, ...] = ()
    slow_variants: tuple[str, ...] = ()
    """Variants that are measured for slow subjects."""
    compiled_variant: str = ""
    """Beside eager, what is driven and profiled: the compiled form that is meant to be its better."""
    batches: tuple[int, ...] = (1,)
    seconds: float = 1.0
    """Of each batch size of a bare loop."""
    step_seconds: float = 2.0
    settle_seconds: float = 0.5
    rounds: int = 1
    percent: int = 99
    """Of the objective: a percentile that so little time can say something of."""
    budget_seconds: float = 20.0
    """Of the search for a knee."""
    limit_seconds: float = 240.0
    """After which a cell in a process of its own is given up."""

    profiled: tuple[str, ...] | None = None
    """Labels of those of which traces are made; None: of all."""

    def of(self, subject: Subject) -> tuple[str, ...]:
        """The variants in which it is measured."""
        return self.slow_variants if subject.label in self.slow_subjects else self.variants

    def batches_of(self, subject: Subject) -> tuple[int, ...]:
        return subject.batches or self.batches

    def limit_of(self, subject: Subject) -> float:
        return max(subject.limit_seconds, self.limit_seconds)

    def pair(self, subject: Subject) -> tuple[str, str]:
        """The two that are driven side by side."""
        mine = self.of(subject)
        return "eager", self.compiled_variant if self.compiled_variant in mine else mine[-1]


STEP = (("steps", "1"), ("guidance", "1"))
CNN = Subject("custom_cnn", "custom_cnn")
# as numbers of four bytes a picture takes 602 kB, and what is measured is how fast those are sent
RESNET = Subject("resnet50", "resnet50", (("input", "uint8"),), load=("--input", "uint8"))
BERT = {length: Subject(f"bert-{length}", "bert", (("sequence", str(length)),)) for length in (32, 128, 512)}
UNET = Subject(
    "sd15-unet-step", "stable_diffusion", (("size", "sd15"), *STEP), step=True, batches=(1, 2), limit_seconds=900.0
)
TINY_UNET = Subject("tiny-unet-step", "stable_diffusion", (("size", "tiny"), *STEP), step=True)

MODES = ("compiled-default", "compiled-reduce-overhead", "compiled-max-autotune", "compiled-max-autotune-no-cudagraphs")
EVERY = (
    "eager", *MODES, "cudagraph", "scripted", "onnx", "aot", "eager-tf32", "eager-fp16", "eager-bf16",
    "compiled-default-bf16", "compiled-reduce-overhead-bf16", "int8",
)  # fmt: skip

SIZES: Mapping[tuple[str, str], Size] = {
    ("quick", "cpu"): Size(
        subjects=(CNN, RESNET, BERT[32]), served=("custom_cnn",), slow_subjects=("resnet50", "bert-32"),
        variants=("eager", "compiled", "scripted", "onnx", "eager-bf16"), slow_variants=("eager", "compiled"),
        compiled_variant="compiled",
        batches=(1, 4, 8), seconds=2.0, step_seconds=8.0, settle_seconds=2.0, rounds=2, percent=90,
        budget_seconds=150.0, limit_seconds=240.0,
    ),
    ("full", "cpu"): Size(
        subjects=(CNN, RESNET, *BERT.values(), TINY_UNET), served=("custom_cnn", "resnet50", "bert-128"),
        variants=EVERY, compiled_variant="compiled-default",
        batches=(1, 4, 8, 16, 32), seconds=6.0, step_seconds=60.0, settle_seconds=5.0, rounds=4,
        budget_seconds=1200.0, limit_seconds=1800.0,
    ),
    ("quick", "cuda"): Size(
        subjects=(CNN, RESNET, BERT[128]), served=("bert-128",), profiled=("bert-128",),
        variants=("eager", "compiled-reduce-overhead", "cudagraph"), compiled_variant="compiled-reduce-overhead",
        batches=(1, 8, 32), seconds=1.2, step_seconds=6.0, settle_seconds=1.2, rounds=2,
        budget_seconds=40.0, limit_seconds=240.0,
    ),
    ("full", "cuda"): Size(
        subjects=(CNN, RESNET, *BERT.values(), UNET), served=("custom_cnn", "resnet50", "bert-128"),
        variants=EVERY, compiled_variant="compiled-reduce-overhead",
        batches=(1, 4, 8, 16, 32, 64), seconds=4.0, step_seconds=30.0, settle_seconds=5.0, rounds=4,
        budget_seconds=900.0, limit_seconds=3600.0,
    ),
}  # fmt: skip


START_S = {"cpu": 8.0, "cuda": 12.0}
"""Of a process: torch, weights, and on a GPU its driver. As measured on two cores; on a GPU a guess."""
COMPILING_S = {"max-autotune": 240.0, "compiled": 40.0, "aot": 40.0, "onnx": 20.0, "int8": 20.0}
"""Until every size is warm that nothing was kept of, by the first word that is in the variant's name."""
WARM = 0.3
"""Of that, where it was kept."""
SERVER_S = 15.0
"""Until a server is there, without its models."""
PART_S = 6.0
"""Of a run, beside its steps: idle before and after, its self-check, its report."""


def expected_s(cell: Cell, size: Size, device: str) -> float:
    """How long a cell takes, as nothing was measured yet: steps as planned, starts as they usually are."""
    step = size.step_seconds + size.settle_seconds + PART_S / 4
    if cell.kind in ("bare", "profile"):
        cold = START_S[device] + _compiling_s(cell.variant)
        warm = START_S[device] + WARM * _compiling_s(cell.variant)
        timed = 1.5 * size.seconds * len(size.batches_of(cell.subject))  # latency, then throughput for half as long
        return warm + timed if cell.kind == "profile" else cold + timed + warm
    return {
        "lone": SERVER_S + sum(WARM * _compiling_s(variant) for variant in size.pair(cell.subject)) + 2 * step + PART_S,
        "ramp": 2 * RATES * size.rounds * step + PART_S,
        "knee": 2 * size.budget_seconds + PART_S,
        "mixed": 3 * 2 * step + 2 * PART_S,
    }[cell.kind]


def _compiling_s(variant: str) -> float:
    return next((seconds for word, seconds in COMPILING_S.items() if word in variant), 0.0)


def cells(size: Size, only: Sequence[str] = ()) -> Iterator[Cell]:
    """In the order in which they are measured: the ceiling first, as it says which rates to drive."""
    for subject in size.subjects:
        if only and subject.label not in only:
            continue
        for variant in size.of(subject):
            yield Cell("bare", subject, variant)
        if size.profiled is None or subject.label in size.profiled:
            for variant in size.pair(subject):
                yield Cell("profile", subject, variant)
        if subject.label in size.served:
            for kind in ("lone", "ramp", "knee", "mixed"):
                yield Cell(kind, subject)
