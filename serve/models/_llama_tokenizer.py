"""Trains the tokenizer of the models that are made here: `python -m tailrate.serve.models._llama_tokenizer` writes it.

Pairs of bytes that are frequent in text of our own, as in bert's vocabulary; nothing is downloaded, and the file may be
shipped. Only running this again changes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tailrate.serve.models._bert_vocabulary import prose, sentences

if TYPE_CHECKING:
    import tokenizers

FILE = Path(__file__).with_name("llama_tokenizer.json")
BEGIN, END = "<s>", "</s>"
SIZE = 2048


def train(texts: Iterable[str], size: int = SIZE) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BEGIN, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return made


def main() -> None:
    made = train([*sentences(20_000, seed=1), *list(prose(Path(__file__).parents[2])) * 10])
    made.save(str(FILE), pretty=False)
    sys.stdout.write(f"{made.get_vocab_size()} tokens in {FILE}\n")


if __name__ == "__main__":
    main()
