"""`transformers serve` with a model of random weights, whose tokens are bytes: so we know how many there must be."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from starts import need
from waiting import PATIENCE_S, until

from tailrate.analysis import load
from tailrate.loadtest.engine.workers.input.lengths import Lengths
from tailrate.loadtest.engine.workers.input.prompts import Prompts
from tailrate.loadtest.engine.workers.input.tokenizer import Tokenizer
from tailrate.serve.deploy.haproxy import free_port

pytestmark = [pytest.mark.live, pytest.mark.long]

TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
ASKED, SAID = "uniform:2:9", "uniform:3:12"


def made(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE).save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(letters), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def test_it_is_driven_and_its_tokens_are_those_of_its_usage(tmp_path: Path) -> None:
    need("live")
    made(tmp_path / "tiny")
    port = free_port()
    program = Path(sys.executable).parent / "transformers"
    environment = os.environ | {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [program, "serve", "tiny", "--device=cpu", "--host=127.0.0.1", f"--port={port}"], cwd=tmp_path,
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip

    def answers() -> bool:
        assert server.poll() is None, (tmp_path / "log").read_text()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE_S).close()
        except OSError:
            return False
        return True

    try:
        until(answers)
        done = subprocess.run(
            [
                sys.executable, "-m", "tailrate", "run", "chat", f"--endpoints=it=http://127.0.0.1:{port}#tiny",
                "--tokenizer=tiny", f"--prompt-tokens={ASKED}", f"--output-tokens={SAID}", "--rates=2,4",
                "--step-seconds=3", "--settle-seconds=0.5", "--idle-seconds=0", "--self-check=off",
                f"--run-dir={tmp_path}", "--run-id=it",
            ],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S * 6, cwd=tmp_path,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait()
    assert done.returncode in (0, 3), done.stdout + done.stderr + (tmp_path / "log").read_text()
    run = load(tmp_path / "it")
    rows = run.requests()
    assert set(rows["status"]) == {"200"}, rows["error"].dropna().unique()
    assert run.manifest.totals["scheduled"] == run.manifest.totals["ok"] == len(rows) > 10
    lengths = Lengths.parse(ASKED, "x"), Lengths.parse(SAID, "x")
    prompts = Prompts(1, *lengths, tokenizer=Tokenizer(tmp_path / "tiny"))
    for row in rows.itertuples():
        asked = prompts.inputs([row.data_row])
        assert 2 <= len(asked["prompt"][0]) <= 9
        assert row.tokens_in == len(f"<{asked['prompt'][0]}>".encode())
        assert row.tokens_out == asked["max_tokens"][0]
        assert 1 <= row.events <= row.tokens_out
        assert row.finish == "length"
