"""Changes that break the code on purpose: does a test notice each of them?

A suite may be made faster by leaving out the very line that would have caught something. So places are listed here that
matter to the truth of the figures, or to the safety of what serves and drives: a sign, a bound, a unit, a forgotten
await, a dropped row, a swapped pair, a lost lock. Each change is made alone in a copy of the tree, and the tests named
beside it are run there: one of them has to fail. A change that makes them hang counts as noticed, since a suite that
runs into a time limit has not passed.

Prints a table (the change, its place, which test failed first), then one JSON line; ends with 1 if any was not noticed.

    python tests/mutants.py [--only TEXT] [--jobs 1] [--tree FOLDER] [--json FILE] [--whole]

`--tree` takes another checkout, such as the one before tests were changed: a test that has another name there stands
for its whole file. `--whole` runs the whole files of the named tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
KINDS = ("sign", "bound", "unit", "await", "row", "pair", "lock", "wake", "factor", "leak")
SHORTEST_S, LONGER = 45.0, 4.0
"""The time limit: so many times what the tests take without a change, and this at least."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change; `old` is in the file once. `tests` are the quickest that see it, as pytest's words below tests/."""

    name: str
    kind: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.path.partition("/")[0].removesuffix(".py")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one; `by` is the first test that failed, or why there is none."""

    mutant: Mutant
    line: int
    caught: bool
    by: str
    seconds: float


# each in three parts: what it is, what becomes what, and who sees it
# fmt: off
SERVE = (
    Mutant(
        "a new request does not wake the engine", "wake", "serve/engine/queue.py",
        "            self._jobs.append(job)\n            self._changed.notify()\n",
        "            self._jobs.append(job)\n",
        ("serve/engine/test_engine.py::test_all_that_waits_goes_into_the_next_batch_up_to_max_in_order",),
    ),
    Mutant(
        "a request that just fits is left for the next batch", "bound", "serve/engine/queue.py",
        "rows + (left := job.left) <= most", "rows + (left := job.left) < most",
        ("serve/engine/test_engine.py::test_all_that_waits_goes_into_the_next_batch_up_to_max_in_order",),
    ),
    Mutant(
        "the queue takes one request more than it may", "bound", "serve/engine/queue.py",
        "if len(self._jobs) >= self._max_queue:", "if len(self._jobs) > self._max_queue:",
        ("serve/engine/test_engine.py::test_a_full_queue_refuses_at_once",),
    ),
    Mutant(
        "a batch that is just full is not seen to be", "bound", "serve/engine/queue.py",
        "if sum(job.left for job in self._jobs) >= most:", "if sum(job.left for job in self._jobs) > most:",
        ("serve/engine/test_engine.py::test_a_full_batch_is_begun_behind_another_and_what_is_not_full_waits",),
    ),
    Mutant(
        "requests wait for company that they have", "bound", "serve/engine/queue.py",
        "return len(self._jobs) == 1 and", "return len(self._jobs) >= 1 and",
        ("serve/engine/test_engine.py::test_company_that_is_there_is_not_waited_for",),
    ),
    Mutant(
        "a deadline passes before its time", "sign", "serve/engine/job.py",
        "now_ns >= deadline_ns", "now_ns < deadline_ns",
        ("serve/engine/test_engine.py::test_a_deadline_that_passes_in_the_queue",),
    ),
    Mutant(
        "chunks are put together from the last to the first", "pair", "serve/engine/job.py",
        "[outputs[name] for outputs in found]", "[outputs[name] for outputs in reversed(found)]",
        ("serve/engine/test_engine.py::test_a_request_of_more_rows_than_a_batch_goes_in_chunks",),
    ),
    Mutant(
        "every request gets the rows of the batch's first", "row", "serve/engine/engine.py",
        "            at = end\n            job.batch_rows", "            job.batch_rows",
        ("serve/engine/test_engine.py::test_all_that_waits_goes_into_the_next_batch_up_to_max_in_order",),
    ),
    Mutant(
        "only outputs that all of a batch want are made", "row", "serve/engine/engine.py",
        "wanted |= job.wanted", "wanted &= job.wanted",
        ("serve/engine/test_engine.py::test_only_outputs_that_somebody_asked_for_are_made_and_each_gets_its_own",),
    ),
    Mutant(
        "answers are given back before the next batch is begun", "row", "serve/engine/engine.py",
        "at_once = runner.depth > 1 and", "at_once = False and",
        ("serve/engine/test_engine.py::test_what_is_begun_in_no_time_is_so_before_answers_are_given_back",),
    ),
    Mutant(
        "answers wait for all the launches of the next batch", "unit", "serve/engine/engine.py",
        "IN_NO_TIME_NS = 1_000_000", "IN_NO_TIME_NS = 1_000_000_000",
        ("serve/engine/test_engine.py::test_what_is_begun_in_no_time_is_so_before_answers_are_given_back",),
    ),
    Mutant(
        "copying in is counted as computing", "pair", "serve/engine/engine.py",
        '"h2d": ran.copied_in_ns - ran.batched_ns,\n            "compute": ran.computed_ns - ran.copied_in_ns,',
        '"h2d": ran.computed_ns - ran.copied_in_ns,\n            "compute": ran.copied_in_ns - ran.batched_ns,',
        ("serve/engine/test_engine.py::test_each_stage_is_counted_as_itself",),
    ),
    Mutant(
        "a lost device is not asked about", "leak", "serve/engine/engine.py",
        "self._lost = self._lost or runner.lost()", "self._lost = self._lost or None",
        ("serve/engine/test_engine.py::test_a_device_that_is_lost_ends_the_replica_and_nobody_waits_for_ever",),
    ),
    Mutant(
        "what the engine has in hand is forgotten where it breaks", "row", "serve/engine/engine.py",
        "        self._in_hand = jobs\n", "        self._in_hand = []\n",
        ("serve/engine/test_engine.py::test_an_engine_that_breaks_itself_refuses_what_it_has_and_says_so",),
    ),
    Mutant(
        "the length of a text is read from the wrong end", "unit", "serve/body/tensors.py",
        'length = int.from_bytes(raw[at : at + 4], "little")', 'length = int.from_bytes(raw[at : at + 4], "big")',
        ("serve/test_wire.py",),
    ),
    Mutant(
        "the total leaves out the decoding", "row", "serve/wire.py",
        "decode_ms + sum(stage_ms))", "sum(stage_ms))",
        ("serve/test_wire.py::test_the_decoding_is_a_stage_and_in_the_total",),
    ),
    Mutant(
        "received and sent change places", "pair", "serve/wire.py",
        "found = int(received), int(sent)", "found = int(sent), int(received)",
        ("serve/test_wire.py::test_timing_and_clock_headers",),
    ),
    Mutant(
        "each tensor begins where the first one does", "row", "serve/body/request.py",
        "np.frombuffer(body, dtype, count, start + at)", "np.frombuffer(body, dtype, count, start)",
        ("serve/test_wire.py::test_each_tensor_is_made_of_its_own_bytes",),
    ),
    Mutant(
        "a body of just the limit is refused when unpacked", "bound", "serve/body/request.py",
        "if size > limit:", "if size >= limit:",
        ("serve/test_wire.py::test_inflate",),
    ),
    Mutant(
        "a request without rows is let in", "bound", "serve/body/request.py",
        "min(rows) < 1", "min(rows) < 0",
        ("serve/test_wire.py::test_malformed_request_is_a_400_in_one_sentence",),
    ),
    Mutant(
        "sums of seconds are in milliseconds", "unit", "serve/telemetry/statistics.py",
        'counts["ns"] / 1e9', 'counts["ns"] / 1e6',
        ("serve/telemetry/test_statistics.py",),
    ),
    Mutant(
        "batches are counted without the lock", "lock", "serve/telemetry/statistics.py",
        "        with self._lock:\n            self._last_ms = time.time_ns()",
        "        if True:\n            self._last_ms = time.time_ns()",
        ("serve/telemetry/test_statistics.py::test_a_reader_sees_all_of_a_batch_or_nothing_of_it",),
    ),
    Mutant(
        "a batch's time counts once, not for each request", "factor", "serve/telemetry/statistics.py",
        "histogram.ns += ns * requests", "histogram.ns += ns",
        ("serve/telemetry/test_statistics.py::test_batches_and_answers_in_tritons_form",),
    ),
    Mutant(
        "parity holds where either figure is within its tolerance", "bound", "serve/runner/parity.py",
        "<= error and self.cosine", "<= error or self.cosine",
        ("serve/runner/test_parity.py",),
    ),
    Mutant(
        "of two comparisons the better cosine is kept", "pair", "serve/runner/parity.py",
        "min(one.cosine, other.cosine)", "max(one.cosine, other.cosine)",
        ("serve/runner/test_parity.py::test_of_two_comparisons_the_worse_figures_are_kept",),
    ),
    Mutant(
        "of several tokens all have to be shown", "bound", "serve/edge/auth.py",
        "any(compare_digest", "all(compare_digest",
        ("serve/edge/test_auth.py::test_who_shows_a_token_is_let_in",),
    ),
    Mutant(
        "a websocket needs no token", "leak", "serve/edge/auth.py",
        'scope["type"] == "lifespan" or', 'scope["type"] != "http" or',
        ("serve/edge/test_auth.py::test_who_shows_none_is_told_what_is_wanted",),
    ),
    Mutant(
        "a device sample is read twice", "row", "serve/telemetry/sampler.py",
        "max(0, sequence - oldest), None", "max(0, sequence - oldest - 1), None",
        ("serve/telemetry/test_sampler.py::test_each_sample_is_read_once_in_order",),
    ),
    Mutant(
        "samples are written without the lock", "lock", "serve/telemetry/sampler.py",
        "            with self._lock:\n                for sample in samples:",
        "            if True:\n                for sample in samples:",
        ("serve/telemetry/test_sampler.py::test_a_reader_gets_all_that_a_source_said_or_nothing_of_it",),
    ),
    Mutant(
        "counts of a replica that is gone are lost", "row", "serve/edge/replica_board.py",
        "gone[replica] = found.pop(replica)[1]", "found.pop(replica)",
        ("serve/edge/test_replica_board.py",),
    ),
    Mutant(
        "a replica that comes back is counted twice", "row", "serve/edge/replica_board.py",
        "self._gone[name].pop(replica, None)", "pass",
        ("serve/edge/test_replica_board.py::test_a_replica_that_was_silent_and_comes_back_is_counted_once",),
    ),
    Mutant(
        "a report that was overtaken takes something back", "sign", "serve/edge/replica_board.py",
        'before["number"] > report["number"]', 'before["number"] < report["number"]',
        ("serve/edge/test_replica_board.py",),
    ),
    Mutant(
        "what no replica had is not in the totals", "row", "serve/edge/replica_board.py",
        "add(self._edge[name].snapshot(), self._dead[name])", "add(zero(), self._dead[name])",
        ("serve/edge/test_replica_board.py",),
    ),
    Mutant(
        "a drain ends before a replica has heard of it", "bound", "serve/edge/replica_board.py",
        'max(1, report["under_way"])', 'report["under_way"]',
        ("serve/deploy/test_drain.py::test_a_replica_that_has_not_heard_of_it_counts_as_under_way",),
    ),
    Mutant(
        "convolutions are in tf32, as torch has them, whatever the precision", "bound", "serve/variants/_precision.py",
        "torch.backends.cudnn.allow_tf32 = matrices, convolutions", "torch.backends.cudnn.allow_tf32 = matrices, True",
        ("serve/variants/test_precision.py::test_a_variant_multiplies_as_it_says_and_what_it_is_compared_with_in_fp32",),
    ),
    Mutant(
        "answers in tf32 are compared with answers in tf32", "pair", "serve/runner/open_runner.py",
        "    with without_tf32():\n        return", "    if True:\n        return",
        ("serve/variants/test_precision.py::test_a_variant_multiplies_as_it_says_and_what_it_is_compared_with_in_fp32",),
    ),
    Mutant(
        "fp32 may be as far from fp32 as tf32", "bound", "serve/runner/parity.py",
        '"fp32": (1e-3, 0.9999)', '"fp32": (0.2, 0.99)',
        ("serve/variants/test_precision.py::test_the_tolerance_of_tf32_is_of_what_fifty_convolutions_make_of_lost_bits",),
    ),
    Mutant(
        "good artefacts go where new ones are no better", "row", "serve/runner/compile_cache.py",
        "            aside.rename(self.folder)\n", "            self._empty()\n",
        ("serve/runner/test_open_runner.py::test_good_artefacts_stay_where_what_is_made_anew_is_no_better",),
    ),
    Mutant(
        "rows that do not fit at the longest length are kept", "bound", "serve/runner/open_runner.py",
        "if other.rows < bucket.rows]", "if other.rows <= bucket.rows]",
        ("serve/runner/test_runner.py::test_of_several_lengths_the_rows_that_do_not_fit_at_the_longest_are_not_made",),
    ),
    Mutant(
        "memory is given back while the batch that failed holds it", "leak", "serve/runner/open_runner.py",
        "                if not fewer or not out_of_memory(problem):\n                    raise\n",
        "                if not fewer or not out_of_memory(problem):\n                    raise\n"
        "                self.runner.drop_buckets_above(fewer[-1])\n",
        ("serve/runner/test_room.py::test_batches_are_as_large_as_fits",),
    ),
    Mutant(
        "fewer rows than fit are made", "bound", "serve/runner/open_runner.py",
        "drop_buckets_above(fewer[-1])", "drop_buckets_above(fewer[0])",
        ("serve/runner/test_room.py::test_batches_are_as_large_as_fits",),
    ),
    Mutant(
        "a batch that could not be begun is held by what went wrong", "leak", "serve/engine/engine.py",
        "problem.with_traceback(None) if isinstance(flight, Failed)", "problem if isinstance(flight, Failed)",
        ("serve/runner/test_room.py::test_others_take_memory_and_give_it_back",),
    ),
    Mutant(
        "what an old pynvml lacks ends the sampler", "bound", "serve/telemetry/nvml.py",
        "            AttributeError,  # a pynvml that is older than what is asked of it\n", "",
        ("serve/telemetry/test_nvml.py::test_what_pynvml_lacks_is_one_field_at_most",),
    ),
    Mutant(
        "the parts of a divided GPU are left out", "row", "serve/telemetry/nvml.py",
        "self._gpus += [gpu, *self._parts(gpu)]", "self._gpus += [gpu]",
        ("serve/telemetry/test_nvml.py::test_a_divided_gpu_has_its_parts_beside_it",),
    ),
    Mutant(
        "a part of a divided GPU is named as a whole one", "pair", "serve/runner/runner.py",
        "'MIG' if ' MIG ' in device.name else 'GPU'", "'GPU'",
        ("serve/runner/test_runner.py",),
    ),
    Mutant(
        "an error of NVML that nobody knows ends the sampler", "bound", "serve/telemetry/nvml.py",
        "        except self._gone:\n            raise\n", "        except self._nvml.NVMLError:\n            raise\n",
        ("serve/telemetry/test_nvml.py::test_an_error_that_nobody_knows_empties_one_field_while_it_lasts",),
    ),
    Mutant(
        "a deadline leaves its stream at the server", "leak", "loadtest/engine/endpoint/http2/connection.py",
        "            self._leave(mine, CANCEL)\n            raise\n", "            raise\n",
        ("loadtest/endpoint/test_grpc.py::test_a_deadline_frees_its_stream_and_delays_no_other",),
    ),
    Mutant(
        "a body does not wait for the stream's window", "bound", "loadtest/engine/endpoint/http2/connection.py",
        "min(len(stream.left), stream.window, self._window, self._longest)",
        "min(len(stream.left), self._window, self._longest)",
        ("loadtest/endpoint/test_grpc.py::test_a_body_waits_for_windows_that_the_server_opens",),
    ),
    Mutant(
        "a header block is remembered after the table has changed", "pair", "loadtest/engine/endpoint/http2/hpack.py",
        "if changed or len(self._known) >= REMEMBERED:", "if len(self._known) >= REMEMBERED:",
        ("loadtest/endpoint/test_hpack.py::test_a_block_is_remembered_only_as_long_as_the_table_is_the_same",),
    ),
    Mutant(
        "one place of pinned memory is warm", "row", "serve/runner/runner.py",
        "for _ in range(self.depth)]", "for _ in range(1)]",
        ("serve/runner/test_cuda_pipeline.py::test_what_is_rehearsed_has_been_in_every_place",),
    ),
    Mutant(
        "a replica's thread turns idly while a batch runs", "wake", "serve/runner/cuda_pipeline.py",
        "blocking=mark == 4", "blocking=False",
        ("serve/runner/test_cuda_pipeline.py::test_a_batch_is_copied_in_on_one_stream_and_computed_on_another_behind_it",),
    ),
    Mutant(
        "a batch is computed before it is copied in", "wake", "serve/runner/cuda_pipeline.py",
        "        computing.wait_event(copied_in)\n",
        "        pass\n",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "inputs count as copied in before they are", "pair", "serve/runner/cuda_pipeline.py",
        "            self._copy_in(slot, bucket)\n            copied_in.record(self._copying)\n",
        "            copied_in.record(self._copying)\n            self._copy_in(slot, bucket)\n",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "outputs are copied out on the stream of the inputs", "pair", "serve/runner/cuda_pipeline.py",
        "        outputs = {name: self._copied_out",
        "        with self._cuda.stream(self._copying):\n            outputs = {name: self._copied_out",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "nobody waits for the end of a batch", "wake", "serve/runner/cuda_pipeline.py",
        "            self._slot.marks[-1].synchronize()\n",
        "            self._slot.marks[-1].query()\n",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "the end of computing counts as the end of copying out", "pair", "serve/runner/cuda_pipeline.py",
        "            self._slot.marks[-1].synchronize()\n",
        "            self._slot.marks[-2].synchronize()\n",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "batches in flight share their buffers", "row", "serve/runner/cuda_pipeline.py",
        "        slot = self.free.pop()\n",
        "        slot = self.free[0]\n",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "outputs are left where the next replay writes", "leak", "serve/runner/cuda_pipeline.py",
        "        return target.copy_(tensor, non_blocking=True)\n",
        "        return tensor\n",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "nothing says when a copy out is over", "wake", "serve/runner/cuda_pipeline.py",
        "        return target.copy_(tensor, non_blocking=True)\n",
        "        with self._cuda.stream(self._copying):\n            return target.copy_(tensor, non_blocking=True)\n",
        ("serve/runner/test_streams.py::test_every_answer_is_that_of_its_own_rows",),
    ),
    Mutant(
        "the host reads each batch's mask", "wake", "serve/models/_bert_module.py",
        "attention_mask=seen)", "attention_mask=attention_mask)",
        ("live/test_on_gpu.py::test_the_host_reads_no_number_of_a_batch",),
    ),
    Mutant(
        "each batch copies a number that the host has", "wake", "serve/models/_image.py",
        "* self.scale + self.shift", "* self.scale + torch.tensor(0.5).to(image.device)",
        ("serve/variants/test_cudagraph.py::test_each_model_can_be_recorded",),
    ),
    Mutant(
        "each step of a generation moves what stays the same", "wake", "serve/models/stable_diffusion.py",
        "self.unet(sample, time, embeds,", "self.unet(sample, time.cpu().to(sample.device), embeds,",
        ("live/test_on_gpu.py::test_nothing_of_a_step_or_of_the_decoder_is_done_on_the_cpu",),
    ),
    Mutant(
        "a graph replays what it was recorded with", "row", "serve/variants/_graphs.py",
        "            mine.copy_(given)\n", "            pass\n",
        ("serve/variants/test_cudagraph.py",),
    ),
    Mutant(
        "a graph is recorded without a rehearsal", "bound", "serve/variants/_graphs.py",
        "REHEARSALS = 3", "REHEARSALS = 0",
        ("serve/variants/test_cudagraph.py",),
    ),
    Mutant(
        "a graph is rehearsed in the stream that serves", "pair", "serve/variants/_graphs.py",
        "    with torch.cuda.stream(aside):\n", "    if True:\n",
        ("serve/variants/test_cudagraph.py",),
    ),
    Mutant(
        "a graph is not replayed", "row", "serve/variants/_graphs.py",
        "        graph.replay()\n", "        pass\n",
        ("serve/variants/test_cudagraph.py",),
    ),
    Mutant(
        "a graph is recorded of tensors that it does not own", "pair", "serve/variants/_graphs.py",
        "        found = call(*held)\n", "        found = call(*example)\n",
        ("serve/variants/test_cudagraph.py",),
    ),
    Mutant(
        "what was compiled ahead is recorded in any mode", "bound", "serve/variants/_inductor.py",
        'graphs = options.pop(GRAPHS, False) and making.device == "cuda"', 'graphs = making.device == "cuda"',
        ("serve/variants/test_cudagraph.py",),
    ),
    Mutant(
        "what was compiled ahead is not recorded", "bound", "serve/variants/_inductor.py",
        "return recorded(call, example, pool) if graphs else call", "return call",
        ("serve/variants/test_cudagraph.py",),
    ),
    Mutant(
        "a mode without its CUDA graphs is served", "bound", "serve/runner/open_runner.py",
        'if mode == "reduce-overhead" and (skips', 'if mode == "none" and (skips',
        ("serve/runner/test_open_runner.py::test_a_mode_of_which_torch_skips_the_cuda_graphs_is_none",),
    ),
    Mutant(
        "inference mode ends before anything is served", "leak", "serve/runner/open_runner.py",
        "    with torch.inference_mode():\n        yield",
        "    torch.inference_mode().__enter__()\n    if True:\n        yield",
        ("serve/engine/test_observers.py::test_what_is_served_is_called_in_inference_mode",),
    ),
    Mutant(
        "requests under way are looked through for garbage again and again", "bound", "serve/deploy/app.py",
        "    gc.set_threshold(UNDER_WAY_OBJECTS, *gc.get_threshold()[1:])\n", "",
        ("serve/deploy/test_garbage.py",),
    ),
    Mutant(
        "what a replica counted since its last report goes with it", "await", "serve/deploy/app.py",
        "last = await self._report() | {\"ended\": True}", "last = await self._report()",
        ("serve/deploy/test_drain.py::test_a_replica_that_ends_says_what_it_counted_since_its_last_report",),
    ),
    Mutant(
        "one that has ended is counted on", "bound", "serve/edge/replica_board.py",
        'if report["ended"]:', "if False:",
        ("serve/edge/test_replica_board.py",),
    ),
    Mutant(
        "who is not answered within the drain is dropped", "row", "serve/edge/endpoint.py",
        "if not self._given_up or task is None or task.uncancel():", "if True:",
        ("serve/deploy/test_drain.py::test_what_is_not_answered_within_the_bound_is_told_so_wherever_it_is",),
    ),
    Mutant(
        "a server that stops takes new requests", "bound", "serve/edge/endpoint.py",
        "            if self._stopping:", "            if False:",
        ("serve/deploy/test_drain.py::test_what_is_under_way_is_answered_and_nothing_new_is_taken",),
    ),
    Mutant(
        "a preparation that breaks counts as cancelled", "pair", "serve/edge/endpoint.py",
        "            refused = reason(problem)\n", "            pass\n",
        ("serve/edge/test_refusals.py::test_a_model_whose_preparation_breaks_has_failed_and_was_not_left",),
    ),
    Mutant(
        "deadlines wait for decoding", "await", "serve/edge/endpoint.py",
        "await asyncio.wait_for(asyncio.wrap_future(work), left_s)", "await asyncio.wrap_future(work)",
        ("serve/edge/test_refusals.py::test_a_deadline_holds_while_its_request_is_decoded",),
    ),
    Mutant(
        "a request in chunks is in the stages once a chunk", "row", "serve/engine/engine.py",
        "for job in jobs if job.part_of is None", "for job in jobs",
        ("serve/edge/test_refusals.py::test_a_request_in_chunks_is_one_request_with_its_own_stages",),
    ),
    Mutant(
        "what shrank meanwhile is begun as it was", "bound", "serve/engine/engine.py",
        "if sum(job.rows for job in jobs) > runner.max_batch:", "if False:",
        ("serve/engine/test_engine.py::test_those_that_were_to_be_run_again_are_so_in_batches_that_are_possible_by_then",),
    ),
    Mutant(
        "edge refusals are not counted", "row", "serve/asgi.py",
        'refused(scope["path"], reason(problem), ', "max(0, 0, ",
        ("serve/edge/test_refusals.py::test_every_reason_that_there_is_equals_what_a_client_saw",),
    ),
    Mutant(
        "a size is tried again as soon as memory ran out", "unit", "serve/engine/batch_regrowth.py",
        "self._again_s = now_s + self._wait_s", "self._again_s = now_s",
        ("serve/engine/test_batch_regrowth.py",),
    ),
    Mutant(
        "only the first helper of a model counts", "row", "serve/models/_code_digest.py",
        "        if path not in seen:", "        if len(seen) < 2 and path not in seen:",
        ("serve/models/test_own_models.py::test_the_code_of_a_model_is_that_of_its_helpers_too",),
    ),
    Mutant(
        "weights of other code are taken", "pair", "serve/models/_weights.py",
        "[dict(spec.settings), spec.code, ", "[dict(spec.settings), ",
        ("serve/models/test_weights.py::test_a_model_whose_code_changed_gets_the_numbers_of_its_new_code",),
    ),
    Mutant(
        "an endpoint is ready with one replica less", "bound", "serve/edge/replica_board.py",
        "for report in reports) >= self._replicas", "for report in reports) >= self._replicas - 1",
        ("serve/edge/test_replica_board.py",),
    ),
    Mutant(
        "a batch keeps the rows of the one before it", "row", "serve/runner/buckets.py",
        "            target[at:] = 0\n", "",
        ("serve/runner/test_buckets.py",),
    ),
    Mutant(
        "who waits for a lock goes on without it", "lock", "serve/file_locks.py",
        "            waits()\n            fcntl.flock(held, fcntl.LOCK_EX)\n", "            waits()\n",
        ("serve/runner/test_compile_cache.py::test_two_processes_take_turns",),
    ),
    Mutant(
        "what a process uses is pruned from the cache", "lock", "serve/runner/cache_folders.py",
        "return _removed(item) if free else", "return _removed(item) if True else",
        ("serve/runner/test_cache_folders.py::test_what_a_process_uses_stays_and_the_next_oldest_goes_for_it",),
    ),
    Mutant(
        "the most recently used is pruned from the cache first", "sign", "serve/runner/cache_folders.py",
        "sorted(items, key=lambda item: item.used_s)", "sorted(items, key=lambda item: -item.used_s)",
        ("serve/runner/test_cache_folders.py::test_what_is_too_old_goes_and_then_the_oldest_until_the_rest_fits",),
    ),
    Mutant(
        "what others could have baked is run", "leak", "serve/runner/compile_cache.py",
        "if place and _is_ours_alone(place)]", "if place and (place == self._baked_at or _is_ours_alone(place))]",
        ("serve/runner/test_compile_cache.py::test_what_others_could_have_baked_is_not_run",),
    ),
    Mutant(
        "weights of a volume come before those that baked code is made of", "pair", "serve/models/_weights.py",
        "(baked and _take_kept(module, kept_path(spec, seed, baked)))", "kept_path(spec, seed, cache).exists()",
        ("serve/models/test_weights.py::test_weights_that_are_baked_come_first_and_broken_ones_do_not_count",),
    ),
    Mutant(
        "which responses are compared depends on the batches", "bound", "serve/engine/live_parity.py",
        "self._skip -= len(jobs)", "self._skip -= len(jobs) - 1",
        ("serve/engine/test_live_parity.py::test_which_are_kept_does_not_depend_on_how_they_were_batched",),
    ),
    Mutant(
        "what is computed does not wait for what is copied in", "wake", "serve/runner/cuda_pipeline.py",
        "        computing.wait_event(copied_in)\n", "",
        ("serve/runner/test_cuda_pipeline.py::test_a_batch_is_copied_in_on_one_stream_and_computed_on_another_behind_it",),
    ),
    Mutant(
        "the device's milliseconds are taken for microseconds", "unit", "serve/runner/cuda_pipeline.py",
        "elapsed_time(after) * 1e6", "elapsed_time(after) * 1e3",
        ("serve/runner/test_cuda_pipeline.py::test_stages_come_from_the_devices_marks_and_waiting_for_it_is_none_of_them",),
    ),
    Mutant(
        "who asks for an answer in time is told when the device gets to it", "unit", "serve/edge/endpoint.py",
        "(job.deadline_ns - time.perf_counter_ns()) / 1e9, expire",
        "(job.deadline_ns - time.perf_counter_ns()) / 1e6, expire",
        ("serve/edge/test_endpoint.py::test_full_queue_deadline_and_a_client_that_has_gone",),
    ),
    Mutant(
        "an answer is not waited for", "await", "serve/edge/endpoint.py",
        "            await job.waiter\n", "            _ = job.waiter\n",
        ("serve/edge/test_endpoint.py::test_inference_in_json_and_in_bytes",),
    ),
    Mutant(
        "a batch that is done does not wake the event loop", "wake", "serve/edge/endpoint.py",
        "self._loop.call_soon_threadsafe(wake)", "self._loop.call_soon(wake)",
        ("serve/edge/test_endpoint.py::test_inference_in_json_and_in_bytes",),
    ),
    Mutant(
        "the room of a request is never given back", "leak", "serve/asgi.py",
        "            finally:\n                share.give_back()", "            finally:\n                pass",
        ("live/test_bad_clients.py::test_bodies_that_take_up_all_the_room_are_the_last",),
    ),
    Mutant(
        "millijoules are taken for microjoules", "unit", "serve/telemetry/nvml.py",
        "nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3", "nvmlDeviceGetTotalEnergyConsumption(handle) / 1e6",
        ("serve/telemetry/test_nvml.py::test_every_field_is_what_the_gpu_says",),
    ),
    Mutant(
        "the other hosts are not looked for", "await", "serve/telemetry/all_hosts.py",
        'after its part of the cursor."""\n        await self._refresh()',
        'after its part of the cursor."""\n        self._refresh()',
        ("serve/telemetry/test_all_hosts.py::test_each_host_s_samples_come_once",),
    ),
    Mutant(
        "an output is overwritten under its reader", "row", "serve/runner/runner.py",
        "(tensor.clone() if self._buffers.holds(tensor) else tensor).numpy()", "tensor.numpy()",
        ("serve/runner/test_runner.py::test_outputs_that_are_inputs_do_not_change_under_their_reader",),
    ),
    Mutant(
        "the mean of a picture is added, not taken off", "sign", "serve/models/_image.py",
        "-torch.tensor(MEAN)", "torch.tensor(MEAN)",
        ("serve/models/test_models.py::test_bytes_are_normalised_by_the_module_which_has_the_weights_of_the_other",),
    ),
    Mutant(
        "a layer with a window looks back a token further", "bound", "serve/engine/language/attention.py",
        "within(attention_mask, window)", "within(attention_mask, window + 1)",
        ("serve/engine/language/test_architectures.py::test_each_step_scores_what_the_model_does_without_a_cache",),
    ),
    Mutant(
        "limited scores lose their unit", "unit", "serve/engine/language/attention.py",
        "softcap * torch.tanh(", "torch.tanh(",
        ("serve/engine/language/test_architectures.py::test_each_step_scores_what_the_model_does_without_a_cache",),
    ),
    Mutant(
        "a sink's share has the wrong sign", "sign", "serve/engine/language/attention.py",
        "sinks.to(scores.dtype)", "-sinks.to(scores.dtype)",
        ("serve/engine/language/test_architectures.py::test_each_step_scores_what_the_model_does_without_a_cache",),
    ),
    Mutant(
        "values are kept in the size of keys", "pair", "serve/engine/language/steps.py",
        "one.new_zeros((rows, one.shape[1], length, one.shape[3]))",
        "one.new_zeros((rows, one.shape[1], length, both[0].shape[3]))",
        ("serve/engine/language/test_architectures.py::test_each_step_scores_what_the_model_does_without_a_cache",),
    ),
    Mutant(
        "nothing beyond a window is compared at the start", "bound", "serve/engine/language/open_language.py",
        "window + FORCED >= self.runner.context", "window + FORCED >= 0",
        ("serve/engine/language/test_architectures.py::test_what_differs_only_beyond_a_window_is_found_at_the_start",),
    ),
    Mutant(
        "a row takes another's place without its newest token", "bound", "serve/engine/language/generator.py",
        "runner.move(last, row, self._rows[last].read)", "runner.move(last, row, self._rows[last].read - 1)",
        ("serve/engine/language/test_generator.py::test_a_hundred_answers_at_any_instants_are_each_what_the_model_writes_alone",),
    ),
    Mutant(
        "tokens are told before the device has its next step", "wake", "serve/engine/language/generator.py",
        "            if not (runner.ahead and self._rows):\n", "            if True:\n",
        ("serve/engine/language/test_generator.py::test_who_is_told_of_a_token_holds_up_no_step_of_a_device_that_works_by_itself",),
    ),
    Mutant(
        "tokens wait for a neighbour's prompt", "wake", "serve/engine/language/generator.py",
        "            self._hand_over()  # nobody's token waits for a prompt\n", "",
        ("serve/engine/language/test_generator.py::test_who_is_told_of_a_token_holds_up_no_step_of_a_device_that_works_by_itself",),
    ),
    Mutant(
        "an answer of full length keeps its slot", "leak", "serve/engine/language/generator.py",
        "            if rows[row].finish is not None:\n                self._leave(runner, row)",
        '            if rows[row].finish == "stop":\n                self._leave(runner, row)',
        ("serve/engine/language/test_generator.py::test_a_hundred_answers_at_any_instants_are_each_what_the_model_writes_alone",),
    ),
    Mutant(
        "an answer that begins anew for want of memory keeps its place", "row", "serve/engine/language/generator.py",
        "                    one.read = 0\n", "",
        ("serve/engine/language/test_generator.py::test_where_memory_runs_out_fewer_are_written_and_all_are_right",),
    ),
    Mutant(
        "an answer comes in and the idle engine is not woken", "wake", "serve/engine/language/generator.py",
        "            self._queue.append(writing)\n            self._changed.notify()",
        "            self._queue.append(writing)",
        ("serve/engine/language/test_generator.py::test_what_cannot_be_written_is_refused_at_once",),
    ),
    Mutant(
        "one more waits than may", "bound", "serve/engine/language/generator.py",
        "len(self._queue) >= self._max_queue", "len(self._queue) > self._max_queue",
        ("serve/engine/language/test_generator.py::test_what_cannot_be_written_is_refused_at_once",),
    ),
    Mutant(
        "a piece of a prompt is counted as the whole", "unit", "serve/engine/language/generator.py",
        "self._counts.read(len(piece), took_ns", "self._counts.read(len(tokens), took_ns",
        ("serve/engine/language/test_generator.py::test_steps_and_prompts_are_counted_by_what_they_wrote_and_read",),
    ),
    Mutant(
        "who has gone is written on", "leak", "serve/engine/language/remote.py",
        "            if writing.gone is not None and writing.gone():\n                self.withdraw(writing)",
        "            pass",
        ("serve/edge/test_language_endpoint.py::test_one_whose_client_has_gone_is_written_no_further",),
    ),
    Mutant(
        "a message is taken before all of it is there", "bound", "serve/engine/language/messages.py",
        "            if end > len(self._held):\n                break\n", "",
        ("serve/engine/language/test_remote.py::test_messages_come_whole_and_in_order_however_they_are_cut",),
    ),
    Mutant(
        "what the engine has not heard of yet does not wait", "bound", "serve/engine/language/remote.py",
        "return self._queued + self._sent - self._taken", "return self._queued",
        ("serve/edge/test_language_endpoint.py::test_more_than_wait_at_most_are_refused_at_once",),
    ),
    Mutant(
        "nobody is told of an engine that was killed", "await", "serve/engine/language/remote.py",
        "        self._deliver([(one, None) for one in left])\n", "",
        ("serve/edge/test_language_endpoint.py::test_an_engine_that_is_killed_is_lost_and_everybody_is_told",),
    ),
    Mutant(
        "what the engine counts is a second old", "await", "serve/edge/language_endpoint.py",
        "        await self.engine.fresh()\n        return self.report()", "        return self.report()",
        ("serve/edge/test_language_endpoint.py::test_what_the_engine_counts_and_says_is_as_of_now",),
    ),
    Mutant(
        "an engine that says nothing is no trouble", "bound", "serve/engine/language/remote.py",
        "silent_s > max(stuck_after_s, self._opening_s)", "silent_s > 1e9",
        ("serve/engine/language/test_remote.py::test_a_process_that_says_nothing_is_trouble",),
    ),
    Mutant(
        "a profile goes on when nobody waits for it", "leak", "serve/engine/language/remote.py",
        '                self._send("withdraw", number)', "                pass",
        ("serve/edge/test_language_endpoint.py::test_the_engine_s_own_process_is_profiled",),
    ),
    Mutant(
        "a new token does not see itself", "bound", "serve/engine/language/steps.py",
        "upto[None, None, None, :] <= at", "upto[None, None, None, :] < at",
        ("serve/engine/language/test_generator.py::test_it_is_the_model_without_a_cache",),
    ),
    Mutant(
        "a prompt is continued without its last token", "bound", "serve/engine/language/runner.py",
        "other[target, :, :length].copy_(one[row, :, :length])",
        "other[target, :, :length - 1].copy_(one[row, :, :length - 1])",
        ("serve/engine/language/test_generator.py::test_a_hundred_answers_at_any_instants_are_each_what_the_model_writes_alone",),
    ),
    Mutant(
        "each token of an answer is drawn alike", "factor", "serve/engine/language/sampling.py",
        "seeds + counts * _signed(ROW)", "seeds",
        ("serve/engine/language/test_sampling.py::test_tokens_come_as_the_softmax_says",),
    ),
    Mutant(
        "a token is drawn among the unlikely ones", "sign", "serve/engine/language/sampling.py",
        "before >= top_p[:, None]", "before < top_p[:, None]",
        ("serve/engine/language/test_sampling.py::test_of_the_likely_ones_alone",),
    ),
    Mutant(
        "the beginning of a text at which to stop is told", "bound", "serve/models/_text.py",
        "keep = 0 if last else max(", "keep = 0 if True else max(",
        ("serve/models/test_language_text.py::test_it_stops_before_a_text_however_tokens_split_it",),
    ),
    Mutant(
        "nobody hears of clients that leave", "leak", "serve/edge/language_endpoint.py",
        "yield text_api.error_event(problem)\n            finally:\n                self.engine.withdraw(writing)",
        "yield text_api.error_event(problem)\n            finally:\n                pass",
        ("serve/edge/test_language_endpoint.py::test_those_who_leave_in_the_middle_free_their_slots_and_harm_nobody",),
    ),
    Mutant(
        "usage leaves the last token out", "bound", "serve/edge/openai/text_api.py",
        "len(writing.prompt), len(writing.tokens)", "len(writing.prompt), len(writing.tokens) - 1",
        ("serve/edge/test_language_endpoint.py::test_a_stream_says_what_the_whole_answer_does",),
    ),
    Mutant(
        "after ours, each cluster of the process starts without its monitors", "lock", "serve/deploy/cluster.py",
        "        there.RayParams = usual\n", "        pass\n",
        ("serve/deploy/test_haproxy.py::test_a_node_that_starts_too_slowly_is_ended_and_started_again",),
    ),
    Mutant(
        "whoever serves has no pandas afterwards", "lock", "serve/deploy/worker.py",
        '        del sys.modules["pandas"]\n', "        pass\n", ("serve/deploy/test_worker.py",),
    ),
)

