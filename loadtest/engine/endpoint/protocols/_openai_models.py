"""The models that a server with OpenAI's API lists, and what one is called there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrate.loadtest.engine.endpoint.protocol import Protocol
from tailrate.loadtest.engine.endpoint.protocols import _stated
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target, called
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

MODELS = "/v1/models"
MOST_NAMED = 20
OURS = "tailrate"


def model_of(of: Target | Endpoint) -> str:
    """A version is a part of its name, as a fine-tune's is."""
    return called(of.model, of.version)


def listed(client: Client) -> dict[str, str] | None:
    """Those that the server lists, each with whose it is; None where it lists none in this way."""
    try:
        return {str(model["id"]): str(model.get("owned_by", "")) for model in client.get_json(MODELS)["data"]}
    except (ScenarioError, KeyError, TypeError, AttributeError):
        return None


def known(client: Client, target: Target) -> list[tuple[Target, dict[str, Any]]]:
    """The model that is meant among those that the server lists, or its only one, in each version that it has.

    Each with what the server says of it, where that is one of ours.
    """
    there = listed(client)
    if not there:
        return [(target, {})]
    if not target.model and len(alone := [name for name in there if name.rpartition("/")[0] not in there]) == 1:
        target = replace(target, model=alone[0])  # the others are its versions
    if (model := model_of(target)) not in there:
        wanted = (
            f"lists no model '{model}'" if model else "lists several models: name one with --endpoints NAME=URL#MODEL"
        )
        raise ScenarioError(f"{client.url} {wanted}; it lists {', '.join(sorted(there)[:MOST_NAMED])}")
    versions = [name.removeprefix(f"{target.model}/") for name in there if name.startswith(f"{target.model}/")]
    every = target.versions(client.url, versions if target.model in there else [])
    ours = there[model] == OURS
    return [
        (replace(target, version=each), _stated.parameters(client, target.model, each) if ours else {})
        for each in every
    ]


class FactsOfOurs(Protocol):
    """What our own server says of itself and its endpoints; others that speak OpenAI's API say nothing of the kind."""

    def server(self, client: Client) -> dict[str, Any]:
        try:
            return _stated.server(client)
        except ScenarioError:
            return {}

    def parameters(self, client: Client, endpoint: Endpoint) -> dict[str, Any]:
        return _stated.parameters(client, endpoint.model, endpoint.version) if endpoint.parameters else {}

    def events(self, client: Client, endpoint: Endpoint) -> dict[str, int] | None:
        return _stated.events(client, endpoint) if endpoint.parameters else None
