import pytest
import torch

from tailrate.serve.runner.parity import TOLERANCE, Parity, compare, worst


def outputs(seed: int = 0) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 10, generator=drawn), torch.randn(4, 3, 5, generator=drawn)]


def test_equal_outputs_are_equal() -> None:
    found = compare(outputs(), outputs())
    assert (found.max_abs_error, found.relative_error, found.top1_agreement) == (0, 0, 1)
    assert found.cosine == pytest.approx(1)
    assert found.failure("fp32") is None


def test_errors_are_of_the_worst_output_and_row() -> None:
    reference = [torch.tensor([[1.0, 0.0], [0.0, 4.0]]), torch.full((2, 1), 10.0)]
    found = [torch.tensor([[1.0, 0.0], [2.0, 4.0]]), torch.full((2, 1), 11.0)]
    parity = compare(found, reference)
    assert parity.max_abs_error == 2
    assert parity.relative_error == 0.5
    assert parity.cosine == pytest.approx(4 / 20**0.5)
    assert parity.top1_agreement == 1


def test_top1_counts_rows_of_the_first_output() -> None:
    reference = [torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 2.0], [5.0, 1.0]])]
    found = [torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 2.0], [5.0, 1.0]])]
    assert compare(found, reference).top1_agreement == 0.75


@pytest.mark.parametrize("precision", TOLERANCE)
def test_what_is_beyond_the_tolerance_fails_with_its_figures(precision: str) -> None:
    error, _ = TOLERANCE[precision]
    reference = outputs()
    scale = reference[0].abs().max()
    within = [reference[0] + 0.5 * error * scale * torch.eye(4, 10), reference[1]]
    beyond = [reference[0] + 2 * error * scale * torch.eye(4, 10), reference[1]]
    assert compare(within, reference).relative_error == pytest.approx(0.5 * error, rel=1e-3)
    why = compare(beyond, reference).failure(precision)
    assert why is not None
    assert f"relative error {2 * error:.2g} (at most {error:g})" in why


@pytest.mark.parametrize("place", [0, 1])
def test_a_nan_anywhere_fails(place: int) -> None:
    broken = outputs()
    broken[place].view(-1)[3] = torch.nan
    for precision in TOLERANCE:
        assert compare(broken, outputs()).failure(precision) is not None


def test_of_two_comparisons_the_worse_figures_are_kept() -> None:
    one, other = Parity(1.0, 0.5, 0.9, 0.75), Parity(2.0, 0.25, 0.8, 1.0)
    assert worst(one, other) == worst(other, one) == Parity(2.0, 0.5, 0.8, 0.75)
