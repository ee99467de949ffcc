import numpy as np
import pytest
import torch

from tailrate.serve.runner.buckets import Bucket, Buffers, buckets, cut, sizes, smallest


def test_sizes_are_powers_of_two_and_the_largest_batch() -> None:
    assert [sizes(most) for most in (1, 2, 4, 6, 16)] == [
        (1,), (1, 2), (1, 2, 4), (1, 2, 4, 6), (1, 2, 4, 8, 16),
    ]  # fmt: skip


def test_buckets_are_every_size_at_every_length_smallest_first() -> None:
    assert buckets((4, 1)) == (Bucket(1), Bucket(4))
    assert buckets((4, 1), (32, 8)) == (Bucket(1, 8), Bucket(1, 32), Bucket(4, 8), Bucket(4, 32))
    assert [str(bucket) for bucket in (Bucket(4), Bucket(4, 32))] == ["4", "4x32"]


@pytest.mark.parametrize(
    ("rows", "length", "expected"),
    [
        (1, 5, Bucket(1, 8)),
        (2, 8, Bucket(4, 8)),
        (1, 9, Bucket(1, 32)),
        (4, 32, Bucket(4, 32)),
        (3, None, Bucket(4, 8)),
    ],
)
def test_the_smallest_bucket_that_holds_a_batch(rows: int, length: int | None, expected: Bucket) -> None:
    assert smallest(buckets((1, 4), (8, 32)), rows, length) == expected


def test_no_bucket_holds_it() -> None:
    with pytest.raises(ValueError, match="no bucket holds 5 rows"):
        smallest(buckets((1, 4)), 5, None)


def images(rows: int, value: float) -> dict[str, np.ndarray]:
    return {"image": np.full((rows, 2, 3), value, np.float32)}


def test_requests_are_laid_one_after_the_other_and_what_is_left_is_zero() -> None:
    made = Buffers(images(1, 0), buckets((2, 4)))
    made.fill([images(4, 9)], Bucket(4))
    made.fill([images(1, 1), images(2, 2)], Bucket(4))
    assert made.tensors[Bucket(4)][0][:, 0, 0].tolist() == [1, 2, 2, 0]
    assert made.tensors[Bucket(4)][0].shape == (4, 2, 3)
    made.fill([images(1, 5)], Bucket(2))
    assert made.tensors[Bucket(2)][0][:, 1, 2].tolist() == [5, 0]


def test_all_buckets_share_one_buffer_per_input() -> None:
    like = {"a": np.zeros((1, 4), np.int64), "b": np.zeros((1, 4), np.uint8)}
    made = Buffers(like, buckets((1, 2), (2, 4)))
    places = {tuple(tensor.untyped_storage().data_ptr() for tensor in found) for found in made.tensors.values()}
    assert len(places) == 1
    assert all(tensor.is_contiguous() for found in made.tensors.values() for tensor in found)
    first, second = made.tensors[Bucket(2, 4)]
    assert (first.dtype, first.untyped_storage().nbytes()) == (torch.int64, 2 * 4 * 8)
    assert (second.dtype, second.untyped_storage().nbytes()) == (torch.uint8, 2 * 4)
    assert made.holds(made.tensors[Bucket(1, 2)][1][:1])
    assert not made.holds(first.clone())


def test_shorter_requests_are_padded_in_both_dimensions() -> None:
    made = Buffers({"ids": np.zeros((1, 4), np.int64)}, buckets((3,), (4,)))
    made.fill([{"ids": np.full((3, 4), 9)}], Bucket(3, 4))
    made.fill([{"ids": np.full((1, 2), 1)}, {"ids": np.full((1, 3), 2)}], Bucket(3, 4))
    assert made.tensors[Bucket(3, 4)][0].tolist() == [[1, 1, 0, 0], [2, 2, 2, 0], [0, 0, 0, 0]]


def test_a_request_of_another_shape_is_an_error_and_not_broadcast_silently_over_more_rows() -> None:
    made = Buffers(images(1, 0), buckets((2,)))
    with pytest.raises(ValueError, match="could not broadcast"):
        made.fill([{"image": np.zeros((1, 2, 4), np.float32)}], Bucket(2))


def test_cut_takes_the_beginning_of_the_second_dimension() -> None:
    tensors = {"ids": np.arange(6).reshape(2, 3)}
    assert cut(tensors, None) is tensors
    assert cut(tensors, 2)["ids"].tolist() == [[0, 1], [3, 4]]
