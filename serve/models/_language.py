"""What the language models have in common: their specs, and where their weights and tokenizers come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrate.serve.models._llama_tokenizer import BEGIN, END, FILE
from tailrate.serve.models._text import TextTokens
from tailrate.serve.spec import Language, ModelSpec, ServeError, Tensors
from tailrate.serve.wire import Array, TensorSpec, WireError

if TYPE_CHECKING:
    import torch

SLOTS = (8, 32)
CHUNK = 128
TEMPLATE = (
    "{% for message in messages %}" + BEGIN + "{{ message['role'] }}\n{{ message['content'] }}" + END + "{% endfor %}"
    + BEGIN + "assistant{{ '\\n' }}"
)  # fmt: skip


def language(
    name: str,
    config: Callable[[int], Any] | None,
    weights: str,
    context: int,
    chunk: int,
    words: int = 0,
    **settings: Any,
) -> ModelSpec:
    """`config` makes one of transformers' for so many tokens of a vocabulary; None: the weights' folder has it.

    `words`: a vocabulary of that size, as scoring one costs what its size says; 0: as large as the tokenizer's own.
    """
    folder = Path(weights) if Path(weights).is_dir() else None
    if not 16 <= chunk <= context:
        raise ServeError(f"{name} takes prefill_chunk from 16 to context, which is {context}")

    @cache
    def tokens() -> TextTokens:
        return TextTokens.of_folder(folder) if folder else TextTokens(own_tokenizer(words))

    def build() -> torch.nn.Module:
        from transformers import AutoModelForCausalLM

        assert config is not None
        made: torch.nn.Module = AutoModelForCausalLM.from_config(config(tokens().known))
        return made

    def pretrained(source: str) -> torch.nn.Module:
        import torch
        from transformers import AutoModelForCausalLM

        try:
            found: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
                source, dtype=torch.float32, local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError) as problem:
            reason = str(problem).strip().split("\n", 1)[0]
            raise ServeError(f"{source} holds no language model that can be read: {reason}") from None
        return found

    return ModelSpec(
        name=name,
        inputs=(TensorSpec("text", "BYTES", (-1, 1)),),
        outputs=(TensorSpec("text", "BYTES", (-1, 1)),),
        default_outputs=("text",),
        prepare=_no_tensors,
        example=lambda rows, seed: {},
        build=build,
        pretrained=pretrained,
        from_folder=True,
        only_from_folder=config is None,
        language=Language(tokens, SLOTS, context, chunk),
        settings={"context": context, "prefill_chunk": chunk, **settings},
        parameters={"context": context, "openai": "v1/chat/completions, v1/completions"},
    )


def own_tokenizer(words: int = 0) -> Any:
    """With made-up words behind those that it learned, up to so many."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    said = json.loads(FILE.read_text(encoding="utf-8"))
    known = said["model"]["vocab"]
    known |= {f"\u0120x{number}": number for number in range(len(known), words)}
    made = Tokenizer.from_str(json.dumps(said))
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BEGIN, eos_token=END, chat_template=TEMPLATE)


def _no_tensors(tensors: Tensors) -> dict[str, Array]:
    raise WireError(400, "this model writes text: ask it at v1/chat/completions or v1/completions")
