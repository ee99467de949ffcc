"""Trains the WordPiece vocabulary of `bert`'s text input; `python -m tailrate.serve.models._bert_vocabulary` writes it.

The text is our own: sentences that a seeded generator makes from the word lists below, and the prose of
this project (its pages and docstrings). So nothing is downloaded, and the file may be shipped. The file
is a kept artefact: only running this again changes it, and then every id (the trainer numbers ties as
they come).
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tailrate.serve.models.bert import VOCABULARY

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZE = 6000

_LISTS = """
people:
engineer operator researcher customer teacher doctor writer reader child mother father friend neighbour driver pilot
farmer painter singer lawyer nurse student sailor baker tailor manager visitor stranger worker player captain
soldier chef guest author editor judge mayor king queen scientist programmer designer analyst reviewer
things:
server model request batch graph kernel tensor image sentence answer question number table window door road river
mountain city village house garden kitchen machine engine wheel bridge train ship aeroplane letter book page story
song picture colour stone tree flower leaf forest field animal horse dog cat bird fish bread milk water wine coffee
tea sugar salt fire light shadow morning evening night summer winter spring autumn storm rain snow wind cloud sun
moon star earth sea island country market shop money price paper pencil computer phone camera clock map key box bag
coat shoe hat shirt chair bed lamp mirror knife spoon plate cup bottle idea plan reason result report measurement
experiment queue latency throughput memory device network cable signal message language word lesson school hospital
office factory film game team match medicine health body hand foot head heart eye ear mouth voice mind dream memory
history science art music law government company product service system problem solution method theory example
energy power temperature speed weight length height distance second minute hour day week month year century
percentile deadline arrival rate load
qualities:
small large quick slow warm cold bright dark heavy light new old young early late quiet loud simple hard easy
difficult strange common rare useful careful certain possible important expensive cheap strong weak clean dirty
empty full open closed deep shallow long short wide narrow round flat sharp soft rough smooth sweet bitter fresh dry
wet happy sad angry calm proud afraid brave clever foolish honest kind polite famous modern ancient local foreign
public private free busy lazy tired ready steady stable reliable red green blue yellow white black brown grey golden
silver wooden
actions:
sees finds takes gives makes brings keeps holds sends receives opens closes reads writes draws paints builds breaks
repairs washes cooks eats drinks buys sells pays counts measures compares compiles loads serves answers asks tells
shows hides follows leads carries pushes pulls lifts drops throws catches starts stops changes moves turns watches
hears remembers forgets learns teaches understands explains describes believes doubts hopes wants needs likes loves
hates helps saves loses wins plays practises plans expects promises refuses accepts chooses collects records reports
improves reduces increases limits protects supports creates destroys discovers visits leaves reaches crosses passes
meets
manners:
quickly slowly carefully quietly suddenly often always never sometimes usually rarely already still soon together
alone again almost exactly nearly perhaps probably certainly clearly finally gently happily easily hardly here there
everywhere outside inside yesterday today tomorrow tonight now then later before afterwards
links:
because although while when before after since until unless and but or so therefore however if where
places:
in on under over behind beside between near through across along around from to into with without against for about
during within beyond above below
frames:
the a this that every some no any another each his her our their my your its one two three four five six seven eight
nine ten hundred thousand many several few most
plain:
compiled eager traffic network real fake model test load i you he she it we they me him us them who which what whose
why how is are was were be been being am do does did done have has had will would can could may might must should
shall not yes as than too very much more less only just even such same other own both either neither all half up
down out off back away first last next once twice hello thanks please good better best bad worse worst great world
people man woman men women time life work way thing part place case point home side end line group fact right left
true false nothing something everything nobody somebody everybody went came said saw got made took gave told knew
thought felt found
"""


def _lists() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in _LISTS.split(":")[:-1]:
        found[part.split()[-1]] = []
    for kind, part in zip(found, _LISTS.split(":")[1:], strict=True):
        found[kind] = [word for word in part.split() if word not in found]
    return found


def sentences(count: int, seed: int) -> Iterator[str]:
    """Seeded sentences over the word lists; they need to be words in context, not sense."""
    drawn, lists = random.Random(seed), _lists()

    def pick(kind: str) -> str:
        return drawn.choice(lists[kind])

    def noun() -> str:
        word = drawn.choice(lists["things"] if drawn.random() < 0.7 else lists["people"])
        return f"{pick('frames')} {pick('qualities') + ' ' if drawn.random() < 0.5 else ''}{_inflect(word, drawn)}"

    def verb() -> str:
        word = pick("actions")
        stem = word.removesuffix("es") if word.endswith(("shes", "ches", "sses")) else word.removesuffix("s")
        return drawn.choice((word, stem, f"to {stem}", stem.removesuffix("e") + "ing", stem.removesuffix("e") + "ed"))

    for _ in range(count):
        clause = f"{noun()} {verb()} {noun()} {pick('places')} {noun()}"
        if drawn.random() < 0.4:
            clause += f" {pick('links')} {pick('plain')} {pick('plain')} {verb()} {noun()}"
        yield f"{clause} {pick('manners')}{drawn.choice('.?!,;:')} {pick('plain')} {drawn.randrange(3000)}"


def _inflect(word: str, drawn: random.Random) -> str:
    return word + drawn.choice(("", "", "", "", "", "s", "s", "'s", "ing", "ed"))


def prose(root: Path) -> Iterator[str]:
    """The project's own pages and docstrings."""
    for page in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]):
        yield page.read_text(encoding="utf-8")
    for file in sorted([*root.glob("serve/**/*.py"), *root.glob("analysis/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield text


def train(texts: Iterable[str], size: int = SIZE) -> list[str]:
    """The words of the vocabulary in the order of their ids."""
    from tokenizers import trainers

    from tailrate.serve.models.bert import wordpiece

    learner = wordpiece(SPECIAL)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=SPECIAL,
        initial_alphabet=[chr(code) for code in range(33, 127)],
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    ids: dict[str, int] = learner.get_vocab(with_added_tokens=True)
    return sorted(ids, key=ids.__getitem__)


def main() -> None:
    root = Path(__file__).parents[2]
    words = train([*sentences(20_000, seed=1), *list(prose(root)) * 10])  # ten times: prose has the rarer words
    VOCABULARY.write_text("\n".join(words) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(words)} words in {VOCABULARY}\n")


if __name__ == "__main__":
    main()
