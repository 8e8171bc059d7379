"""Repeated call ids, changes of the past, and commands, as in LangGraph."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command

from ._harness import call
from ._prebuilt import candidate, reference
from .test_agent_threads import AT, DONE, MORE, ONE, Thread, conversation, question, talk_to, turn, versions

SAME = call("double", {"x": 1}, "a")
"""A call whose id a model repeats."""


def no_change(state: Any) -> dict[str, Any]:
    return {}


def run_by(door: str, thread: Thread, given: Any) -> Any:
    if door == "sync":
        return thread.agent.invoke(given, AT)
    return asyncio.run(thread.agent.ainvoke(given, AT))


def said(result: Any) -> list[tuple[str, str]]:
    return [(message.type, message.content) for message in result["messages"]]


doors = pytest.mark.parametrize("door", ["sync", "async"])


# --- repeated call ids


@doors
@versions
def test_without_a_hook_a_call_that_comes_again_runs_again(version: str, door: str) -> None:
    """Many models number their calls anew in each reply."""
    replies = [turn(1, SAME), turn(2, SAME), AIMessage("done", id="ai-3")]
    results = [said(run_by(door, talk_to(ns, *replies, version=version), question())) for ns in _both()]

    assert results[0] == results[1]
    assert [text for kind, text in results[1] if kind == "tool"] == ["2", "2"]


@doors
def test_with_a_hook_after_the_model_the_same_call_again_ends_the_run(door: str) -> None:
    """A model that repeats its request without end must not be asked without end."""
    replies = [turn(1, SAME), turn(2, SAME), turn(3, SAME)]
    threads = [talk_to(ns, *replies, post_model_hook=no_change) for ns in _both()]
    theirs, ours = [said(run_by(door, thread, question())) for thread in threads]

    assert ours == theirs == [("human", "q"), ("ai", ""), ("tool", "2"), ("ai", "")]
    assert [thread.agent.get_state(AT).next for thread in threads] == [(), ()]


@doors
def test_version_1_with_such_a_hook_ends_too_where_langgraph_breaks(door: str) -> None:
    """LangGraph's v1 has no edge from the hook to the tools."""
    replies = [turn(1, SAME), turn(2, SAME)]
    theirs, ours = (talk_to(ns, *replies, version="v1", post_model_hook=no_change) for ns in _both())

    with pytest.raises(KeyError):
        run_by(door, theirs, question())
    assert said(run_by(door, ours, question()))[2:] == [("tool", "2"), ("ai", "")]


@doors
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_beside_a_call_that_comes_again_a_new_one_runs(version: str, door: str) -> None:
    """As in LangGraph only the new call runs, because the other one has its answer."""
    replies = [turn(1, SAME), turn(2, SAME, call("double", {"x": 5}, "b")), AIMessage("done", id="ai-3")]
    ours = talk_to(candidate(), *replies, version=version, post_model_hook=no_change)
    messages = run_by(door, ours, question())["messages"]
    answers = [(m.tool_call_id, m.content) for m in messages if isinstance(m, ToolMessage) and m.status != "error"]

    assert answers == [("a", "2"), ("b", "10")]
    assert messages[-1].content == "done"
    if version == "v2":
        theirs = talk_to(reference(), *replies, post_model_hook=no_change)
        found = run_by(door, theirs, question())["messages"]
        assert [(m.tool_call_id, m.content) for m in found if isinstance(m, ToolMessage)] == answers


@doors
@versions
def test_another_call_under_an_id_that_was_used_is_not_answered(version: str, door: str) -> None:
    """LangGraph ends without running the call, so a model that numbers calls anew would get no results."""
    replies = [turn(1, SAME), turn(2, call("double", {"x": 4}, "a")), AIMessage("done", id="ai-3")]
    ours = talk_to(candidate(), *replies, version=version, post_model_hook=no_change)

    assert said(run_by(door, ours, question()))[-3:] == [("ai", ""), ("tool", "8"), ("ai", "done")]


@versions
def test_what_only_stands_for_an_answer_answers_nothing(version: str) -> None:
    """The placeholder for an interrupted call asks the model to repeat it, so the repeated call must run."""
    replies = [turn(1, SAME), turn(2, SAME), AIMessage("done", id="ai-3")]
    options: Any = {"post_model_hook": no_change, "interrupt_before": ["tools"]}
    thread = talk_to(candidate(), *replies, version=version, **options)
    thread.agent.invoke(question(), AT)
    thread.agent.invoke(question("instead", "h2"), AT)
    assert thread.agent.get_state(AT).next == ("tools",)
    result = thread.agent.invoke(None, AT)

    assert said(result)[-2:] == [("tool", "2"), ("ai", "done")]


def _both() -> tuple[Any, Any]:
    return reference(), candidate()


# --- changes from outside


@conversation(ONE, DONE, MORE)
def test_an_update_of_the_past_is_one_place_after_the_one_it_changes(thread: Thread) -> None:
    """The parent of the new place is the place that was changed."""
    thread.run(question())
    place = next(one for one in thread.history() if one.next == ("tools",))
    config = thread.update({"messages": [turn(1, call("double", {"x": 4}, "a"))]}, config=place.config)
    thread.history()
    state = thread.look(config)
    thread.seen.append(state.parent_config == place.config)
    thread.run(None, config)
    thread.history()


