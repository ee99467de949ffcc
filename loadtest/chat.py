"""chat: prompts to any server that speaks OpenAI's chat completions, its answers token by token.

    locust -f loadtest/chat.py --headless --host http://127.0.0.1:8000 --rates 1:8:1 --slo "p99 ttft<500ms"

The model is the only one that the server lists, or the one that `--endpoints NAME=URL#MODEL` names. Each prompt is
drawn and sent once, so that no cache of prefixes does the work; `--shared-prefix 200` lets all begin alike. Answers are
as long as `--output-tokens` says where the server can be made to (`--openai-chat-force`); docs/tokens.md.
"""

from __future__ import annotations

from tailrate.loadtest.engine.user import PromptUser


class Chat(PromptUser):
    protocol = "openai-chat"
    rates = "1:5:1"
    step_seconds = 60.0
    timeout = 60.0
