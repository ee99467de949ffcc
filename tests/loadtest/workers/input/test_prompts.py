"""Prompts that are drawn: the same for the same seed, none like another, as long as was asked for."""

import json

import numpy as np
import pytest

from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.workers.input.lengths import MOST, Lengths
from tailrate.loadtest.engine.workers.input.prompts import Prompts
from tailrate.loadtest.engine.workers.input.request_trace import RequestTrace
from tailrate.loadtest.engine.workers.input.tokenizer import Tokenizer


def lengths(text):
    return Lengths.parse(text, "--prompt-tokens")


def words(prompts, number):
    return str(prompts.inputs([number])["prompt"][0]).split()


def test_a_prompt_is_the_same_wherever_it_is_made_and_like_no_other():
    made = [Prompts(7, lengths("40"), lengths("uniform:10:20")) for _ in range(2)]
    texts = [[str(prompts.inputs([number])["prompt"][0]) for number in range(2000)] for prompts in made]
    assert texts[0] == texts[1]
    assert len({text[:40] for text in texts[0]}) == 2000  # no cache of prefixes can help, however small its blocks
    other = Prompts(8, lengths("40"), lengths("128"))
    assert str(other.inputs([3])["prompt"][0]) != texts[0][3]
    assert {int(made[0].inputs([number])["max_tokens"][0]) for number in range(500)} == {*range(10, 21)}


@pytest.mark.parametrize("shared", [0, 10, 40, 100])
def test_a_shared_prefix_is_that_of_all_and_the_rest_is_their_own(shared):
    prompts = Prompts(1, lengths("60"), lengths("8"), shared)
    first, second = words(prompts, 0), words(prompts, 1)
    alike = next((place for place, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]), 60)
    assert len(first) == len(second) == 60
    assert alike == min(shared, 60)


@pytest.mark.parametrize(
    ("text", "mean", "spread"),
    [("512", 512, 0), ("uniform:100:300", 200, 200 / 12**0.5), ("normal:500:50", 500, 50),
     ("lognormal:300:0.5", 300 * np.exp(0.125), 300 * np.exp(0.125) * (np.exp(0.25) - 1) ** 0.5)],
)  # fmt: skip
def test_lengths_are_drawn_as_they_are_written(text, mean, spread):
    rng = np.random.default_rng(5)
    drawn = np.array([lengths(text).draw(rng) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() == pytest.approx(spread, rel=0.05, abs=0.5)
    assert str(lengths(text)) == text
    assert drawn.min() >= 1


def test_lengths_stay_within_bounds():
    rng = np.random.default_rng(5)
    assert {lengths("normal:1:5").draw(rng) for _ in range(500)} >= {1}
    assert lengths(f"lognormal:{MOST}:3").draw(np.random.default_rng(0)) <= MOST


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-3", "1:2", "uniform:5", "uniform:9:5", "normal:5:0", "zipf:1:2", "nan", "1e9"]
)
def test_what_is_no_length_is_one_sentence(text):
    with pytest.raises(ScenarioError, match=r"--prompt-tokens '.*' is not understood; write for instance 512"):
        lengths(text)


MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 700, "output_length": 7, "hash_ids": [0, 9]},
]
SHAREGPT = [
    {"conversations": [{"from": "human", "value": "one two three"}, {"from": "gpt", "value": "four five"}]},
    {"conversations": [{"from": "gpt", "value": "nobody asked"}]},
    {"conversations": []},
    {"conversations": [{"from": "human", "value": "six"}, {"from": "gpt", "value": "seven eight nine"}]},
]


def traced(tmp_path, suffix, text):
    path = tmp_path / f"trace{suffix}"
    path.write_text(text)
    return Prompts(3, lengths("9"), lengths("9"), 0, RequestTrace.read(path))


