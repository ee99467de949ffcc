"""Tokens that are drawn, against the softmax that they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

from tailrate.serve.engine.language.sampling import Sampling, chosen, gumbel, without  # noqa: E402

SCORES = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, -3.0, 1.5, 0.2])
DRAWS = 20_000


def drawn(how: Sampling, counts: range = range(DRAWS)) -> np.ndarray:
    rows = len(counts)
    found = chosen(SCORES.repeat(rows, 1), [how] * rows, list(counts))
    return np.bincount(found.numpy(), minlength=len(SCORES))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_come_as_the_softmax_says(temperature: float) -> None:
    expected = torch.softmax(SCORES.double() / temperature, 0).numpy() * DRAWS
    seen = drawn(Sampling(temperature, seed=5))
    enough = expected >= 5
    seen, expected = (np.append(each[enough], each[~enough].sum()) for each in (seen, expected))
    seen, expected = seen[expected > 0], expected[expected > 0]
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-4


def test_seeds_are_as_good_as_counts() -> None:
    rows = [Sampling(1.0, seed=seed) for seed in range(DRAWS)]
    found = np.bincount(chosen(SCORES.repeat(DRAWS, 1), rows, [0] * DRAWS).numpy(), minlength=len(SCORES))
    expected = torch.softmax(SCORES.double(), 0).numpy() * DRAWS
    assert stats.chisquare(found, expected).pvalue > 1e-4


def test_noise_is_gumbels_and_no_two_of_a_row_hang_together() -> None:
    noise = gumbel(torch.arange(200), torch.arange(200) % 7, 500).numpy()
    assert stats.kstest(noise.ravel(), "gumbel_r").pvalue > 1e-4
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.02


def test_a_row_is_drawn_alike_whoever_is_beside_it() -> None:
    rng = np.random.default_rng(1)
    scores = torch.from_numpy(rng.normal(size=(6, 40)).astype(np.float32))
    best, warm = Sampling(0.0), Sampling(1.0, seed=3)
    lowest, highest = Sampling(0.7, 0.8, seed=-(1 << 63)), Sampling(2.0, 0.3, seed=(1 << 64) - 1)
    how = [best, warm, lowest, highest, best, warm]
    counts = [0, 5, 9, 2, 8, 6]
    together = chosen(scores, how, counts).tolist()
    alone = [int(chosen(scores[k : k + 1], [how[k]], [counts[k]])) for k in range(6)]
    order = rng.permutation(6)
    mixed = chosen(scores[order.tolist()], [how[k] for k in order], [counts[k] for k in order]).tolist()
    assert together == alone
    assert [mixed[order.tolist().index(k)] for k in range(6)] == alone
    assert together[0] == int(scores[0].argmax())
    assert together[4] == int(scores[4].argmax())


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.8, 0.95])
def test_of_the_likely_ones_alone(top_p: float) -> None:
    shares = torch.softmax(SCORES.double(), 0).numpy()
    order = np.argsort(-shares)
    many = int(np.searchsorted(np.cumsum(shares[order]), top_p)) + 1
    seen = drawn(Sampling(1.0, top_p, seed=2))
    assert set(np.flatnonzero(seen)) == set(order[:many])
    if many > 1:
        expected = shares[order[:many]] / shares[order[:many]].sum() * DRAWS
        assert stats.chisquare(seen[order[:many]], expected).pvalue > 1e-4


@pytest.mark.parametrize("how", [Sampling(1.0, 0.0), Sampling(1e-30), Sampling(1e-40), Sampling(1e-300, 0.9)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_smallest_temperature_and_share_leave_the_best_token(how: Sampling, dtype: str) -> None:
    large = torch.tensor([5e4, -6e4, 6e4, 0.0, float("-inf")])
    two_are_best = torch.tensor([0.0, 3.0, 3.0, -1.0, 1.0])
    scores = torch.stack([large, two_are_best]).to(getattr(torch, dtype)).repeat(50, 1)
    found = chosen(scores, [how] * 100, list(range(100))).view(50, 2)
    assert set(found[:, 0].tolist()) == {2}
    assert set(found[:, 1].tolist()) <= {1, 2}


def test_tokens_that_are_out_of_reach_are_those_of_each_row() -> None:
    scores = torch.arange(12.0).reshape(3, 4)
    found = without(scores, [(), (0, 3), (2,)])
    for row, banned in enumerate([(), (0, 3), (2,)]):
        for token in range(4):
            assert found[row, token] == (float("-inf") if token in banned else scores[row, token])
    assert without(scores, [(), (), ()]) is scores
