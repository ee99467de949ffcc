"""completion: prompts that a server goes on with, by OpenAI's completions: no template of a chat around them.

    locust -f loadtest/completion.py --headless --host http://127.0.0.1:8000 --rates 1:8:1

All else is as in chat.py.
"""

from __future__ import annotations

from tailrate.loadtest.engine.user import PromptUser


class Completion(PromptUser):
    protocol = "openai-completions"
    rates = "1:5:1"
    step_seconds = 60.0
    timeout = 60.0
