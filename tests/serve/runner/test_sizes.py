import torch

from tailrate.serve.runner.sizes import module_bytes, peak_memory


class Allocator:
    """A CUDA allocator: holds the weights, and its peak since the last reset."""

    def __init__(self, weights: int) -> None:
        self.now = self.peak = weights

    def batch(self, rows: int) -> None:
        self.peak = max(self.peak, self.now + 10 * rows)

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.now

    def max_memory_allocated(self) -> int:
        return self.peak

    def memory_reserved(self) -> int:
        return 4096

    def synchronize(self) -> None: ...


def test_peak_memory_is_that_of_each_batch_size_alone() -> None:
    memory = Allocator(1000)
    memory.batch(64)  # the warm-up's
    assert peak_memory(memory.batch, (4, 1), memory) == {
        "warmup_peak_memory_bytes": 1640,
        "batch_4_peak_memory_bytes": 1040,
        "batch_1_peak_memory_bytes": 1010,
        "reserved_memory_bytes": 4096,
    }


def test_a_module_weighs_its_parameters_and_buffers_and_tied_ones_once() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.BatchNorm1d(4))
    assert module_bytes(module) == 16 * 4 + 4 * 4 * 4 + 8
    tied = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    tied[1].weight = tied[0].weight
    assert module_bytes(tied) == 16 * 4
    assert module_bytes(tied.half()) == 16 * 2
