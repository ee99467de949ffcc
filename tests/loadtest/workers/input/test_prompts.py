"""Prompts that are drawn: the same for the same seed, none like another, as long as was asked for."""

import numpy as np
import pytest

from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.loadtest.engine.workers.input.lengths import MOST, Lengths
from tailrate.loadtest.engine.workers.input.prompts import Prompts


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