LOADTEST = (
    Mutant(
        "a step's requests begin with the file's first row again", "row", "loadtest/engine/workers/input/deal.py",
        "self._next, self._next + arrivals", "0, self._next + arrivals",
        ("loadtest/workers/input/test_deal.py",),
    ),
    Mutant(
        "each load process counts its own requests", "pair", "loadtest/engine/workers/input/requests.py",
        "found = self.request(first + seq)", "found = self.request(first + len(self._ready))",
        ("loadtest/workers/input/test_data_requests.py::test_a_request_says_what_it_carries",),
    ),
    Mutant(
        "rows suffice for one request more than there are", "bound", "loadtest/engine/workers/input/deal.py",
        "bisect_right(self._ends, left)", "bisect_right(self._ends, left) + 1",
        ("loadtest/workers/input/test_deal.py::test_unique_rows_are_as_many_requests_as_fit",),
    ),
    Mutant(
        "a ring from before wakes an arrival early where no timerfd does", "wake",
        "loadtest/engine/workers/on_time/timer.py",
        "            self._rung.clear()\n", "",
        ("loadtest/test_systems.py::test_without_a_timerfd_an_alarm_is_never_early",),
    ),
    Mutant(
        "the last arrival of a schedule is missing", "row", "loadtest/engine/scenario/arrivals.py",
        "np.arange(np.ceil(rate_rps * seconds))", "np.arange(np.floor(rate_rps * seconds))",
        ("loadtest/scenario/test_arrivals.py::test_constant_of_a_count_that_is_not_whole_keeps_the_last_arrival",),
    ),
    Mutant(
        "a sine begins by falling", "sign", "loadtest/engine/scenario/arrivals.py",
        "times + depth / turn *", "times - depth / turn *",
        ("loadtest/scenario/test_arrivals.py",),
    ),
    Mutant(
        "the first arrival of a schedule is missing", "row", "loadtest/engine/scenario/arrivals.py",
        "at[at < in_ns(seconds)]", "at[1:][at[1:] < in_ns(seconds)]",
        ("loadtest/scenario/test_arrivals.py::test_constant_is_a_grid_without_drift",),
    ),
    Mutant(
        "a step's arrivals count from its block's start", "unit", "loadtest/engine/scenario/arrivals.py",
        "from_ns + offset", "offset",
        ("loadtest/scenario/test_arrivals.py::test_a_share_begins_where_its_step_does",),
    ),
    Mutant(
        "latency counts from when a request was sent", "pair", "loadtest/engine/workers/driver.py",
        "intended_ns=to_wall(due),", "intended_ns=to_wall(answer.sent_ns),",
        ("live/test_run.py::test_one_process_keeps_the_schedule_and_records_it_all",),
    ),
    Mutant(
        "each process may have as many under way as all together", "factor", "loadtest/engine/workers/driver.py",
        "max(1, self._max_in_flight // order.count)", "max(1, self._max_in_flight)",
        ("loadtest/workers/test_selfcheck.py::test_each_of_two_processes_has_half_of_what_may_be_under_way",),
    ),
    Mutant(
        "one request more than allowed is under way", "bound", "loadtest/engine/workers/driver.py",
        "if len(self._in_flight) >= most:", "if len(self._in_flight) > most:",
        ("live/test_run.py::test_failures_timeouts_and_drops_are_rows",),
    ),
    Mutant(
        "every process sends all of a closed loop", "row", "loadtest/engine/workers/driver.py",
        "iter(range(order.index, most, order.count))", "iter(range(0, most))",
        ("live/test_load_modes.py::test_two_workers_share_a_closed_loop",),
    ),
    Mutant(
        "what is under way at the end is not waited for", "await", "loadtest/engine/workers/driver.py",
        "                self._in_flight.join()\n", "",
        ("live/test_run.py::test_one_process_keeps_the_schedule_and_records_it_all",),
    ),
    Mutant(
        "the rows since the last flush are dropped", "row", "loadtest/engine/workers/driver.py",
        "            self._flush()\n            watched =", "            watched =",
        ("live/test_run.py::test_one_process_keeps_the_schedule_and_records_it_all",),
    ),
    Mutant(
        "a port of another network is taken for the server's", "leak", "serve/telemetry/agent/holders.py",
        "words[3] == LISTENS and words[9] in sockets", "words[3] == LISTENS",
        ("serve/telemetry/test_agent.py::test_a_port_of_another_network_is_not_taken_for_it",),
    ),
    Mutant(
        "rows that failed are counted as on their endpoint's device", "row", "analysis/run/join.py",
        "        return np.where(answered, table[endpoint, device], -1), words",
        "        return table[endpoint, device], words",
        ("analysis/run/test_join.py::test_rows_that_say_no_device_are_on_the_one_of_their_endpoint",),
    ),
    Mutant(
        "rows beyond the last whole chunk stay behind", "row", "loadtest/engine/record/segments.py",
        "range(0, len(rows), CHUNK_ROWS)", "range(0, len(rows) // CHUNK_ROWS * CHUNK_ROWS, CHUNK_ROWS)",
        ("loadtest/record/test_segments.py",),
    ),
    Mutant(
        "many rows wait for the half second", "bound", "loadtest/engine/record/segments.py",
        "len(self._rows) >= MANY_ROWS or", "False or",
        ("loadtest/record/test_segments.py::test_rows_are_due_after_half_a_second_or_when_there_are_many",),
    ),
    Mutant(
        "a number is looked up as a name is", "wake", "loadtest/engine/endpoint/http1/pool.py",
        "for kind in (socket.AF_INET, socket.AF_INET6):", "for kind in ():",
        ("loadtest/endpoint/test_http.py::test_only_a_name_is_looked_up",),
    ),
    Mutant(
        "a chunk that is shorter than the one before is as long", "row", "loadtest/engine/record/segments.py",
        "return array if len(values) == len(before) else array[: len(values)]", "return array",
        ("loadtest/record/test_segments.py",),
    ),
    Mutant(
        "nobody looks for garbage", "leak", "loadtest/engine/workers/driver.py",
        "                self._flush()\n                tidy()", "                self._flush()",
        ("loadtest/workers/test_driver.py::test_garbage_is_looked_for_when_rows_have_gone",),
    ),
    Mutant(
        "what tidies looks at all there is", "bound", "loadtest/engine/workers/on_time/memory.py",
        "1 if younger > most_younger else 0", "1",
        ("loadtest/workers/on_time/test_memory.py",),
    ),
    Mutant(
        "Arrow's own allocator stays", "bound", "loadtest/engine/workers/on_time/memory.py",
        "pa.set_memory_pool(pa.system_memory_pool())", "pa.set_memory_pool(pool)",
        ("loadtest/workers/on_time/test_memory.py",),
    ),
    Mutant(
        "a column that begins like the one before is taken for it", "row", "loadtest/engine/record/segments.py",
        "if values == before[: len(values)]:", "if values[:1] == before[:1]:",
        ("loadtest/record/test_segments.py",),
    ),
    Mutant(
        "rows that come during a pause are dropped", "row", "loadtest/engine/record/segments.py",
        "            self._sink(pa.", "            self._rows.clear()\n            self._sink(pa.",
        ("loadtest/record/test_segments.py",),
    ),
    Mutant(
        "rows are put together before what is due", "wake", "loadtest/engine/workers/on_time/breath.py",
        "gevent.with_timeout(MOST_S, gevent.idle, timeout_value=None)", "gevent.get_hub()",
        ("loadtest/workers/on_time/test_breath.py",),
    ),
    Mutant(
        "a failed load process is waited for", "wake", "loadtest/engine/workers/dispatch.py",
        "            if self._crew.problem:", "            if False:",
        ("loadtest/workers/test_dispatch.py",),
    ),
    Mutant(
        "what failed is said to be done", "pair", "loadtest/engine/workers/driver.py",
        "            if not self._in_flight.failed:  #", "            if True:  #",
        ("loadtest/workers/test_driver.py",),
    ),
    Mutant(
        "a schedule goes on though a request of it failed", "bound", "loadtest/engine/workers/driver.py",
        "if self._stopping or self._in_flight.failed:", "if self._stopping:",
        ("loadtest/workers/test_driver.py",),
    ),
    Mutant(
        "a busy load process stays real-time", "bound", "loadtest/engine/workers/on_time/cpu_priority.py",
        "if real_time and share >= BUSY:", "if False:",
        ("loadtest/workers/on_time/test_cpu_priority.py",),
    ),
    Mutant(
        "a calm load process is not real-time again", "bound", "loadtest/engine/workers/on_time/cpu_priority.py",
        "elif not real_time and share < CALM:", "elif False:",
        ("loadtest/workers/on_time/test_cpu_priority.py",),
    ),
    Mutant(
        "half a batch stays at the end of a segment", "row", "loadtest/engine/record/segments.py",
        "            self._file.truncate(self._size)\n", "",
        ("loadtest/soak/test_chapters.py::test_a_batch_that_a_full_disk_took_a_part_of_is_taken_back",),
    ),
    Mutant(
        "overload speaks for a higher knee", "sign", "loadtest/engine/scenario/knee_search.py",
        "-4 * (odds", "4 * (odds",
        (
            "loadtest/scenario/test_knee_search.py::test_a_cliff_is_bisected",
            "loadtest/scenario/test_knee_search.py::test_a_start_above_the_limit_falls_first",
        ),
    ),
    Mutant(
        "what a stall spoiled stays the limit though higher rates are kept", "bound",
        "loadtest/engine/scenario/knee_search.py",
        "                self._lowest_bad = math.inf  # nothing", "                pass  # nothing",
        (
            "loadtest/scenario/test_knee_search.py::test_a_stall_early_in_a_search_is_no_limit",
            "loadtest/scenario/test_knee_search.py::test_a_search_whose_highest_rate_was_kept_says_at_least",
        ),
    ),
    Mutant(
        "an objective kept at the interval's end is no contradiction", "bound",
        "loadtest/engine/scenario/knee_search.py",
        "True if kept and outcome.rate >= high else", "True if kept and outcome.rate > high else",
        ("loadtest/scenario/test_knee_search.py::test_a_miss_below_the_interval_contradicts_it_and_so_does_an_objective_kept_above_it",),
    ),
    Mutant(
        "the last of a range of rates is missing", "row", "loadtest/engine/scenario/options.py",
        "int((last - first) / step + 1e-9) + 1)", "int((last - first) / step + 1e-9))",
        ("loadtest/scenario/test_scenario.py::test_rates",),
    ),
    Mutant(
        "settle time may be all of a step", "bound", "loadtest/engine/scenario/options.py",
        "if options.settle_seconds >= length_s:", "if options.settle_seconds > length_s:",
        ("loadtest/scenario/test_scenario.py",),
    ),
    Mutant(
        "a search is for the other side of the percentile", "sign", "loadtest/engine/scenario/scenario.py",
        "min(term.allowed for term in", "1 - min(term.allowed for term in",
        ("loadtest/scenario/test_scenario.py::test_a_search_is_for_the_share_that_may_miss",),
    ),
    Mutant(
        "each of several endpoints gets the whole rate", "factor", "loadtest/engine/scenario/steps.py",
        "self.step(name, rate / count, seed + number", "self.step(name, rate, seed + number",
        ("loadtest/scenario/test_scenario.py::test_mixed_drives_both_at_once_at_half_the_rate",),
    ),
    Mutant(
        "the parts of a spike begin together", "factor", "loadtest/engine/modes/spike.py",
        "start_s=part * first.seconds", "start_s=0.0 * first.seconds",
        ("loadtest/scenario/test_scenario.py::test_a_spike_is_one_block_without_a_pause",),
    ),
    Mutant(
        "variants always have the same order", "pair", "loadtest/engine/modes/ab.py",
        "order = order[::-1] if number % 2", "order = order if number % 2",
        ("loadtest/scenario/test_scenario.py::test_a_b_is_balanced_random_and_shows_its_noise",),
    ),
    Mutant(
        "a call over gRPC needs no token", "leak", "serve/edge/over_grpc.py",
        "if self._known and not auth.shows(", "if self._known and auth.shows(",
        ("serve/edge/test_over_grpc.py::test_whoever_shows_no_token_is_told_nothing",),
    ),
    Mutant(
        "what cannot be read over gRPC is counted by nobody", "row", "serve/edge/over_grpc.py",
        'self._gateway.refused(wire.infer_path(""), reason(problem)', 'reason(problem) or (lambda *_: 0)("", ""',
        ("serve/edge/test_over_grpc.py::test_refusals_have_the_codes_of_their_statuses_and_the_servers_sentence",),
    ),
    Mutant(
        "padding counts as tokens of an embedding", "pair", "serve/edge/openai/embeddings.py",
        "{others[0]: known.astype(np.int64)}", "{others[0]: np.ones_like(found)}",
        ("serve/edge/test_embeddings.py",),
    ),
    Mutant(
        "a clock's offset is half the round trip", "sign", "loadtest/engine/clock.py",
        "((t2 - t1) + (t3 - t4)) // 2", "((t2 - t1) - (t3 - t4)) // 2",
        ("loadtest/test_clock.py",),
    ),
    Mutant(
        "a clock is said to be surer than it is", "factor", "loadtest/engine/clock.py",
        "+ trip / 2 for", "+ trip / 8 for",
        ("loadtest/test_clock.py",),
    ),
    Mutant(
        "a clock is as sure beyond what was seen", "bound", "loadtest/engine/clock.py",
        "error *= 1 + 2 * self._beyond(used) / span", "error *= 1",
        ("loadtest/test_clock.py::test_the_error_holds_to_both_ends_of_the_run",),
    ),
    Mutant(
        "a clock that moves in steps is sure of what it did not see", "bound", "loadtest/engine/clock.py",
        "error += step_ns", "error += 0",
        ("loadtest/test_clock.py::test_clocks_that_move_in_steps_are_within_the_error_bound_too",),
    ),
    Mutant(
        "what a stall missed is sampled at once, in a burst", "bound", "serve/telemetry/sampler.py",
        "if due_s + period_s > began_s else began_s + period_s", "if due_s + period_s > began_s else began_s",
        ("serve/telemetry/test_sampler.py::test_samples_keep_their_times_and_what_was_missed_comes_in_no_burst",),
    ),
    Mutant(
        "a reading that stood still for seconds is a sample of its middle", "unit", "serve/telemetry/sampler.py",
        "self.period_ms / 1e3, 2", "self.period_ms, 2",
        ("serve/telemetry/test_sampler.py::test_what_a_stall_held_up_in_the_middle_of_a_reading_is_no_sample",),
    ),
    Mutant(
        "a worker's own clock is set the wrong way", "sign", "loadtest/engine/clock.py",
        "Base(self.anchor_ns - offset_ns)", "Base(self.anchor_ns + offset_ns)",
        ("loadtest/test_clock.py",),
    ),
    Mutant(
        "a call that was not looked at is given up after two", "bound", "loadtest/engine/endpoint/http2/pool.py",
        "range(TRIES - 1)", "range(1)",
        ("loadtest/endpoint/test_grpc.py::test_it_is_sent_again_until_a_stream_of_the_most_at_once_is_free",),
    ),
    Mutant(
        "an event has come before its line was whole", "bound", "loadtest/engine/endpoint/protocols/_token_stream.py",
        "arrivals[piece][1] < end", "arrivals[piece][1] < end - 2",
        ("loadtest/endpoint/test_token_stream.py::test_it_is_the_same_wherever_the_network_splits_it",),
    ),
    Mutant(
        "a stream that broke off is a success", "row", "loadtest/engine/endpoint/client.py",
        "answer.status, answer.error = CUT, str", "answer.error = str",
        ("loadtest/endpoint/test_stream_client.py::test_what_breaks_off_is_cut_and_keeps_what_came",),
    ),
    Mutant(
        "a deadline takes what had come with it", "row", "loadtest/engine/endpoint/stamping/sockets.py",
        "self._over = problem", "raise",
        ("loadtest/endpoint/test_stream_client.py::test_what_is_not_whole_in_time_is_a_timeout_and_keeps_what_came",),
    ),
    Mutant(
        "the ring of a socket is read beyond its end", "bound", "loadtest/engine/endpoint/stamping/reading_loop.py",
        "RING_BYTES - (lane[CAME] - lane[TAKEN])", "2 * RING_BYTES - (lane[CAME] - lane[TAKEN])",
        ("loadtest/endpoint/test_stream_client.py::test_a_reader_that_does_not_look_for_long_gets_all_of_it",),
    ),
    Mutant(
        "a turn is due a think time after it was sent", "pair", "loadtest/engine/workers/sessions.py",
        "answer.done_ns - self._start_ns", "answer.sent_ns - self._start_ns",
        ("loadtest/workers/test_sessions.py::test_each_turn_is_due_a_think_time_after_the_answer_before",),
    ),
    Mutant(
        "a turn forgets what the model said", "row", "loadtest/engine/workers/sessions.py",
        'said = (*before, str(protocol.outputs(answer)["text"][0]))', "said = before",
        ("loadtest/workers/test_sessions.py::test_a_turn_says_all_that_was_said_before",),
    ),
    Mutant(
        "a session goes on after a failure", "row", "loadtest/engine/workers/sessions.py",
        "is_success(answer.status) and (turn :=", "(turn :=",
        ("loadtest/workers/test_sessions.py::test_who_fails_says_no_more_and_nothing_begins_after_the_end",),
    ),
    Mutant(
        "a turn begins after its step", "bound", "loadtest/engine/workers/sessions.py",
        "if due >= step.begin_ns + step.length_ns:", "if due < 0:",
        ("loadtest/workers/test_sessions.py::test_who_fails_says_no_more_and_nothing_begins_after_the_end",),
    ),
    Mutant(
        "later turns get the numbers of arrivals", "row", "loadtest/engine/workers/sessions.py",
        "Turn(next(self._numbers[step.index]),", "Turn(arrival.seq,",
        ("loadtest/workers/test_sessions.py::test_each_turn_is_due_a_think_time_after_the_answer_before",),
    ),
    Mutant(
        "every turn asks the same", "row", "loadtest/engine/workers/input/dialogue.py",
        "return session | turn << TURN_BITS", "return session",
        ("loadtest/workers/test_sessions.py::test_a_turn_says_all_that_was_said_before",),
    ),
    Mutant(
        "a prompt has a token more", "bound", "loadtest/engine/workers/input/tokenizer.py",
        "found.offsets[tokens - 1][1]", "found.offsets[tokens][1]",
        ("loadtest/workers/input/test_prompts.py::test_with_a_tokenizer_prompts_have_just_so_many_tokens",),
    ),
    Mutant(
        "what a cache held counts where nobody said it", "factor", "analysis/counting/streams.py",
        "np.where(known, tokens, 0)", "tokens",
        ("analysis/counting/test_stream_figures.py::test_turns_of_sessions_are_told_one_by_one",),
    ),
    Mutant(
        "prompts come again after some", "row", "loadtest/engine/workers/input/prompts.py",
        "np.random.default_rng([self.seed, number])", "np.random.default_rng([self.seed, number % 32])",
        ("loadtest/workers/input/test_prompts.py::test_a_prompt_is_the_same_wherever_it_is_made_and_like_no_other",),
    ),
    Mutant(
        "a first token counts from the last one", "pair", "analysis/run/outcomes.py",
        "FAILED, first - intended)", "FAILED, last - intended)",
        ("analysis/counting/test_stream_figures.py::test_every_figure_is_what_its_definition_says",),
    ),
    Mutant(
        "a failure has a time per token", "factor", "analysis/run/outcomes.py",
        "np.where(ok, per_token, FAILED)", "per_token",
        ("analysis/counting/test_stream_figures.py::test_every_figure_is_what_its_definition_says",),
    ),
    Mutant(
        "an empty error text is an error", "bound", "analysis/run/outcomes.py",
        "[*(not text for text in errors), True]", "[*(False for text in errors), True]",
        ("analysis/run/test_recorded_run.py::test_an_error_text_makes_an_answer_a_failure",),
    ),
    Mutant(
        "our own count of tokens goes before the server's", "pair", "analysis/run/outcomes.py",
        "np.where(said != NEVER, 2, own != NEVER)", "np.where(own != NEVER, 1, 2 * (said != NEVER))",
        ("analysis/counting/test_stream_figures.py::test_every_figure_is_what_its_definition_says",),
    ),
    Mutant(
        "an arrival of a slice that keeps one limit keeps all", "sign", "analysis/counting/slices.py",
        "beyond |= self.limited_ms", "beyond &= self.limited_ms",
        ("analysis/verdicts/test_token_objectives.py::test_a_slice_of_all_says_what_all_say",),
    ),
    Mutant(
        "a piece of a gRPC stream has the instant of the next", "pair", "loadtest/engine/endpoint/http2/connection.py",
        "stream.arrivals.append((self._stamped.at_ns, stream.size))",
        "stream.arrivals.append((self._stamped.at_ns, stream.size - len(piece)))",
        ("loadtest/endpoint/test_grpc.py::test_a_message_has_come_when_it_is_whole",),
    ),
    Mutant(
        "an answer without a gRPC status broke off", "row", "loadtest/engine/endpoint/grpc.py",
        "if not answer.done_ns and stream.head", "if stream.head",
        ("loadtest/endpoint/test_grpc.py::test_a_stream_that_is_odd_is_a_row",),
    ),
    Mutant(
        "who thinks is waited for when all is stopped", "await", "loadtest/engine/workers/sessions.py",
        "            if self._stopping():\n                return\n", "",
        ("loadtest/workers/test_sessions.py::test_who_is_stopped_while_everybody_thinks_waits_for_nobody",),
    ),
    Mutant(
        "an arrival that keeps one limit keeps all", "sign", "analysis/counting/streams.py",
        "beyond = beyond | (", "beyond = beyond & (",
        ("analysis/counting/test_stream_figures.py::test_every_figure_is_what_its_definition_says",),
    ),
    Mutant(
        "the latency of a stream lasts until its connection is free", "pair", "analysis/run/columns.py",
        "pc.coalesce(last, done)", "pc.coalesce(done, last)",
        ("analysis/counting/test_stream_figures.py::test_every_figure_is_what_its_definition_says",),
    ),
    Mutant(
        "a token in a refusal is kept", "leak", "loadtest/engine/endpoint/client.py",
        "if found.status >= 400:", "if found.status >= 500:",
        (
            "live/test_secrets.py::test_who_has_no_token_or_a_wrong_one_is_told_so_in_one_sentence",
            "live/test_secrets.py::test_a_run_is_let_in_everywhere_and_keeps_no_secret",
        ),
    ),
    Mutant(
        "a chunk's end is taken for a part of it", "bound", "loadtest/engine/endpoint/http1/pool.py",
        "_take(connection, data, size, pieces))", "_take(connection, data, size + 2, pieces))",
        ("loadtest/endpoint/test_http.py",),
    ),
    Mutant(
        "what has ended is killed in its next work", "await", "loadtest/engine/workers/on_time/under_way.py",
        "        if each in self._busy:\n            each.throw", "        each.throw",
        ("loadtest/workers/on_time/test_under_way.py",),
    ),
    Mutant(
        "a deadline comes for all when it comes for one", "bound", "loadtest/engine/endpoint/deadlines.py",
        "self._open[0][0] <= time.monotonic_ns()", "True",
        ("loadtest/endpoint/test_deadlines.py",),
    ),
    Mutant(
        "Locust is told of the same requests again", "row", "loadtest/engine/workers/locust_statistics.py",
        "        self._told.clear()\n", "",
        ("loadtest/workers/test_locust_statistics.py",),
    ),
    Mutant(
        "a connection that was closed is used again", "sign", "loadtest/engine/endpoint/http1/pool.py",
        "return not news.poll(0)", "return True",
        ("loadtest/endpoint/test_http.py::test_a_connection_that_was_closed_meanwhile_costs_nothing",),
    ),
    Mutant(
        "failures are lost where histograms are put together", "row", "loadtest/engine/live/histogram.py",
        "        self.infinite += other.infinite\n", "",
        ("loadtest/live/test_board.py::test_histograms_put_together_are_that_of_all",),
    ),
    Mutant(
        "a percentile among the failures is finite", "bound", "loadtest/engine/live/histogram.py",
        "rank >= self.finite", "rank > self.finite",
        ("loadtest/live/test_board.py::test_what_never_ended_is_infinite_in_a_histogram",),
    ),
    Mutant(
        "a step's latency while it runs is from when it was sent", "pair", "loadtest/engine/live/step_stats.py",
        "(done - intended) / 1e6\n", "(done - sent) / 1e6\n",
        ("loadtest/live/test_board.py", "loadtest/live/test_step_stats.py"),
    ),
    Mutant(
        "arrivals that were dropped count as failed too", "row", "loadtest/engine/live/step_stats.py",
        "failed = over.infinite - self.dropped", "failed = over.infinite",
        ("loadtest/live/test_board.py::test_failures_drops_and_lateness_are_counted_by_second_and_so_far",),
    ),
    Mutant(
        "rows that come late are in no second", "row", "loadtest/engine/live/step_stats.py",
        "np.maximum((over_ns - self._origin_ns) // 1_000_000_000, self.next_second)",
        "((over_ns - self._origin_ns) // 1_000_000_000)",
        ("loadtest/live/test_board.py",),
    ),
    Mutant(
        "a counter that stands still is taken for one that was read anew", "sign",
        "loadtest/engine/record/devices/scraper.py",
        'before.values.get("energy_j") == reading.values.get("energy_j")',
        'before.values.get("energy_j") != reading.values.get("energy_j")',
        ("loadtest/record/test_device_sources.py::test_a_counter_that_stands_still_says_nothing_of_when",),
    ),
    Mutant(
        "DCGM's energy is taken for joules", "unit", "loadtest/engine/record/devices/exporters.py",
        '"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3)',
        '"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1)',
        ("loadtest/record/test_device_sources.py::test_the_page_of_dcgms_guide_is_read_field_by_field",),
    ),
    Mutant(
        "all GPUs of a host are an endpoint's that holds one", "pair", "loadtest/engine/record/devices/binding.py",
        "    if len(gpus) < 2:\n", "    if gpus:\n",
        ("loadtest/record/test_device_sources.py::test_of_several_gpus_the_process_decides_and_else_nothing_is_guessed",),
    ),
    Mutant(
        "what was due before a kill is not lost, what was due later is", "sign", "loadtest/engine/record/resume.py",
        "due_ns < until_ns", "due_ns > until_ns",
        ("loadtest/soak/test_chapters.py::test_what_was_due_and_has_no_row_is_lost",),
    ),
    Mutant(
        "a minute is told before its answers are there", "bound", "loadtest/engine/soak/minutes.py",
        "minute.end_ns + self._after_ns < now_ns", "minute.end_ns < now_ns",
        ("loadtest/soak/test_chapters.py::test_minutes_count_every_arrival_once_and_end_with_their_chapter",),
    ),
    Mutant(
        "rows go that tell what became of a fault", "bound", "loadtest/engine/soak/chapters.py",
        "if end + looked_ns > now", "if end > now",
        ("loadtest/soak/test_chapters.py::test_no_rows_go_from_which_a_fault_is_still_to_be_told",),
    ),
    Mutant(
        "an objective is answered by what another was told", "pair", "analysis/verdicts/retired_chapters.py",
        "for known, one in kept if known == slo", "for _, one in kept if slo",
        ("analysis/verdicts/test_retired_chapters.py::test_an_objective_that_was_set_later_is_not_answered_by_another",),
    ),
    Mutant(
        "a time per token is asked of answers in one event", "row", "loadtest/engine/live/limit_counts.py",
        "if len(limits) == 1 else", "if not limits else",
        ("loadtest/live/test_step_stats.py::test_a_share_of_times_per_token_is_one_of_the_answers_that_have_one",),
    ),
    Mutant(
        "minutes of a timer are its hours", "pair", "loadtest/engine/soak/timers.py",
        "minute, hour, day, month, weekday = (", "hour, minute, day, month, weekday = (",
        ("loadtest/soak/test_chapters.py::test_a_cron_line_in_the_words_of_systemd",),
    ),
    Mutant(
        "chapters that missed the objective need not be in a row", "row", "loadtest/engine/scenario/stop_rules.py",
        "self._missed[endpoint] + 1 if missed else 0", "self._missed[endpoint] + bool(missed)",
        ("loadtest/soak/test_chapters.py::test_an_objective_missed_three_chapters_in_a_row_ends_it",),
    ),
    Mutant(
        "what went down with a load process is not counted", "row", "loadtest/engine/record/run_folder.py",
        'totals["lost"] += max(0, scheduled - self._rows)', 'totals["lost"] += 0',
        ("loadtest/scenario/test_fault_plan.py::test_a_load_process_is_killed_and_its_share_is_counted_as_lost",),
    ),
    Mutant(
        "what writes to the folder is interrupted by itself", "lock", "loadtest/engine/record/run_folder.py",
        "        if self._writing:", "        if False:",
        ("loadtest/soak/test_chapters.py::test_rows_wait_in_memory_while_the_disk_is_full_and_none_is_lost",),
    ),
    Mutant(
        "rows are deleted a thousand times too early", "unit", "loadtest/engine/record/run_folder.py",
        "now_ns - keep_s * 1e9", "now_ns - keep_s * 1e6",
        ("loadtest/soak/test_chapters.py::test_the_oldest_rows_are_deleted_and_the_ledger_knows_of_them",),
    ),
    Mutant(
        "a trace's microseconds are milliseconds", "unit", "loadtest/engine/modes/_trace.py",
        '"us": 1_000,', '"us": 1_000_000,',
        ("loadtest/modes/test_trace.py::test_parquet_of_numbers_and_of_dates",),
    ),
    Mutant(
        "a lost process owes arrivals of steps that had not begun", "sign", "loadtest/engine/workers/dispatch.py",
        "elapsed - step.begin_ns", "elapsed + step.begin_ns",
        ("loadtest/workers/test_dispatch.py::test_a_process_that_is_lost_owes_what_was_due_of_each_part",),
    ),
    Mutant(
        "a page that drips is waited for", "wake", "loadtest/engine/record/server_metrics/page.py",
        "    for each in sockets:\n", "    for each in ():\n",
        ("loadtest/record/server_metrics/test_metric_page.py::test_who_hangs_is_left_in_time",),
    ),
    Mutant(
        "a token goes to every page of metrics", "leak", "loadtest/engine/record/server_metrics/sources.py",
        'return access.line if (asked.scheme, asked.netloc) == (own.scheme, own.netloc) else ""', "return access.line",
        ("loadtest/record/server_metrics/test_metric_choice.py::test_a_token_goes_to_the_endpoints_own_host_and_port_alone",),
    ),
    Mutant(
        "a search asks for the limit that the fewest miss", "sign", "loadtest/engine/live/probe.py",
        "worst, limit_ms = max(sketches", "worst, limit_ms = min(sketches",
        ("loadtest/scenario/test_knee_of_streams.py",),
    ),
    Mutant(
        "streams that fill a server are taken for a queue that grows", "bound", "loadtest/engine/live/step_stats.py",
        "in_flight = self._in_flight(filled_s, until_s)", "in_flight, filled_s = self._in_flight(0.0, until_s), 0.0",
        ("loadtest/live/test_step_stats.py::test_a_server_that_fills_with_streams_does_not_drown",),
    ),
    Mutant(
        "the second time through a trace its prompts are known", "pair", "loadtest/engine/workers/input/prompts.py",
        "[self.seed, SHARED, turn, block % SHARED]", "[self.seed, SHARED, 0, block % SHARED]",
        ("loadtest/workers/input/test_prompts.py::test_prompts_of_a_trace_share_the_blocks_that_its_own_did",),
    ),
    Mutant(
        "what stamps waits for a core behind what sends", "lock", "loadtest/engine/endpoint/stamping/sockets.py",
        "        self._stand_in_line()\n", "",
        ("loadtest/endpoint/test_stream_client.py::test_the_thread_stands_in_line_for_a_core_as_its_owner_does",),
    ),
    Mutant(
        "through gRPC, nought is the text of it", "unit", "loadtest/engine/endpoint/protocols/oip_grpc.py",
        "return value if json.dumps(value) == text else text", "return text",
        ("loadtest/endpoint/test_grpc.py::test_what_an_endpoint_says_of_itself_is_what_it_says_as_json",),
    ),
    Mutant(
        "through gRPC, a version 2.10 is the number 2.1", "unit", "loadtest/engine/endpoint/protocols/oip_grpc.py",
        "return value if json.dumps(value) == text else text", "return value",
        ("loadtest/endpoint/test_grpc.py::test_what_an_endpoint_says_of_itself_is_what_it_says_as_json",),
    ),
)