@pytest.mark.parametrize("where", ["__start__", "agent", "tools", None])
@conversation(ONE, DONE, MORE)
def test_a_copy_of_a_place_goes_on_as_the_place_would(thread: Thread, where: str | None) -> None:
    """`as_node="__copy__"` makes a place beside the one that is copied."""
    thread.run(question())
    place = next(one for one in thread.history() if one.next == (() if where is None else (where,)))
    config = thread.update(None, config=place.config, as_node="__copy__")
    state = thread.look(config, past=True)
    thread.seen.append(_where(state.parent_config) == _where(place.parent_config))
    thread.seen.append(places_of(thread))
    thread.run(None, config)
    thread.seen.append(places_of(thread))


def places_of(thread: Thread) -> list[Any]:
    """Return the history without the results of tasks."""
    places = thread.agent.get_state_history(AT)
    return [
        (one.metadata["source"], one.metadata["step"], one.next, len(one.values.get("messages", ()))) for one in places
    ]


def _where(config: Any) -> Any:
    return config and config["configurable"]["checkpoint_id"]


@conversation(ONE, DONE, MORE)
def test_a_copy_can_be_changed_at_once(thread: Thread) -> None:
    """The copy may come with a list of updates, each in the name of a node."""
    thread.run(question())
    place = next(one for one in thread.history() if one.next == ("agent",))
    config = thread.update([(question("by hand", "h2"), "agent")], config=place.config, as_node="__copy__")
    thread.look(config)
    thread.seen.append(places_of(thread))


def test_a_copy_takes_no_values_that_would_be_passed_over() -> None:
    """LangGraph ignores such values; and an empty thread has no place to copy."""
    thread = talk_to(candidate(), ONE, DONE)
    with pytest.raises(InvalidUpdateError, match="non-existent"):
        thread.agent.update_state(AT, None, as_node="__copy__")
    thread.run(question())

    with pytest.raises(InvalidUpdateError, match="a list of"):
        thread.agent.update_state(AT, question("lost", "h2"), as_node="__copy__")


@pytest.mark.parametrize("as_node", [None, "agent"])
@pytest.mark.parametrize("added", [question("note", "h2"), {"messages": [AIMessage("never mind", id="x")]}])
@conversation(turn(1, call("ask", {"what": "b"}, "b")), DONE)
def test_what_comes_next_after_an_update_while_a_question_is_open(
    thread: Thread, added: Any, as_node: str | None
) -> None:
    """Nothing is next, because the update replaced the model's message with the open calls."""
    thread.run(question())
    thread.look()
    thread.update(added, as_node=as_node)
    thread.look()
    thread.run(None)
    thread.look()


@versions
@pytest.mark.parametrize(
    ("added", "asked"),
    [(question("check the stock first", "h2"), True), ({"messages": [AIMessage("no", id="x")]}, False), (None, False)],
    ids=["a message of the user", "a message of the model", "nothing"],
)
def test_after_an_end_by_hand_the_model_decides_on_what_it_has_not_seen(added: Any, asked: bool, version: str) -> None:
    """Calls that the model had requested earlier do not run."""
    thread = talk_to(candidate(), ONE, MORE, version=version, interrupt_before=["tools"])
    thread.run(question())
    thread.update(added, as_node="__end__")
    assert thread.agent.get_state(AT).next == (("agent",) if asked else ())
    result = thread.agent.invoke(None, AT)

    assert [message.content for message in result["messages"]][-1] == ("more" if asked else "no" if added else "")
    assert len(thread.asked) == 1 + asked
    assert not any(m.content == "2" for m in result["messages"])


# --- commands


COMMANDS: dict[str, Callable[[], Command[Any]]] = {
    "update and goto": lambda: Command(update=question("more", "h2"), goto="agent"),
    "goto": lambda: Command(goto="agent"),
    "update": lambda: Command(update=question("more", "h2")),
}


@versions
@pytest.mark.parametrize("new", [False, True], ids=["a thread", "a new thread"])
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_takes_as_many_steps(kind: str, new: bool, version: str) -> None:
    """The command's update belongs to the step that it leads to."""
    if new and kind == "goto":
        pytest.skip("there is nothing to ask the model about")
    steps = []
    for ns in _both():
        thread = talk_to(ns, *([] if new else [AIMessage("hi", id="ai-0")]), ONE, DONE, version=version)
        if not new:
            thread.run(question())
        thread.agent.invoke(COMMANDS[kind](), AT)
        steps.append(thread.agent.get_state(AT).metadata["step"])

    assert steps[0] == steps[1]


@conversation(turn(1, call("ask", {"what": "b"}, "b")), DONE)
def test_an_answer_with_an_update_takes_as_many_steps(thread: Thread) -> None:
    thread.run(question())
    thread.run(Command(resume="yes", update=question("more", "h2")))
    thread.seen.append(thread.agent.get_state(AT).metadata["step"])
    # LangGraph sends its model call, text and answer in the order of the state, and providers refuse that.
    # callboard sends the answer first (`tests/agent/test_history.py`); everything else is equal.
    kind, messages, tools = thread.asked[-1]
    thread.asked[-1] = kind, [*messages[:-2], *sorted(messages[-2:], key=str)], tools


@pytest.mark.parametrize("limit", [1, 2, 3])
@conversation(AIMessage("hi", id="ai-0"), ONE, DONE)
def test_a_command_leaves_as_many_steps_to_a_run(thread: Thread, limit: int) -> None:
    """The same recursion limit is sufficient for LangGraph and for callboard."""
    thread.run(question())
    thread.run(Command(update=question("more", "h2"), goto="agent"), {**AT, "recursion_limit": limit})
