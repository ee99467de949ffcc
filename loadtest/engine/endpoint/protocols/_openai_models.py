"""The models that a server with OpenAI's API lists, and what one is called there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrate.loadtest.engine.endpoint.target import Endpoint, Target, called
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

MODELS = "/v1/models"
MOST_NAMED = 20


def model_of(of: Target | Endpoint) -> str:
    """A version is a part of its name, as a fine-tune's is."""
    return called(of.model, of.version)


def listed(client: Client) -> list[str] | None:
    """Those that the server lists; None where it lists none in this way."""
    try:
        return [str(model["id"]) for model in client.get_json(MODELS)["data"]]
    except (ScenarioError, KeyError, TypeError):
        return None


def known(client: Client, target: Target) -> Target:
    """The target with a model that the server lists, as far as it lists any: the one that is meant, or its only one."""
    there = listed(client)
    if not there:
        return target
    if not target.model and len(there) == 1:
        return replace(target, model=there[0])
    if (model := model_of(target)) not in there:
        wanted = (
            f"lists no model '{model}'" if model else "lists several models: name one with --endpoints NAME=URL#MODEL"
        )
        raise ScenarioError(f"{client.url} {wanted}; it lists {', '.join(sorted(there)[:MOST_NAMED])}")
    return target