ANALYSIS = (
    Mutant(
        "answers of the batch before cost the next one nothing", "row", "analysis/planning/simulator/event_loop.py",
        "            x.told_s = now_s + w.telling_s[x.running]\n", "            x.told_s = now_s\n",
        ("analysis/planning/simulator/test_simulate.py",),
    ),
    Mutant(
        "answers hold up the next batch without end", "unit", "analysis/planning/model/service_time.py",
        "found_s * np.minimum(np.arange(len(padded)), most)", "found_s * np.arange(len(padded))",
        ("analysis/planning/model/test_foretold_gpu.py", "analysis/planning/model/test_fit.py"),
    ),
    Mutant(
        "who comes while an idle replica wakes waits for the next batch", "row",
        "analysis/planning/simulator/event_loop.py",
        "x.close_s = x.next_s = min(x.close_s, now_s + w.wake_s)", "_decide(w, r, now_s)",
        ("analysis/planning/simulator/test_simulate.py",),
    ),
    Mutant(
        "the pause behind a batch is one for all sizes", "unit", "analysis/planning/model/service_time.py",
        "found[:most] = by_size(sizes[part], gap_s[part], most, padded)[0][:most]", "found[:most] = gap_s[part].mean()",
        ("analysis/planning/model/test_foretold_gpu.py", "analysis/planning/model/test_fit.py"),
    ),
    Mutant(
        "answers cost the next batch as much after a pause", "unit", "analysis/planning/model/service_time.py",
        "np.maximum(0.0, telling_s[before] - idle_s)", "telling_s[before]",
        ("analysis/planning/model/test_foretold_gpu.py", "analysis/planning/model/test_fit.py"),
    ),
    Mutant(
        "an objective of a slice is held against all arrivals", "pair", "analysis/steps/step_evidence.py",
        "counted(self.slices, slo) if slo.slice else", "counted(self.slices, slo) if not slo else",
        ("analysis/verdicts/test_slices.py::test_an_objective_of_a_slice_is_judged_by_that_slice_alone",),
    ),
    Mutant(
        "failures of a slice count as fast", "row", "analysis/counting/slices.py",
        "np.where(rows.ok, rows.latency_ms, np.inf)", "np.where(rows.ok, rows.latency_ms, 0.0)",
        ("analysis/verdicts/test_slices.py::test_a_slice_is_what_a_groupby_finds",),
    ),
    Mutant(
        "failures count as achieved", "row", "analysis/steps/step_summary.py",
        "lambda step: step.done / step.seconds", "lambda step: step.n / step.seconds",
        ("analysis/steps/test_measure.py::test_every_figure_of_a_step_equals_the_truth",),
    ),
    Mutant(
        "energy is shared with what failed", "factor", "analysis/steps/step_evidence.py",
        "return joules / self.done if", "return joules / self.n if",
        ("analysis/steps/test_truth.py::test_every_figure_of_a_step_is_the_truth",),
    ),
    Mutant(
        "a shared device's energy is told against the others' alone", "factor", "analysis/steps/step_devices.py",
        "share = own / all_of_them", "share = own / (all_of_them - own)",
        ("analysis/steps/test_measure.py::test_two_endpoints_at_once_have_their_own_rows_and_share_energy_by_compute_time",),
    ),
    Mutant(
        "an arrival at the end of a window is inside", "bound", "analysis/counting/loop.py",
        "<= begun_ns < meaning.grids[group, END]", "<= begun_ns <= meaning.grids[group, END]",
        ("analysis/steps/test_measure.py::test_an_arrival_at_the_end_of_a_window_is_outside",),
    ),
    Mutant(
        "latency of the report counts from when it was sent", "pair", "analysis/counting/loop.py",
        "latency_ms, of = (done_ns - begun_ns) * 1e-6, BINS", "latency_ms, of = (done_ns - sent_ns) * 1e-6, BINS",
        ("analysis/counting/test_counts.py::test_a_step_is_what_pandas_says",),
    ),
    Mutant(
        "what takes just the objective's time is over it", "bound", "analysis/stats/sketch.py",
        "found: npt.NDArray[np.int64] = self.counts[:, k + 1 :]", "found: npt.NDArray[np.int64] = self.counts[:, k:]",
        ("analysis/steps/test_measure.py::test_what_takes_just_the_time_of_the_objective_is_in_time",),
    ),
    Mutant(
        "of two device samples the farther one is taken", "sign", "analysis/counting/loop.py",
        "if gap_after < gap_before:", "if gap_after > gap_before:",
        ("analysis/counting/test_counts.py::test_the_state_that_requests_saw_is_that_of_the_joined_rows",),
    ),
    Mutant(
        "lateness is held against microseconds", "unit", "analysis/counting/order_statistics.py",
        "np.count_nonzero(late > limit * 1e6)", "np.count_nonzero(late > limit * 1e3)",
        ("analysis/steps/test_measure.py::test_lateness_counts_from_one_millisecond_or_five_percent_of_the_service",),
    ),
    Mutant(
        "a repeated value is found one rank too late", "bound", "analysis/stats/select.py",
        'np.searchsorted(held, wanted - before, side="right")', 'np.searchsorted(held, wanted - before, side="left")',
        (
            "analysis/counting/test_counts.py::test_order_statistics_by_passes_are_exact",
            "analysis/counting/test_counts.py::test_what_is_not_kept_is_found_by_more_passes",
        ),
    ),
    Mutant(
        "a percentile is the next lower value", "bound", "analysis/stats/trend.py",
        "return math.ceil((n - 1) * percent / 100 - 1e-9)", "return math.floor((n - 1) * percent / 100)",
        ("analysis/stats/test_trend.py::test_a_rank_is_numpys",),
    ),
    Mutant(
        "the upper end of an interval is too low", "bound", "analysis/stats/interval.py",
        "betaincinv(hits + 1, n_eff - hits, 1 - tail)", "betaincinv(hits, n_eff - hits + 1, 1 - tail)",
        ("analysis/stats/test_interval.py::test_ranks_are_binomial_ones_of_the_effective_size",),
    ),
    Mutant(
        "dependence seen in few clusters is believed as it is", "factor", "analysis/stats/dependence.py",
        "(1 + CLUSTERS * (1 + excess) / beyond)", "1",
        ("analysis/stats/test_interval.py::test_a_queue_has_intervals_that_cover_open_above_where_a_window_is_short",),
    ),
    Mutant(
        "endpoints at once get the same arrivals", "pair", "loadtest/engine/scenario/steps.py",
        "seed + number, phase=number / count", "seed, phase=0.0",
        ("loadtest/scenario/test_scenario.py::test_what_is_driven_at_once_is_independent_and_none_is_always_first",),
    ),
    Mutant(
        "the start is said before all are ready", "await", "loadtest/engine/workers/dispatch.py",
        "            self._wait(gone.append)\n", "",
        ("loadtest/workers/test_dispatch.py",),
    ),
    Mutant(
        "a page is a result", "sign", "serve/body/result.py",
        "if kind and not kind.endswith(_RESULT_TYPES):", "if False:",
        ("live/test_odd_servers.py::test_each_odd_answer_has_one_row_of_the_right_status",),
    ),
    Mutant(
        "a length wins over chunks", "bound", "loadtest/engine/endpoint/http1/pool.py",
        "if _CHUNKED.search(head):  # wins", "if _CHUNKED.search(head) and not said:  # wins",
        ("live/test_odd_servers.py::test_each_odd_answer_has_one_row_of_the_right_status",),
    ),
    Mutant(
        "one value that fits nothing costs its batch", "row", "loadtest/engine/record/segments.py",
        "except UNFIT:\n            fitting", "except ZeroDivisionError:\n            fitting",
        ("loadtest/record/test_segments.py",),
    ),
    Mutant(
        "the ends of an interval change places", "pair", "analysis/stats/interval.py",
        "return low, None if open_ else betaincinv(hits + 1, n_eff - hits, 1 - tail)",
        "return betaincinv(hits + 1, n_eff - hits, 1 - tail), None if open_ else low",
        (
            "analysis/stats/test_interval.py::test_the_smallest_visible_change_is_2_8_errors",
            "analysis/stats/test_interval.py::test_intervals_of_independent_latencies_cover",
        ),
    ),
    Mutant(
        "what shared arrivals did to both adds up", "sign", "analysis/stats/ratio.py",
        "[own[0] - own[1]] if alike", "[own[0] + own[1]] if alike",
        ("analysis/stats/test_interval.py::test_what_shared_arrivals_do_to_both_cancels",),
    ),
    Mutant(
        "what is shared by chance is believed", "bound", "analysis/stats/ratio.py",
        "SHARED_WAVES = 30", "SHARED_WAVES = 8",
        ("analysis/stats/test_interval.py::test_by_chance_alone_little_seems_shared",),
    ),
    Mutant(
        "a variance is taken at the ratio that is asked about alone", "factor", "analysis/stats/ratio.py",
        "AT_SAMPLES = 0.45", "AT_SAMPLES = 0.0",
        ("analysis/stats/test_interval.py::test_two_at_once_that_do_not_differ_have_a_ratio_of_1",),
    ),
    Mutant(
        "many comparisons are each made at the level of one", "factor", "analysis/stats/ratio.py",
        "LEVEL / (of - k)", "LEVEL",
        ("analysis/stats/test_interval.py::test_the_same_twice_is_seldom_called_different",),
    ),
    Mutant(
        "a request has the device's state at its end", "pair", "analysis/run/join.py",
        "sent + (done - sent) // 2, done)", "done, done)",
        ("analysis/run/test_join.py",),
    ),
    Mutant(
        "a sample just a period away is too far", "bound", "analysis/run/join.py",
        "<= track.period_ns", "< track.period_ns",
        ("analysis/run/test_join.py::test_a_sample_just_a_period_away_still_counts",),
    ),
    Mutant(
        "rows that move twice while they are read are an error", "bound", "analysis/run/tables.py",
        "for _ in range(10):", "for _ in range(1):",
        ("analysis/run/test_recorded_run.py::test_what_a_killed_run_left_behind_may_still_move_its_rows_on",),
    ),
    Mutant(
        "energy of a window with a gap at its edge is too little", "factor", "analysis/run/device_tracks.py",
        "return used * (end_ns - start_ns) / float(edges[1] - edges[0])", "return used",
        ("analysis/run/test_device_tracks.py::test_a_gap_at_the_edge_is_filled_where_there_is_a_counter_too",),
    ),
    Mutant(
        "idle power is added to energy", "sign", "analysis/run/device_tracks.py",
        "joules - total_idle_w * length_s", "joules + total_idle_w * length_s",
        ("analysis/steps/test_measure.py::test_energy_of_a_step_is_the_integral_and_net_of_idle",),
    ),
    Mutant(
        "a device's clock is set the wrong way", "sign", "analysis/run/device_tracks.py",
        'time_ns - int(entry.get("offset_ns") or 0)', 'time_ns + int(entry.get("offset_ns") or 0)',
        ("analysis/run/test_device_tracks.py::test_clocks_are_aligned",),
    ),
    Mutant(
        "a rate above one that missed counts as kept", "bound", "analysis/judging/rates.py",
        "if at.kept and (high or doubtful):", "if at.kept and doubtful:",
        ("analysis/steps/test_capacity.py::test_a_rate_that_meets_it_above_one_that_missed_does_not_count",),
    ),
    Mutant(
        "a ratio is b over a", "pair", "analysis/steps/variant_pairs.py",
        "[math.log(a / b) for a, b in values", "[math.log(b / a) for a, b in values",
        ("analysis/steps/test_variant_pairs.py::test_the_ratio_is_a_over_b_with_eager_as_a",),
    ),
    Mutant(
        "two in a hundred are as sure as one", "bound", "analysis/judging/share.py",
        "SURE = 0.99\n", "SURE = 0.98\n",
        ("analysis/judging/test_judge.py",),
    ),
    Mutant(
        "a run that cannot say in one place has not failed in another", "pair", "analysis/verdicts/verdict.py",
        "kept = all_of(answer.kept for answer in answers)",
        "kept = None if None in (found := {answer.kept for answer in answers}) else found == {True}",
        ("analysis/verdicts/test_verdict.py",),
    ),
    Mutant(
        "what is unknown hides a miss", "pair", "analysis/judging/share.py",
        "False if False in found else None if None in found else True",
        "None if None in found else False if False in found else True",
        ("analysis/verdicts/test_verdict.py",),
    ),
    Mutant(
        "an unbroken ledger is broken where rows are missing", "sign", "analysis/verdicts/verdict.py",
        "scheduled != sum(ledger.values())", "scheduled < sum(ledger.values())",
        ("analysis/verdicts/test_verdict.py::test_a_broken_ledger_makes_the_run_invalid",),
    ),
    Mutant(
        "hours of a soak are minutes", "unit", "analysis/soak/soak_verdict.py",
        "hours, gone_pct = measured_s / 3600,", "hours, gone_pct = measured_s / 60,",
        ("analysis/soak/test_soak_verdict.py::test_one_that_is_too_short_for_what_was_asked_names_what_it_could_have_shown_and_how_long_it_takes",),
    ),
    Mutant(
        "a planned fault excuses as long as nobody recovers", "bound", "analysis/steps/fault_effects.py",
        "until_ns = min(due_ns, next_ns, over_at_ns)", "until_ns = min(next_ns, over_at_ns)",
        ("analysis/verdicts/test_without_faults.py::test_a_fault_excuses_no_more_than_a_recovery_may_take",),
    ),
    Mutant(
        "what the endpoint does not notice is held against it", "sign", "analysis/steps/fault_windows.py",
        "and reach(one.effect.fault).endpoint]", "]",
        ("house/test_faults.py::test_a_file_in_the_analysis_says_that_the_endpoint_does_not_notice_a_fault",),
    ),
    Mutant(
        "a load process that was killed is missed no longer than any fault", "bound", "analysis/steps/fault_effects.py",
        "if broken.load:", "if False:",
        ("analysis/verdicts/test_without_faults.py::test_a_load_process_that_was_killed_on_purpose_takes_its_step_with_it",),
    ),
    Mutant(
        "what recovers too late has recovered", "bound", "analysis/judging/judge.py",
        "return took_s <= may_take_s", "return True",
        ("analysis/verdicts/test_without_faults.py::test_what_a_recovery_may_take_and_cost_can_be_set",),
    ),
    Mutant(
        "as before is before the last of faults that follow each other", "factor", "analysis/steps/fault_effects.py",
        "usual[endpoint] = span.before_ns", "pass",
        ("analysis/verdicts/test_without_faults.py::test_as_before_is_before_the_first_of_faults_that_follow_each_other",),
    ),
    Mutant(
        "the end of better hours is no rise", "sign", "analysis/soak/soak_verdict.py",
        "return limit is not None and _rise(row) > limit", "return limit is not None and row.size > limit",
        ("analysis/soak/test_soak_verdict.py::test_the_end_of_better_hours_is_a_rise",),
    ),
    Mutant(
        "gaps are hours, too", "unit", "analysis/soak/soak_verdict.py",
        "- fault_windows.lost_s(gaps, start, end) for start, end in spans)", "for start, end in spans)",
        ("analysis/soak/test_soak_verdict.py::test_a_gap_inside_a_chapter_is_no_hour",),
    ),
    Mutant(
        "stairs are judged by what their falls are with a wrong fit", "factor", "analysis/soak/growth.py",
        "error = min(_error(levels), _error(rest))", "error = _error(rest)",
        ("analysis/soak/test_growth.py::test_what_was_fitted_wrongly_is_no_noise",),
    ),
    Mutant(
        "runs that were worse are learned", "row", "analysis/history/regression.py",
        "            worse.append(value)\n", "            learned.append(value)\n            worse.append(value)\n",
        ("analysis/history/test_regression.py::test_a_regression_is_not_learned",),
    ),
    Mutant(
        "a capacity that was not found is one that was", "bound", "analysis/history/figure_series.py",
        "return self.low is not None and self.high is None", "return False",
        ("analysis/history/test_regression.py::test_a_capacity_that_was_not_found_is_a_bound",),
    ),
    Mutant(
        "a run is known by its name alone", "factor", "analysis/history/log.py",
        " if folder.name not in names or _key_in(folder) not in found.runs", " if folder.name not in names",
        ("cli/test_history_command.py::test_a_name_that_is_used_again_is_another_run",),
    ),
    Mutant(
        "a hole is a cycle without the stall", "row", "analysis/soak/periodic_stalls.py",
        "longest(np.where(known, slow - (MOSTLY - 0.06), 0.0))", "longest(slow - (MOSTLY - 0.06))",
        ("analysis/soak/test_soak_verdict.py::test_a_hole_is_no_time_without_a_stall",),
    ),
    Mutant(
        "a stall across the border of two phases is in neither", "row", "analysis/soak/periodic_stalls.py",
        "return max(2, phases // 10)", "return max(1, phases // 10)",
        ("analysis/soak/test_soak_verdict.py::test_a_stall_of_any_period_is_found",),
    ),
    Mutant(
        "a size that was not seen is taken for what its neighbours are padded to", "row",
        "analysis/planning/model/fit.py",
        "awake_s, most, padded)", "awake_s, most)",
        (
            "analysis/planning/model/test_foretold_gpu.py::test_each_rate_is_foretold_from_the_others",
        ),
    ),
    Mutant(
        "beside its batch a request spends the same in all sizes", "row", "analysis/planning/model/fit.py",
        "after_s[1:] -= after_s[1:].min()", "after_s[:] = 0.0",
        ("analysis/planning/model/test_foretold_gpu.py::test_each_rate_is_foretold_from_the_others",),
    ),
    Mutant(
        "what is padded alike is not taken together", "pair", "analysis/planning/model/service_time.py",
        "np.interp(every, steps, levels)", "np.interp(np.arange(most + 1.0), steps, levels)",
        ("analysis/planning/model/test_fit.py::test_sizes_that_were_not_seen_take_as_long_as_those_that_are_padded_alike",),
    ),
    Mutant(
        "a full batch that is copied in ahead is another replica's", "bound", "analysis/planning/model/fit.py",
        "(batches.requests < most) | (not ours)", "batches.requests <= most",
        (
            "analysis/planning/model/test_foretold_gpu.py"
            "::test_full_batches_that_are_copied_in_behind_another_are_not_several_replicas",
        ),
    ),
    Mutant(
        "a share that is no number goes out as one", "row", "serve/telemetry/nvml.py",
        " and math.isfinite(asked.metrics[place].value)", "",
        ("serve/telemetry/test_nvml.py::test_a_share_that_is_no_number_is_none",),
    ),
    Mutant(
        "what was lost is a request of one row", "row", "analysis/planning/model/observed_batches.py",
        'rows["rows"].dropna()', 'rows["rows"].fillna(1)',
        ("analysis/planning/model/test_fit.py::test_what_was_lost_has_no_size_of_its_own",),
    ),
    Mutant(
        "a batch with a missing answer had room left", "row", "analysis/planning/model/batching_rule.py",
        "has_next & batches.whole & (batches", "has_next & (batches",
        ("analysis/planning/model/test_batching_rule.py::test_a_batch_with_a_missing_answer_had_no_room_left",),
    ),
    Mutant(
        "a trend is by block where it should be by cell", "unit", "analysis/stats/changepoints.py",
        "amount, error = amount / size, error / size", "amount, error = amount / 1, error / 1",
        ("analysis/stats/test_changepoints.py::test_a_leak_is_found_with_its_start_and_a_smaller_noise_is_not_believed",),
    ),
    Mutant(
        "of two replicas the fuller one gets the request", "sign", "analysis/planning/simulator/event_loop.py",
        "if y.waiting + y.running < x.waiting + x.running:", "if y.waiting + y.running > x.waiting + x.running:",
        ("analysis/planning/simulator/test_simulate.py::test_every_request_takes_as_long_as_in_a_plain_simulation",),
    ),
    Mutant(
        "a simulated queue takes one request more", "bound", "analysis/planning/simulator/event_loop.py",
        "x.waiting >= w.queue", "x.waiting > w.queue",
        ("analysis/planning/simulator/test_simulate.py::test_a_full_queue_refuses_and_a_lost_replica_loses_what_it_holds",),
    ),
    Mutant(
        "of the plans the one that cannot be trusted is chosen", "sign", "analysis/planning/plan/plan.py",
        "return not answer.trusted, money", "return answer.trusted, money",
        ("analysis/planning/plan/test_plan.py::test_the_cheapest_is_chosen_of_those_that_can_be_trusted",),
    ),
    Mutant(
        "an objective in milliseconds is taken for seconds", "unit", "analysis/planning/plan/sizing.py",
        "return self.slo.latency_ms / 1000", "return self.slo.latency_ms",
        ("analysis/planning/plan/test_sizing.py",),
    ),
    Mutant(
        "one replica less is enough by theory", "bound", "analysis/planning/plan/sizing.py",
        "+ 1e-9) + 1", "+ 1e-9)",
        ("analysis/planning/plan/test_sizing.py",),
    ),
    Mutant(
        "rows that were announced and are gone are not missed", "sign", "analysis/run/announced.py",
        "sum(max(0, rows - stored.held.get(name, 0)) for", "sum(max(0, stored.held.get(name, 0) - rows) for",
        ("analysis/run/test_recorded_run.py",
         "analysis/verdicts/test_verdict.py::test_missing_rows_are_a_flaw_missing_samples_a_note"),
    ),
    Mutant(
        "a segment that nobody announced goes unread", "row", "analysis/run/announced.py",
        "most.get(name, math.inf)", "most.get(name, 0)",
        ("analysis/run/test_recorded_run.py::test_a_file_of_somebody_else_that_is_named_like_a_segment_is_left_alone",),
    ),
    Mutant(
        "a number that another process has by now is the writer's", "lock", "analysis/records/process.py",
        "began(pid) in (None, since)", "began(pid) is not None",
        ("analysis/run/test_recorded_run.py::test_a_process_that_has_the_number_of_the_writer_is_not_the_writer",),
    ),
    Mutant(
        "answers may come before their requests", "sign", "analysis/counting/counts.py",
        "(at_ns < np.maximum.reduce(after_ns))", "(at_ns < np.minimum.reduce(after_ns))",
        ("analysis/verdicts/test_verdict.py::test_times_that_cannot_be_are_a_flaw",),
    ),
    Mutant(
        "a row is lost between two row groups", "row", "analysis/run/tables.py",
        "rows = rows.slice(most)", "rows = rows.slice(most + 1)",
        ("analysis/counting/test_counts.py::test_sealing_writes_row_groups_of_full_size_from_segments_of_any",),
    ),
    Mutant(
        "rows that are sealed already are read once more", "row", "analysis/run/tables.py",
        "fresh = list(_pieces(path, sizes, known))", "fresh = list(_pieces(path, sizes, 0))",
        ("loadtest/soak/test_chapters.py::test_a_segment_that_is_there_twice_for_a_moment_counts_once",),
    ),
    Mutant(
        "the exported seconds are milliseconds", "unit", "analysis/exports/forms/_figures.py",
        '_PER_UNIT = {"ms": 1e3,', '_PER_UNIT = {"ms": 1.0,',
        ("analysis/exports/test_forms.py::test_openmetrics_has_the_figures_of_the_report_in_base_units",),
    ),
    Mutant(
        "a million requests cost as much as those of a minute", "unit", "analysis/planning/plan/prices.py",
        "per_hour / (mean_rps * 3600) * 1e6", "per_hour / (mean_rps * 60) * 1e6",
        ("analysis/planning/plan/test_prices.py::test_a_bill_by_hand",),
    ),
    Mutant(
        "charts stand on their heads", "sign", "analysis/pages/html/svg.py",
        "round(self.height * (1 - self.y(value)), 1)", "round(self.height * self.y(value), 1)",
        (
            "analysis/pages/test_report_page.py::test_more_stands_higher",
            "analysis/test_plot.py::test_in_a_notebook_a_figure_has_a_frame_of_its_own_and_answers",
        ),
    ),
    Mutant(
        "memory is drawn in MiB and called GiB", "unit", "analysis/pages/report/charts/energy.py",
        "2.0**30", "2.0**20",
        ("analysis/pages/test_report_charts.py::test_energy_is_drawn_as_the_table_has_it",),
    ),
    Mutant(
        "waiting at the client is never seen", "sign", "analysis/steps/latency_breakdown.py",
        "max(0.0, latency - service)", "max(0.0, service - latency)",
        ("analysis/steps/test_latency_breakdown.py",),
    ),
    Mutant(
        "a replica counts as idle while it computes", "row", "analysis/planning/model/observed_batches.py",
        "found[1:] = (self.begun_s + self.stages_s)[:-1]", "found[1:] = self.begun_s[:-1]",
        (
            "analysis/planning/model/test_fit.py::test_occupation_is_the_time_between_two_begins_while_somebody_waited",
            "analysis/planning/model/test_fit.py::test_a_replica_that_was_idle_takes_longer",
        ),
    ),
    Mutant(
        "requests under way are those that are answered", "sign", "analysis/counting/counts.py",
        "- (sent_at - done_at)", "+ (sent_at - done_at)",
        ("analysis/counting/test_counts.py",
         "analysis/stats/test_trend.py::test_growth_is_what_arrives_but_is_not_served"),
    ),
    Mutant(
        "the time line ends before the run does", "row", "analysis/run/time_axis.py",
        "-int(-self.seconds // self.slice_s)", "int(self.seconds // self.slice_s)",
        ("analysis/soak/test_soak_verdict.py::test_a_clean_soak_has_no_finding_and_passes",),
    ),
    Mutant(
        "settle time counts as driven", "row", "analysis/soak/series.py",
        "    found[settling > 0] = 0.0\n", "",
        ("analysis/verdicts/test_without_faults.py::test_the_minutes_of_a_fault_are_looked_at_by_nobody_else",),
    ),
    Mutant(
        "a rate that was not sent in time is kept", "bound", "analysis/judging/judge.py",
        "unknown += [window.late for window in trusted if term.for_rate]", "pass",
        ("analysis/judging/test_judge.py",),
    ),
    Mutant(
        "what planned faults took whole is not missed", "row", "analysis/verdicts/without_faults.py",
        "if rest or (step.summary.endpoint, level(step)) not in judged", "if rest",
        ("analysis/verdicts/test_without_faults.py",),
    ),
    Mutant(
        "without totals no row is missing", "row", "analysis/verdicts/verdict.py",
        "if scheduled is None and (", "if scheduled and (",
        ("analysis/verdicts/test_verdict.py::test_without_totals_the_numbers_of_arrivals_tell_that_rows_are_missing",),
    ),
    Mutant(
        "only the time of planned faults is judged", "sign", "analysis/verdicts/without_faults.py",
        "whole.where(~inside(", "whole.where(inside(",
        ("analysis/verdicts/test_without_faults.py::test_an_outage_that_was_planned_leaves_the_objective_to_the_rest",),
    ),
    Mutant(
        "a change is base over new", "pair", "analysis/verdicts/changes.py",
        "list(zip(new, base, strict=False))", "list(zip(base, new, strict=False))",
        ("analysis/verdicts/test_gate.py::test_a_change_is_new_over_base",),
    ),
    Mutant(
        "a load that the new run lacks is passed over", "row", "analysis/verdicts/changes.py",
        "for key in old | now:", "for key in now:",
        ("analysis/verdicts/test_gate.py::test_what_only_one_run_has_cannot_be_compared_whichever_it_is",),
    ),
    Mutant(
        "a rate above one that is missed is said to be sustained", "bound", "analysis/exports/judged_rates.py",
        "kept is True and not any(one in of for one, of in zip(answers, void, strict=True))", "kept is True",
        ("analysis/exports/test_forms.py::test_a_rate_that_is_kept_above_one_that_is_missed_is_not_sustained",),
    ),
    Mutant(
        "a search for a first token is for the next objective", "pair", "analysis/records/objective.py",
        "for slo in overall(slos) if slo.bounds)", "for slo in overall(slos) if slo.latency_ms)",
        ("analysis/steps/test_capacity.py::test_a_search_is_for_the_first_objective_of_all_arrivals_that_limits_a_latency",),
    ),
    Mutant(
        "an objective of errors is a share, not percent", "unit", "analysis/records/objective.py",
        '{"max_error_rate": known.value / 100}', '{"max_error_rate": known.value}',
        ("analysis/test_records.py::test_an_objective_is_read_and_written_back",),
    ),
    Mutant(
        "a counter that begins anew counts what it fell by", "sign", "analysis/server_metrics/tracks.py",
        "np.where(fell, values, values - before)", "values - before",
        ("analysis/server_metrics/test_tracks.py::test_an_increase_is_what_was_counted_between_looks",),
    ),
    Mutant(
        "a series that comes later counts from what it began with", "row", "analysis/server_metrics/tracks.py",
        "values[0] if at[0] == 0 else 0.0", "values[0]",
        ("analysis/server_metrics/test_tracks.py::test_a_series_that_comes_later_counts_from_zero",),
    ),
    Mutant(
        "another endpoint's series are a page's own", "pair", "analysis/server_metrics/tracks.py",
        'if own in ("", name):', "if True:",
        ("analysis/server_metrics/test_tracks.py::test_labels_say_whose_a_series_is_and_without_them_it_is_the_servers",
         "analysis/server_metrics/test_tracks.py::test_a_page_of_one_endpoint_says_nothing_of_another_that_its_labels_name"),
    ),
    Mutant(
        "one request more than was answered is no difference", "bound", "analysis/server_metrics/evidence.py",
        "if not least <= theirs <= most:", "if not least <= theirs <= most + 1:",
        ("analysis/server_metrics/test_metric_evidence.py::test_somebody_else_at_the_server_is_seen_to_one_request",),
    ),
    Mutant(
        "of streams lateness is held against the usual answer", "unit", "analysis/judging/trust.py",
        "default=0.0 if streams else usual_ms", "default=usual_ms",
        ("analysis/verdicts/test_verdict.py::test_what_counts_as_late_of_streams_is_seen_against_the_nearest_latency",),
    ),
    Mutant(
        "a server that fills with streams is overloaded", "bound", "analysis/steps/step_evidence.py",
        "skip = max(grid.before, int(filled_s * 1e9 / grid.slice_ns))", "skip = grid.before",
        ("analysis/steps/test_overload_of_streams.py",),
    ),
    Mutant(
        "gaps are taken for nanoseconds where tokens are counted by time", "unit", "analysis/counting/stream_loop.py",
        "np.int64(events.gaps_us[k - 1]) * 1000", "np.int64(events.gaps_us[k - 1])",
        ("analysis/counting/test_stream_figures.py::test_what_came_when_is_told_by_the_slices_of_the_run",),
    ),
    Mutant(
        "the first gap of an answer passes for its second", "bound", "analysis/counting/stream_loop.py",
        "np.float64(k - begin + 1)", "np.float64(k - begin + 2)",
        ("analysis/counting/test_stream_figures.py::test_gaps_are_told_by_their_place_in_the_answer",),
    ),
    Mutant(
        "what came in the window before counts in the next", "row", "analysis/counting/stream_loop.py",
        "            in_window = 0\n", "",
        ("analysis/counting/test_stream_figures.py::test_every_figure_is_what_its_definition_says",),
    ),
    Mutant(
        "an endpoint without streams has an infinite first token", "pair", "analysis/records/infinities.py",
        'row["errors"] and row.get("tokens_out_rps") is not None', 'row["errors"]',
        ("analysis/steps/test_streams_side_by_side.py::test_infinities_of_streams_come_back",),
    ),
    Mutant(
        "first tokens are compared by the whole answer", "pair", "analysis/steps/variant_pairs.py",
        "percentile_ratio(comparable, 99.0, figure)", "percentile_ratio(comparable, 99.0)",
        ("analysis/steps/test_streams_side_by_side.py::test_variants_are_told_apart_by_first_token_and_by_time_per_token",),
    ),
    Mutant(
        "a prompt is read before it was sent", "unit", "analysis/server_metrics/beside_prompts.py",
        'queued.to_numpy(np.float64) * 1e6)', 'queued.to_numpy(np.float64) * -1e6)',
        ("analysis/server_metrics/test_beside_prompts.py::test_gaps_of_a_run_are_told_apart_by_who_else_was_read_there",),
    ),
    Mutant(
        "a gap that begins where a prompt ends is beside it", "bound", "analysis/server_metrics/beside_prompts.py",
        'np.searchsorted(ends, from_ns, side="right")', 'np.searchsorted(ends, from_ns, side="left")',
        ("analysis/server_metrics/test_beside_prompts.py::test_spans_are_those_that_any_of_them_touches",),
    ),
    Mutant(
        "the sum of several devices' power is its mean", "unit", "analysis/pages/report/charts/time_slices.py",
        "1 if together else known", "known",
        ("analysis/pages/test_time_slices.py::test_devices_by_slice_are_what_pandas_says",),
    ),
    Mutant(
        "what was said before the run is in its last slice", "bound", "analysis/pages/report/charts/time_slices.py",
        "inside = (places >= 0) & (places < line.slices)", "inside = places < line.slices",
        ("analysis/pages/test_time_slices.py::test_devices_by_slice_are_what_pandas_says",),
    ),
    Mutant(
        "a run of any size is counted by plain Python", "bound", "analysis/stats/compiled.py",
        "    _gone[loop] += rows\n", "",
        ("analysis/counting/test_loops.py::test_the_first_rows_of_a_process_wait_for_no_compiler",),
    ),
    Mutant(
        "a batch of no size is an error of arithmetic", "row", "analysis/stats/compiled.py",
        'np.errstate(all="ignore")', 'np.errstate(all="raise")',
        ("analysis/counting/test_loops.py", "cli/test_report_command.py"),
    ),
)

