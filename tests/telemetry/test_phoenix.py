"""A released version of Arize Phoenix shows callboard's spans: kinds, tools, sessions, the tree and failures."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ._phoenix import Phoenix, program

pytestmark = pytest.mark.exhaustive

THREAD = "tea on {}"
SPANS = ("AGENT", "LLM", "LLM", "TOOL", "TOOL", "TOOL", "UNKNOWN", "UNKNOWN", "UNKNOWN", "UNKNOWN")
"""Span kinds in Phoenix's terms, which have none for attempts."""


@dataclass(frozen=True)
class Shown:
    """Data that Phoenix has of one run of the example."""

    thread: str
    spans: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["span_kind"] == kind]

    def tool(self, name: str) -> dict[str, Any]:
        [tool_span] = [span for span in self.of_kind("TOOL") if span["attributes"]["tool.name"] == name]
        return tool_span

    def below(self, span: dict[str, Any]) -> list[dict[str, Any]]:
        return [child for child in self.spans if child["parent_id"] == span["context"]["span_id"]]


@pytest.fixture(scope="module")
def phoenix() -> Iterator[Phoenix]:
    """Yield a server for all tests. Each run has its own project."""
    if (path := program()) is None:
        pytest.skip("Phoenix is not installed: uv tool install arize-phoenix, or set CALLBOARD_PHOENIX")
    server = Phoenix(path)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def shown(phoenix: Phoenix, request: pytest.FixtureRequest) -> Shown:
    """Run the example on one of the backends."""
    thread = THREAD.format(request.param)
    assert "Tea is a drink." in phoenix.run_example(request.param, "--backend", request.param, "--thread", thread)
    return Shown(thread, phoenix.spans(request.param, len(SPANS)))


def test_runs_are_agents_requests_are_models_and_calls_are_tools(shown: Shown) -> None:
    """Nothing is shown twice, and only attempts have no kind."""
    assert tuple(sorted(span["span_kind"] for span in shown.spans)) == SPANS
    assert {span["name"].split()[0] for span in shown.of_kind("UNKNOWN")} == {"attempt"}
    assert [span["attributes"]["gen_ai.agent.name"] for span in shown.of_kind("AGENT")] == ["researcher"]


@pytest.mark.parametrize(
    ("name", "parameters", "output"),
    [
        ("search", {"query": "tea"}, "3 pages about tea"),
        ("read_page", {"url": "https://example.com/tea"}, None),
        ("count_words", {"text": "tea is a drink"}, "4"),
    ],
)
def test_a_tool_has_its_name_its_parameters_and_its_output(
    shown: Shown, name: str, parameters: dict[str, str], output: str | None
) -> None:
    attributes = shown.tool(name)["attributes"]
    assert {key: attributes[f"tool.parameters.{key}"] for key in parameters} == parameters
    assert attributes.get("output.value") == output
    assert attributes["tool.description"]
    assert attributes["tool.id"].startswith("call_")


def test_requests_agents_and_sessions_have_what_was_asked_and_said(shown: Shown) -> None:
    first_request, last_request = (span["attributes"] for span in shown.of_kind("LLM"))
    [agent] = (span["attributes"] for span in shown.of_kind("AGENT"))
    called = "llm.output_messages.0.message.tool_calls.{}.tool_call.function.name"
    question = [{"role": "user", "parts": [{"type": "text", "content": "What is tea?"}]}]
    sessions = {span["attributes"]["session.id"] for span in shown.spans if span["span_kind"] != "UNKNOWN"}

    assert [first_request[called.format(number)] for number in range(3)] == ["search", "read_page", "count_words"]
    assert json.loads(agent["gen_ai.input.messages"]) == question
    for first, last in ((first_request, last_request), (agent, agent)):
        assert first["llm.input_messages.0.message.content"] == "What is tea?"
        assert last["llm.output_messages.0.message.content"] == "Tea is a drink."
    assert sessions == {shown.thread}


def test_requests_and_calls_are_below_the_run_and_attempts_below_their_calls(shown: Shown) -> None:
    [agent] = shown.of_kind("AGENT")
    below = [span["span_kind"] for span in shown.below(agent)]
    attempts = {name: len(shown.below(shown.tool(name))) for name in ("search", "read_page", "count_words")}
    assert agent["parent_id"] is None
    assert sorted(below) == ["LLM", "LLM", "TOOL", "TOOL", "TOOL"]
    assert attempts == {"search": 2, "read_page": 1, "count_words": 1}
    assert len({span["context"]["trace_id"] for span in shown.spans}) == 1


def test_only_what_failed_is_an_error_and_decisions_are_events(shown: Shown) -> None:
    failed = [span["name"] for span in shown.spans if span["status_code"] == "ERROR"]
    first, second = shown.below(shown.tool("search"))
    assert sorted(failed) == ["attempt read_page", "attempt search", "execute_tool read_page"]
    assert (first["status_code"], second["status_code"]) == ("ERROR", "UNSET")
    assert shown.tool("read_page")["attributes"]["error.type"] == "timeout"
    [event] = shown.tool("search")["events"]
    assert (event["name"], event["attributes"]["callboard.error"]) == ("callboard.retry", "ConnectionError")
