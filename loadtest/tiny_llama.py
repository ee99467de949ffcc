"""tiny_llama: chats with a small language model, its answers token by token; `tailrate run tiny_llama` serves it, too.

    tailrate serve tiny_llama --variants eager,compiled
    locust -f loadtest/tiny_llama.py --headless --host http://127.0.0.1:8000 --slo "p99 ttft<100ms, p99 tpot<20ms"

How long prompts and answers are is asked for as in chat.py; docs/language.md.
"""

from __future__ import annotations

from tailrate.loadtest.engine.user import PromptUser


class TinyLlama(PromptUser):
    model = "tiny_llama"
    protocol = "openai-chat"
    prompt_tokens = "uniform:16:96"
    output_tokens = "uniform:16:48"
    rates = "2:10:2"
    step_seconds = 30.0
    timeout = 30.0