COMMAND = (
    Mutant(
        "misuse ends as a missed objective does", "pair", "tailrate/cli/misuse.py",
        '    click.echo(f"tailrate: {sentence}", err=True)\n    raise SystemExit(2)',
        '    click.echo(f"tailrate: {sentence}", err=True)\n    raise SystemExit(1)',
        ("cli/test_commands.py::test_bad_input_is_one_sentence_and_exit_2",),
    ),
    Mutant(
        "a report always ends with 0", "bound", "tailrate/cli/reporting.py",
        'return EXIT_CODES[found["verdict"]]', "return 0",
        (
            "cli/test_report_command.py::test_the_exit_code_is_that_of_the_verdict",
            "cli/test_commands.py::test_a_stopped_run_keeps_what_there_is_and_reports_it",
        ),
    ),
    Mutant(
        "runs are compared the wrong way round", "pair", "tailrate/cli/commands/compare.py",
        "changes(first, run)", "changes(run, first)",
        ("analysis/verdicts/test_gate.py::test_exit_codes_of_the_command",),
    ),
)
# fmt: on

MUTANTS = (*SERVE, *LOADTEST, *ANALYSIS, *COMMAND)


# ---- a copy of the tree


def files(tree: Path) -> list[Path]:
    """What belongs to a checkout, relative to it: no build, no run, no environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=tree, capture_output=True, check=True, text=True,
    )  # fmt: skip
    return [
        path for name in sorted(set(listed.stdout.split("\0"))) if name and os.path.lexists(tree / (path := Path(name)))
    ]


def copied(tree: Path, into: Path) -> Path:
    for path in files(tree):
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / path, into / path, follow_symlinks=False)  # the package links to its folders
    # tests that ask git for the files find them
    subprocess.run(["git", "init", "-q"], cwd=into, check=True)
    subprocess.run(["git", "add", "-A"], cwd=into, check=True)
    return into


def environment(copy: Path) -> dict[str, str]:
    """The copy's packages come before those that are installed."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(copy), str(copy / "tests")])}