def test_prompts_of_a_trace_share_the_blocks_that_its_own_did(tmp_path):
    prompts = traced(tmp_path, ".jsonl", "\n".join(map(json.dumps, MOONCAKE)))
    first, second, again = (words(prompts, number) for number in (0, 1, 2))
    assert (len(first), len(second)) == (1200, 700)
    assert first[:512] == second[:512]
    assert first[512:520] != second[512:520]
    assert len(again) == 1200
    assert first[:512] != again[:512]  # the second time through it nothing may be known already
    assert [int(prompts.inputs([number])["max_tokens"][0]) for number in range(4)] == [50, 7, 50, 7]
    assert prompts.as_json() == {"prompts": {"lengths": "trace.jsonl, 2 requests", "shared_prefix": 0}}


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,374,44,418,API log\n"
        "45,GPT-4,396,109,505,API log\n",
    ],
)
def test_tables_of_counts_give_lengths_and_prompts_of_their_own(tmp_path, text):
    prompts = traced(tmp_path, ".csv", text)
    assert [len(words(prompts, number)) for number in range(3)] == [374, 396, 374]
    assert [int(prompts.inputs([number])["max_tokens"][0]) for number in range(3)] == [44, 109, 44]
    assert words(prompts, 0)[:5] != words(prompts, 2)[:5]


def test_conversations_give_their_own_texts(tmp_path):
    prompts = traced(tmp_path, ".json", json.dumps(SHAREGPT))
    assert [str(prompts.inputs([number])["prompt"][0]) for number in range(3)] == [
        "one two three",
        "six",
        "one two three",
    ]
    assert [int(prompts.inputs([number])["max_tokens"][0]) for number in range(2)] == [2, 3]


@pytest.mark.parametrize(
    ("suffix", "text", "sentence"),
    [
        (".jsonl", "", "it holds 0 requests"),
        (".jsonl", "{]", "it cannot be read"),
        (".jsonl", "3", "row 1 is no object"),
        (".jsonl", '{"input_length": 3}', "row 1 has none of output_length"),
        (".jsonl", '{"input_length": "x", "output_length": 2}', "row 1 has 'x' as input_length"),
        (".jsonl", '{"input_length": 3, "output_length": 2, "hash_ids": ["a"]}', "hash_ids that are no whole numbers"),
        (".csv", "a,b\n1,2\n", "row 1 has none of input_length"),
        (".json", "{}", "no list of conversations"),
        (".txt", "x", "it is none of .jsonl"),
    ],
)
def test_a_trace_that_is_none_is_one_sentence(tmp_path, suffix, text, sentence):
    with pytest.raises(ScenarioError, match=r"--lengths .*trace") as problem:
        traced(tmp_path, suffix, text)
    assert sentence in str(problem.value)


def trained(folder):
    """A tokenizer that knows pairs and longer pieces of our words."""
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = Made(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = (str(Prompts(3, lengths("100"), lengths("8")).inputs([n])["prompt"][0]) for n in range(200))
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(texts, trainer)
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_with_a_tokenizer_prompts_have_just_so_many_tokens(tmp_path):
    from tokenizers import Tokenizer as Made

    theirs = Made.from_file(str(trained(tmp_path) / "tokenizer.json"))
    asked = lengths("uniform:1:300"), lengths("5")
    plain, exact = Prompts(1, *asked), Prompts(1, *asked, tokenizer=Tokenizer(tmp_path))
    counts = []
    for number in range(200):
        text, words = (str(each.inputs([number])["prompt"][0]) for each in (exact, plain))
        counts.append(len(theirs.encode(text, add_special_tokens=False)))
        assert counts[-1] == len(words.split())
        assert words.startswith(text)
    assert len(set(counts)) > 100
    assert exact.file == Prompts(1, *asked, tokenizer=Tokenizer(tmp_path / "tokenizer.json")).file != plain.file


@pytest.mark.parametrize("held", [None, b"{}", b"\xff"])
def test_what_is_no_tokenizer_is_one_sentence(tmp_path, held):
    if held is not None:
        (tmp_path / "tokenizer.json").write_bytes(held)
    with pytest.raises(ScenarioError, match="--tokenizer /") as problem:
        Tokenizer(tmp_path)
    assert len(str(problem.value).splitlines()) == 1
