"""What `--endpoints` may say, and whose token goes where."""

import pytest

from tailrate.loadtest.engine.endpoint.credentials import Access, Keys, own_variable
from tailrate.loadtest.engine.endpoint.target import Target, parse
from tailrate.loadtest.engine.scenario.scenario import ScenarioError


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("http://h:1", [Target("http://h:1", "m")]),
        ("h:1", [Target("h:1", "m")]),
        ("a=h:1/below", [Target("h:1/below", "m", "a")]),
        ("a=https://h/x#bert", [Target("https://h/x", "bert", "a")]),
        ("a=http://h#bert/2,b=http://i", [Target("http://h", "bert", "a", "2"), Target("http://i", "m", "b")]),
        ("json+http://h:1/p", [Target("http://h:1/p", "m", protocol="json")]),
        ("q=grpcs://h:1#m/v", [Target("https://h:1", "m", "q", "v", "oip-grpc")]),
        ("http://h#org%2Fmodel/v%2F1", [Target("http://h", "org/model", "", "v/1")]),
        (" a=http://h , ", [Target("http://h", "m", "a")]),
    ],
)
def test_what_is_asked_for(text, targets):
    assert parse(text, "m") == targets


def test_a_protocol_for_all_is_not_for_those_that_have_their_own():
    found = parse("http://h,json+http://i", "m", "torchserve")
    assert [target.protocol for target in found] == ["torchserve", "json"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a=http://h,a=http://i", "names 'a' twice"),
        ("ftp://h", "'ftp://h' is not understood; write NAME=URL"),
        ("a=", "'a=' is not understood"),
        ("http://h x", "is not understood"),
        ("http://u:p@h", "must not hold a user or a password"),
        ("a=http://h:x", "is not a URL"),
        ("", "names no endpoint"),
        (" , ", "names no endpoint"),
        ("[]", "names no endpoint"),
        ("[", "begins as a list in JSON does, and is none; write NAME=URL"),
        ("[1]", "each endpoint of a list needs a url, as 1 has none"),
        ("[{}]", "each endpoint of a list needs a url"),
        ('[{"url": ""}]', "each endpoint of a list needs a url"),
        ('[""]', "'' is not understood"),
    ],
)
def test_what_nobody_can_mean(text, sentence):
    with pytest.raises(ScenarioError, match=sentence):
        parse(text, "m")


@pytest.mark.parametrize(
    ("states", "version", "found"),
    [
        ({"1": "UNAVAILABLE", "2": "READY", "3": "LOADING"}, "", ["2", "3"]),
        ({"1": "State.UNAVAILABLE", "2": "State.READY"}, "", ["2"]),  # MLServer over gRPC
        ({"1": "UNAVAILABLE", "2": "READY"}, "1", ["1", "2"]),
        ({"1": "UNAVAILABLE", "2": "UNAVAILABLE"}, "", ["1", "2"]),  # each is asked why
        ({"1": None, "2": ""}, "", ["1", "2"]),
    ],
)
def test_versions_that_are_not_loaded_are_driven_only_where_they_are_named(caplog, states, version, found):
    index = [{"name": "m", "version": each, "state": state} for each, state in states.items()]
    index.append({"name": "n", "version": "9"})
    assert Target("http://h", "m", version=version).indexed("http://h", index) == found
    left_out = [f"m/{each} is unavailable at http://h, so it is left out" for each in states if each not in found]
    assert caplog.messages == left_out


def test_an_endpoint_s_own_token_goes_before_that_for_all(monkeypatch):
    monkeypatch.setenv(own_variable("a"), "of-a")
    keys = Keys(Access("common", source="TAILRATE_TOKEN"), {"b": Access("of-b")})
    assert [keys.access(name).token for name in ("a", "b", "c", "")] == ["of-a", "of-b", "common", "common"]


def test_the_token_for_all_is_for_one_host(monkeypatch):
    keys = Keys(Access("common", source="TAILRATE_TOKEN"))
    keys.check({"a": "http://h:1", "b": "http://h:1"})
    with pytest.raises(ScenarioError, match=r"for one host, and the endpoints are on .*: set TAILRATE_TOKEN_A,"):
        keys.check({"a": "http://h:1", "b": "http://h:2"})
    monkeypatch.setenv(own_variable("b"), "of-b")
    keys.check({"a": "http://h:1", "b": "http://h:2"})
    Keys().check({"a": "http://h:1", "b": "http://h:2"})  # without a token there is nothing to keep