def check_imports(copy: Path) -> None:
    code = "import tailrate, tailrate.serve, tailrate.loadtest, tailrate.analysis as last\n"
    code += "for found in (tailrate, tailrate.serve, tailrate.loadtest, last): print(found.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=environment(copy), capture_output=True, check=True, text=True
    )
    for path in map(Path, found.stdout.split()):
        if copy not in path.parents:
            raise SystemExit(f"{path} is imported, not the copy in {copy}")


@contextmanager
def changed(copy: Path, mutant: Mutant, number: int) -> Iterator[None]:
    """Python and numba know a changed file by its length and its second, so each change has a second of its own."""
    path = copy / mutant.path
    before, stat = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + (number + 1) * 10**10))
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


# ---- its tests


def words(tree: Path, mutant: Mutant, whole: bool) -> tuple[str, ...]:
    """For pytest; a test that the tree does not have under this name stands for its file."""
    found = []
    for word in mutant.tests:
        name, _, function = word.partition("::")
        path = tree / "tests" / name
        if path.is_file():
            known = function and re.search(rf"^def {re.escape(function)}\(", path.read_text(encoding="utf-8"), re.M)
            found.append(f"tests/{word}" if known and not whole else f"tests/{name}")
    return tuple(dict.fromkeys(found))


