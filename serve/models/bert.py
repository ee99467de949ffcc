"""BERT (transformers' `BertModel`, base size): token ids or text in, pooled and per-token vectors out.

Every request is padded to `sequence` tokens, so that one compiled shape per bucket serves them all; with several
`sequences` (32,128,512) each batch is as long as the shortest of them that holds its longest request.
Random weights go with a WordPiece vocabulary that this project trained itself (`serve/models/_bert_vocabulary.py`);
pretrained ones, from the hub or a folder, bring their own tokenizer. Ids are checked against the
model's vocabulary here, because one id too large would take down its whole batch on the device.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.serve import wire
from tailrate.serve.spec import ModelSpec, ServeError, Tensors
from tailrate.serve.wire import Array, TensorSpec, WireError

if TYPE_CHECKING:
    import tokenizers
    import torch

HUB = "bert-base-uncased"
VOCABULARY = Path(__file__).with_name("bert_vocabulary.txt")
WORDS = 30522
PAD = 0
MOST_BYTES_PER_TOKEN = 32
"""Of a text that may fit: its tokens are not counted where it has more, as that alone takes long."""
IDS = TensorSpec("input_ids", "INT64", (-1, -1))
MASK = TensorSpec("attention_mask", "INT64", (-1, -1))


def spec(
    *, sequence: int = 128, sequences: str = "", layers: int = 12, hidden: int = 768, weights: str = "random"
) -> ModelSpec:
    """`layers` and `hidden` make it smaller or larger than base; heads are of 64, as in base."""
    lengths = _lengths(sequences)
    sequence = max(lengths, default=sequence)
    if not 2 <= sequence <= 512 or layers < 1 or hidden < 64 or hidden % 64:
        raise ServeError("bert takes sequence from 2 to 512, layers from 1, and hidden in multiples of 64")
    source = weights if weights == "pretrained" or Path(weights).is_dir() else None
    words = WORDS
    if source and source != "pretrained":
        hidden, words = _sizes(Path(source))
    tokens = Tokens(sequence, words, source, fixed=not lengths)

    def build() -> torch.nn.Module:
        _ = tokens.tokenizer  # loaded here, in the device's thread, and not by the first request
        from transformers import BertConfig

        made: torch.nn.Module = _bert_class()(
            BertConfig(
                vocab_size=WORDS,
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=hidden // 64,
                intermediate_size=4 * hidden,
            )
        )
        return made

    def pretrained(source: str) -> torch.nn.Module:
        _ = tokens.tokenizer
        found: torch.nn.Module = _bert_class().from_pretrained(HUB if source == "pretrained" else source)
        return found

    return ModelSpec(
        name="bert",
        inputs=(IDS, MASK),
        outputs=(
            TensorSpec("pooler_output", "FP32", (-1, hidden)),
            TensorSpec("last_hidden_state", "FP32", (-1, -1 if lengths else sequence, hidden)),
        ),
        default_outputs=("pooler_output",),
        prepare=tokens.prepare,
        text="text",
        example=tokens.example,
        build=build,
        pretrained=pretrained,
        from_folder=True,
        lengths=lengths,
        settings={"sequence": sequence, "sequences": sequences, "layers": layers, "hidden": hidden},
        parameters={
            "sequence": sequence,
            "sequences": ",".join(map(str, lengths or (sequence,))),
            "text_input": "text BYTES [-1, 1] may be sent instead of input_ids and attention_mask",
            "optional_inputs": "attention_mask",
        },
    )


def _lengths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(word) for word in text.split(",")})) if text else ()
    except ValueError:
        raise ServeError(f"sequences are lengths such as 32,128,512, not '{text}'") from None
    if found and found[0] < 2:
        raise ServeError("bert takes sequences from 2 to 512")
    return found


class Tokens:
    """What turns texts or token ids into the two tensors of the module, `sequence` tokens wide, or at most that."""

    def __init__(self, sequence: int, words: int, source: str | None, *, fixed: bool) -> None:
        self.sequence = sequence
        self._fixed = fixed
        self.words = words
        self._source = source

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        return tokenizer(self._source)

    def prepare(self, tensors: Tensors) -> dict[str, Array]:
        if "text" in tensors:
            if others := [name for name in tensors if name != "text"]:
                raise WireError(400, f"send either 'text' or token ids, not both 'text' and {', '.join(others)}")
            return self.encode(tensors["text"])
        wire.check(tensors, (IDS, MASK) if "attention_mask" in tensors else (IDS,))
        return self.pad(tensors["input_ids"], tensors.get("attention_mask"))

    def example(self, rows: int, seed: int) -> dict[str, Array]:
        drawn = np.random.default_rng(seed)
        length = drawn.integers(2, self.sequence + 1, (rows, 1))
        known = np.arange(self.sequence) < length
        ids = drawn.integers(1, self.words, (rows, self.sequence))
        return {"input_ids": np.where(known, ids, PAD), "attention_mask": known.astype(np.int64)}

    def encode(self, text: Array) -> dict[str, Array]:
        if text.dtype != object or text.ndim not in (1, 2) or text.shape[1:] not in ((), (1,)):
            raise WireError(400, f"input 'text' must be BYTES of shape [-1, 1] or [-1], not {list(text.shape)}")
        most = MOST_BYTES_PER_TOKEN * self.sequence
        if long := [row for row, item in enumerate(text.reshape(-1)) if len(item) > most]:
            raise WireError(400, f"text {long[0]} has more than {most} bytes, too many for {self.sequence} tokens")
        try:
            lines = [bytes(item).decode() for item in text.reshape(-1)]
        except UnicodeDecodeError:
            raise WireError(400, "input 'text' is not valid UTF-8") from None
        found = [item.ids for item in self.tokenizer.encode_batch_fast(lines)]
        for row, ids in enumerate(found):
            self._check_length(len(ids), f"text {row}")
        padded = np.full((len(found), self._width(max(map(len, found)))), PAD, np.int64)
        mask = np.zeros_like(padded)
        for row, ids in enumerate(found):
            padded[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
        return {"input_ids": padded, "attention_mask": mask}

    def pad(self, ids: Array, mask: Array | None) -> dict[str, Array]:
        self._check_length(ids.shape[1], "input_ids")
        if ids.shape[1] < 1 or ids.min() < 0 or ids.max() >= self.words:
            raise WireError(400, f"input_ids must hold at least one token id per row, each from 0 to {self.words - 1}")
        if mask is None:
            mask = (ids != PAD).astype(np.int64)
        if mask.shape != ids.shape or mask.min() < 0 or mask.max() > 1:
            raise WireError(400, f"attention_mask must hold 0 or 1 in the shape of input_ids, {list(ids.shape)}")
        if (more := self._width(ids.shape[1]) - ids.shape[1]) == 0:
            return {"input_ids": ids, "attention_mask": mask}
        missing = ((0, 0), (0, more))
        return {"input_ids": np.pad(ids, missing, constant_values=PAD), "attention_mask": np.pad(mask, missing)}

    def _width(self, length: int) -> int:
        """To which a request is padded here; what has several lengths is padded with the batch."""
        return self.sequence if self._fixed else length

    def _check_length(self, length: int, what: str) -> None:
        if length > self.sequence:
            raise WireError(400, f"{what} is {length} tokens long, but the model takes at most {self.sequence}")


def _sizes(folder: Path) -> tuple[int, int]:
    """Width and vocabulary of the model that lies in a Hugging Face folder."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return int(found["hidden_size"]), int(found["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ServeError(f"{folder} is no Hugging Face folder of a BERT: its config.json cannot be read") from None


def tokenizer(source: str | None = None) -> tokenizers.Tokenizer:
    """Ours, or with a source ('pretrained', a folder) the one that belongs to those weights."""
    if source is not None:
        from transformers import AutoTokenizer

        name = HUB if source == "pretrained" else source
        found: tokenizers.Tokenizer = AutoTokenizer.from_pretrained(name).backend_tokenizer
        return found
    return wordpiece(VOCABULARY.read_text(encoding="utf-8").split("\n"))


def wordpiece(words: Sequence[str]) -> tokenizers.Tokenizer:
    """BERT's uncased tokenizer over these words, whose place in the list is their id."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {word: place for place, word in enumerate(words) if word}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))  # noqa: S106
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return made


def _bert_class() -> Any:
    from tailrate.serve.models._bert_module import Bert  # with transformers, so not before it is needed

    return Bert
