"""How a language model comes to be ready: as any other model, but for what it is called with and compared by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.serve.engine.language.runner import LanguageRunner
from tailrate.serve.engine.language.shapes import Shapes
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner import parity
from tailrate.serve.runner.open_runner import CUDA_CALLS, Opening, Say, Watcher
from tailrate.serve.runner.runner import first_line, nvml_name, out_of_memory
from tailrate.serve.spec import BuildContext, ModelSpec, ServeError, Variant
from tailrate.serve.variants._precision import cast, without_tf32

if TYPE_CHECKING:
    import torch

    from tailrate.serve.engine.language.steps import Steps

FORCED = 8
"""Tokens of a seeded prompt, after which each further one is compared."""


@contextmanager
def open_language(
    spec: ModelSpec, variant: Variant, options: ServeOptions, say: Say, watch: Watcher | None = None
) -> Iterator[LanguageRunner]:
    """To be used by this thread, while the block lasts."""
    say("loading torch")
    import torch

    with torch.inference_mode():
        opening = LanguageOpening(spec, variant, options, say)
        if watch is not None:
            watch.opened(opening.compiler, opening.reference, lambda found: found.failure(variant.precision))
        yield opening.runner


class LanguageOpening(Opening):
    def _runner_of(self, module: torch.nn.Module, options: ServeOptions) -> LanguageRunner:
        import torch

        language = self._spec.language
        assert language is not None
        cuda = self._device.type == "cuda"
        slots = options.largest_batch or language.slots[cuda]
        name = nvml_name(torch.cuda.get_device_properties(0)) if cuda else "cpu"
        shapes = Shapes(slots, language.context, language.chunk)
        return LanguageRunner(shapes, slots, self._device, name, language.tokens().known)

    def _reference_of(self, module: torch.nn.Module) -> Any:
        return partial(self._plain, module)

    def _plain(self, module: Any, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The scores that the model has without a cache, of what follows these tokens."""
        import torch

        with without_tf32(), plainly(module):
            ids = torch.as_tensor(inputs[0]).to(self._device)
            return (module(input_ids=ids, logits_to_keep=1).logits[:, -1].float(),)

    def _built(self, module: torch.nn.Module, mode: str, folder: Path) -> Any:
        """The steps that write and those that read, each with a cache of its own over the same weights."""
        from tailrate.serve.engine.language.steps import Steps as Made

        runner: LanguageRunner = self.runner
        model: Any = module
        shapes, kind = runner.shapes, self._device.type
        made, called = [], []
        for rows, length, some in (
            (shapes.rows[-1], shapes.lengths[-1], shapes.writing),
            (1, shapes.read_lengths[-1], shapes.reading),
        ):
            examples = tuple(runner.example(shape) for shape in some)
            with _refusing(model.config.model_type):
                ready = cast(Made(model, rows, length), self._variant.precision, kind)
                ready(*examples[0])
            names = tuple(map(str, some))
            made.append(cast_steps(ready))
            called.append(
                self._variant.build(BuildContext(self._spec, ready, examples, kind, mode, folder, self._say, names))
            )
        runner.steps = made[0], made[1]
        return called[0], called[1]

    def _warm(self) -> None:
        runner: LanguageRunner = self.runner
        for shape in self._warming("step"):
            for _ in range(CUDA_CALLS if self._device.type == "cuda" else 1):
                runner.execute(shape)

    def _compare(self, module: torch.nn.Module, buckets: Sequence[Any]) -> parity.Parity:
        """The scores of tokens that are forced, in every shape, with those of the module without a cache."""
        import torch

        runner: LanguageRunner = self.runner
        found, wanted = [], []
        drawn = torch.Generator().manual_seed(self._seed + 1)
        for shape in buckets:
            reads = shape.tokens > 1
            size = shape.tokens if reads else FORCED + 1
            rows = 1 if reads else shape.rows
            texts = torch.randint(runner.words, (rows, size), generator=drawn)
            wanted += [row.cpu() for row in self._plain(module, [texts])[0]]
            if reads:
                found += [row.cpu().clone() for row in runner.read(texts[0].tolist(), 0, shape)]
                continue
            for row, text in enumerate(texts.tolist()):
                runner.read(text[:-1], 0)
                runner.adopt(row, FORCED)
            scores = runner.write(texts[:, -1].tolist(), [FORCED] * rows, shape)
            found += [row.cpu().clone() for row in scores]
        if (text := self._beyond(module, drawn)) is not None:
            wanted += [row.cpu() for row in self._plain(module, [text])[0]]
            *read, last = text[0].tolist()
            for begin in range(0, len(read), runner.chunk):
                runner.read(read[begin : begin + runner.chunk], begin)
            runner.adopt(0, len(read))
            found += [row.cpu().clone() for row in runner.write([last], [len(read)])]
        return parity.compare((torch.stack(found),), (torch.stack(wanted),))

    def _beyond(self, module: Any, drawn: torch.Generator) -> torch.Tensor | None:
        """A text that is longer than some layers look back, where there may be such."""
        import torch

        window = getattr(module.config.get_text_config(), "sliding_window", None)
        if window is None or window + FORCED >= self.runner.context:
            return None
        return torch.randint(self.runner.words, (1, window + FORCED + 1), generator=drawn)


@contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """What a model cannot do as it is, is not the compiler's fault."""
    try:
        yield
    except Exception as problem:
        if isinstance(problem, ServeError) or out_of_memory(problem):
            raise
        why = first_line(problem)
        raise ServeError(f"a model of the kind {kind} cannot be continued from rows of a cache: {why}") from problem


def cast_steps(ready: Any) -> Steps:
    """Those inside of what a precision put around them."""
    found: Steps = getattr(ready, "inner", ready)
    return found


@contextmanager
def plainly(module: Any) -> Iterator[None]:
    """With attention as transformers does it."""
    ours = module.config._attn_implementation
    module.set_attn_implementation("eager")  # which all have
    try:
        yield
    finally:
        module.set_attn_implementation(ours)