def run(copy: Path, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """(exit code, what was printed); no exit code where the time limit came first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=copy, env=environment(copy), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, text=True, errors="replace",
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit_s)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # so that its fixtures end what they started
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20)
        return None, ""
    finally:
        with suppress(ProcessLookupError):  # what a test left behind, in its own session
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def first_failure(code: int | None, said: str) -> str:
    if code is None:
        return "time limit"
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", said, re.M)
    return failed[1] if failed else f"exit code {code}"


def unchanged(copy: Path, tests: Sequence[str]) -> float:
    """How long they take; ends the program where they do not pass as they are, or none is run."""
    began_s = time.monotonic()
    code, said = run(copy, tests, 1200)
    if code != 0 or not re.search(r"\b\d+ passed", said):
        raise SystemExit(f"{' '.join(tests)} should pass without a change:\n{said[-3000:]}")
    return time.monotonic() - began_s


def tried(copy: Path, mutant: Mutant, number: int, tests: Sequence[str], usual_s: float) -> Outcome:
    text = (copy / mutant.path).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return Outcome(mutant, 0, False, "its place is not there", 0.0)
    line, began_s = text[: text.index(mutant.old)].count("\n") + 1, time.monotonic()
    with changed(copy, mutant, number):
        code, said = run(copy, tests, max(SHORTEST_S, LONGER * usual_s))
    # 4 and 5: pytest was asked for what is not there
    caught = code not in (0, 4, 5)
    by = first_failure(code, said) if caught else "nothing" if code == 0 else f"pytest ended with {code}"
    return Outcome(mutant, line, caught, by, time.monotonic() - began_s)


# ---- the program


def table(found: Sequence[Outcome]) -> str:
    rows = [("change", "kind", "place", "caught by")]
    rows += [
        (
            one.mutant.name,
            one.mutant.kind,
            f"{one.mutant.path}:{one.line}",
            one.by if one.caught else f"NOTHING ({one.by})",
        )
        for one in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:3], widths, strict=True)), row[3]]) for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name, kind, path or tests hold this")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are worked in side by side")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there too")
    parser.add_argument("--whole", action="store_true", help="the whole files of the named tests")
    given = parser.parse_args()
    tree, began_s = given.tree.resolve(), time.monotonic()
    chosen = [one for one in MUTANTS if given.only in " ".join((one.name, one.kind, one.path, *one.tests))]
    if not chosen:
        parser.error(f"no change has '{given.only}' in it")
    asked = {one: words(tree, one, given.whole) for one in chosen}
    if missing := [one.name for one, tests in asked.items() if not tests]:
        parser.error(f"none of its tests is in {tree}: {missing[0]}")
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.jobs):
            copy = copied(tree, Path(scratch).resolve() / str(number))
            check_imports(copy)
            free.put(copy)

        @contextmanager
        def a_copy() -> Iterator[Path]:
            copy = free.get()
            try:
                yield copy
            finally:
                free.put(copy)

        def alone(tests: tuple[str, ...]) -> float:
            with a_copy() as copy:
                seconds = unchanged(copy, tests)
            print(f"{seconds:6.1f} s  unchanged  {' '.join(tests)}", file=sys.stderr, flush=True)
            return seconds

        def one(number: int) -> Outcome:
            mutant = chosen[number]
            with a_copy() as copy:
                found = tried(copy, mutant, number, asked[mutant], usual_s[asked[mutant]])
            said = f"caught by {found.by}" if found.caught else f"NOT CAUGHT ({found.by})"
            print(f"{found.seconds:6.1f} s  {mutant.name}: {said}", file=sys.stderr, flush=True)
            return found

        with ThreadPoolExecutor(given.jobs) as pool:
            distinct = list(dict.fromkeys(asked.values()))
            usual_s = dict(zip(distinct, pool.map(alone, distinct), strict=True))
            found = list(pool.map(one, range(len(chosen))))
    survived = [one.mutant.name for one in found if not one.caught]
    print(table(found))
    rows = [
        {**asdict(one), "mutant": one.mutant.name, "kind": one.mutant.kind, "path": one.mutant.path} for one in found
    ]
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    packages = Counter(one.mutant.package for one in found)
    seconds = round(time.monotonic() - began_s, 1)
    print(
        json.dumps(
            {
                "mutants": len(found),
                "packages": dict(packages),
                "kinds": dict(Counter(one.mutant.kind for one in found)),
                "caught": len(found) - len(survived),
                "survived": survived,
                "seconds": seconds,
            }
        )
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
