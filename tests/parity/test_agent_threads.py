"""Threads as LangGraph's agent keeps them: state, history, interrupts, stops, updates, forks, repeated ids, commands.

Intended differences, which are removed before the comparison or tested in `tests/agent/test_people.py`:

- Input takes one step in callboard and two in LangGraph (`__start__` is next, then it has ended). So the history has
  one place less, numbers differ after the first turn, and the source of the step is "input" and not "loop".
- Before a first place that `update_state` made, callboard has an empty place.
- An answered question is no longer shown at the place where it was asked, once its call has a result.
- `as_node="__end__"` accepts values in callboard, and refuses them in LangGraph.
- When one of several questions is answered, LangGraph runs finished and unanswered calls again; callboard does not
  (promise 5).
- After a change as "agent" that leaves an answer as the last message, callboard asks the model; in LangGraph the turn
  has ended.
- LangGraph ignores answers without a question and unknown checkpoints; callboard raises.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command, StateUpdate

from ._dump import dump
from ._harness import ask, call, double, fails, for_each, turn, versions
from ._model import ReplayModel
from ._prebuilt import candidate, reference

AT: Any = {"configurable": {"thread_id": "1"}}
Talk = Callable[["Thread"], None]


def question(text: str = "q", id: str = "h") -> Any:
    return {"messages": [HumanMessage(text, id=id)]}


ONE = turn(1, call("double", {"x": 1}, "a"))
DONE = AIMessage("done", id="ai-2")
MORE = AIMessage("more", id="ai-3")


class Thread:
    """A thread of one of the two agents, and the record of its states."""

    def __init__(self, ns: Any, *replies: AIMessage, version: str = "v2", **options: Any) -> None:
        self.requests: list[Any] = []
        self.records: list[Any] = []
        model = ReplayModel(*replies, log=self.requests)
        self.agent = ns.create_react_agent(
            model, [double, ask, fails], checkpointer=InMemorySaver(), version=version, **options
        )

    def run(self, value: Any, config: Any = AT, **options: Any) -> Any:
        try:
            result = self.agent.invoke(value, config, **options)
        except Exception as error:
            self.records.append(("raised", type(error).__name__))
            return None
        self.records.append(("result", _values(result)))
        return result

    def look(self, config: Any = AT, *, past: bool = False) -> Any:
        """Record the state; for a past state, without the later results of its tasks."""
        state = self.agent.get_state(config)
        record = _snapshot(state)
        self.records.append(("state", {**record, "tasks": [task[:2] for task in record["tasks"]]} if past else record))
        return state

    def history(self, **options: Any) -> list[Any]:
        """Record the history."""
        snapshots = list(self.agent.get_state_history(AT, **options))
        self.records.append(
            ("history", *map(_snapshot, snapshots), [snapshot.metadata["step"] for snapshot in snapshots])
        )
        return snapshots

    def update(self, *args: Any, config: Any = AT, **options: Any) -> Any:
        try:
            changed = self.agent.update_state(config, *args, **options)
        except InvalidUpdateError as error:
            self.records.append(("raised", type(error).__name__))
            return config
        self.records.append("updated")
        return changed


def _values(values: Any) -> Any:
    other_values = {key: value for key, value in values.items() if key != "messages"}
    messages = [(m.type, m.content, m.name, getattr(m, "tool_calls", [])) for m in values.get("messages", [])]
    questions = sorted(
        open_question.value for open_question in other_values.pop("__interrupt__", ())
    )  # LangGraph sorts them by arrival
    return dump([messages, questions, other_values])


def _snapshot(state: Any) -> Any:
    metadata = state.metadata or {}
    return {
        "values": _values(state.values),
        "next": state.next,
        "source": metadata.get("source"),
        "parents": metadata.get("parents"),
        "questions": [open_question.value for task in state.tasks for open_question in _open(task)],
        "tasks": [_task(task) for task in state.tasks],
        "is new": state.created_at is None,
    }


def _open(task: Any) -> Any:
    return task.interrupts if task.result is None else ()


def _task(task: Any) -> Any:
    path = task.path[:2] if task.path[0] == "__pregel_push" else task.path
    result = None if task.result is None else _values(task.result)
    return task.name, path, task.error, [open_question.value for open_question in _open(task)], task.state, result


def _differences(first: Any, second: Any, path: str) -> Iterator[str]:
    """Return the paths of two values that differ, and the differences."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in {**first, **second}:
            yield from _differences(first.get(key), second.get(key), f"{path}.{key}")
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) == len(second):
        for number, pair in enumerate(zip(first, second, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif first != second:
        yield f"{path}: {first!r}, and LangGraph's {second!r}"


def both(*replies: AIMessage, **options: Any) -> tuple[Thread, Thread]:
    """Return a thread of LangGraph's agent and one of callboard's."""
    return Thread(reference(), *replies, **options), Thread(candidate(), *replies, **options)


def same(talk: Talk, *replies: AIMessage, **options: Any) -> list[Any]:
    """Run the same conversation with both agents, and compare their records."""
    reference_thread, own_thread = both(*replies, **options)
    talk(reference_thread)
    talk(own_thread)
    assert not list(_differences(own_thread.records, reference_thread.records, "seen"))
    assert dump(own_thread.requests) == dump(reference_thread.requests)
    return own_thread.records


def conversation(*replies: AIMessage, versions: Sequence[str] = ("v1", "v2"), **options: Any) -> Any:
    """Return a test that a conversation is the same with both agents, in each version; a decorator of the conversation.

    The conversation takes the thread, and the parameters of the test if there are any.
    """

    def decorate(talk: Any) -> Any:
        return for_each(
            "version",
            versions,
            talk,
            lambda version, arguments: same(partial(talk, **arguments), *replies, version=version, **options),
        )

    return decorate


@conversation(ONE, DONE)
def test_a_finished_turn(thread: Thread) -> None:
    thread.run(question())
    thread.look()
    thread.history()
    thread.run(None)
    thread.look()


@conversation(ONE, versions=("v2",))
def test_a_thread_that_is_not_there(thread: Thread) -> None:
    thread.look()
    thread.history()


@conversation(ONE, DONE, MORE)
def test_two_turns_and_their_history(thread: Thread) -> None:
    thread.run(question())
    thread.run(question("again", "h2"))
    thread.look()
    snapshots = thread.history()
    for snapshot in snapshots[:-1]:
        thread.look(snapshot.config, past=True)
    thread.history(limit=2)
    thread.history(filter={"source": "update"})


@conversation(turn(1, call("ask", {"what": "a"}, "a")), DONE)
def test_one_call_that_asks(thread: Thread) -> None:
    thread.run(question())
    thread.look()
    thread.run(Command(resume="yes"))
    thread.look()
    thread.history()


def test_calls_that_ask_beside_one_that_does_not() -> None:
    def talk(thread: Thread) -> None:
        result = thread.run(question())
        state = thread.look()
        assert {open_question.id for open_question in state.interrupts} == {
            open_question.id for open_question in result["__interrupt__"]
        }
        by_value = {open_question.value: open_question.id for open_question in state.interrupts}
        thread.run(Command(resume={by_value["b"]: "B"}))
        thread.look()
        thread.run(Command(resume={by_value["a"]: "A"}))
        thread.look()

    calls = [call("ask", {"what": "a"}, "a"), call("double", {"x": 1}, "c"), call("ask", {"what": "b"}, "b")]
    same(talk, turn(1, *calls), DONE, version="v2")


@versions
@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("node", ["agent", "tools"])
def test_stops_before_and_after_nodes(node: str, when: str, version: str) -> None:
    def talk(thread: Thread) -> None:
        thread.run(question())
        for _ in range(4):
            if thread.look().next:
                thread.run(None)
        thread.history()

    same(talk, ONE, DONE, version=version, **{when: [node]})


@pytest.mark.parametrize("value", [Command(resume="go on"), Command(resume={}), None], ids=["word", "nothing", "none"])
@conversation(ONE, DONE, interrupt_before=["tools"])
def test_any_word_goes_on_after_a_stop_before_a_node(thread: Thread, value: Any) -> None:
    """The stop is no question, and clients that always send a `Command` must be able to continue."""
    thread.run(question())
    assert "done" in str(thread.run(value))


@conversation(ONE, DONE, interrupt_before=["tools"])
def test_a_stopped_call_is_edited(thread: Thread) -> None:
    thread.run(question())
    edited = turn(1, call("double", {"x": 21}, "a"))
    thread.update({"messages": [edited]})
    thread.look()
    thread.run(None)
    thread.history()


@conversation(ONE, DONE, interrupt_before=["tools"])
def test_a_stopped_call_is_answered_by_hand(thread: Thread) -> None:
    thread.run(question())
    thread.update({"messages": [ToolMessage("no", tool_call_id="a", id="t")]}, as_node="tools")
    thread.look()
    thread.run(None)
    thread.look()


@pytest.mark.parametrize("as_node", ["__start__", "agent", "tools", "nobody"])
@conversation(ONE, DONE, MORE)
def test_a_message_is_added_after_a_turn(thread: Thread, as_node: str) -> None:
    thread.run(question())
    thread.update(question("by hand", "h2"), as_node=as_node)
    state = thread.look()
    if state.next:
        thread.run(None)
    thread.look()


@conversation(ONE, DONE)
def test_messages_are_taken_back(thread: Thread) -> None:
    thread.run(question())
    thread.update({"messages": [RemoveMessage(id="ai-2")]}, as_node="tools")
    thread.look()


@conversation(ONE, DONE)
def test_a_thread_is_made_by_hand(thread: Thread) -> None:
    thread.update(question(), as_node="__start__")
    thread.look()
    thread.run(None)
    thread.look()


@conversation(ONE, DONE)
def test_several_updates(thread: Thread) -> None:
    updates = [
        [StateUpdate(question(), "__start__")],
        [StateUpdate({"messages": [AIMessage("by hand", id="x")]}, "agent")],
    ]
    thread.agent.bulk_update_state(AT, supersteps=updates)
    thread.look()


@pytest.mark.parametrize("length", [1, 2, 3])
@conversation(ONE, DONE, turn(3, call("double", {"x": 3}, "c")), AIMessage("done", id="ai-4"))
def test_a_fork_goes_on_from_a_place_in_the_middle(thread: Thread, length: int) -> None:
    thread.run(question())
    snapshot = next(entry for entry in thread.history() if len(entry.values["messages"]) == length)
    thread.run(None, snapshot.config)
    thread.look()


@conversation(turn(1, call("fails", {"x": 1}, "a")), DONE)
def test_a_call_that_failed_is_tried_again(thread: Thread) -> None:
    thread.run(question())
    thread.look()
    thread.run(None)


@versions
def test_the_model_failed(version: str) -> None:
    class Broken(ReplayModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("no model")

    def states_of(ns: Any) -> Iterator[Any]:
        agent = ns.create_react_agent(Broken(DONE), [double], checkpointer=InMemorySaver(), version=version)
        with pytest.raises(ValueError, match="no model"):
            agent.invoke(question(), AT)
        yield _snapshot(agent.get_state(AT))

    assert list(states_of(candidate())) == list(states_of(reference()))


@conversation(ONE, DONE, MORE, versions=("v2",))
def test_a_past_place_shows_what_its_tasks_did(thread: Thread) -> None:
    thread.run(question())
    thread.run(question("again", "h2"))
    for snapshot in thread.history():
        thread.look(snapshot.config)


SAME = call("double", {"x": 1}, "a")
"""A call whose id a model repeats."""


def no_change(state: Any) -> dict[str, Any]:
    return {}


def texts_in(thread: Thread) -> list[tuple[str, str]]:
    return [(message.type, message.content) for message in thread.agent.invoke(question(), AT)["messages"]]


@versions
def test_without_a_hook_a_call_that_comes_again_runs_again(version: str) -> None:
    """Many models number their calls anew in each reply."""
    replies = [turn(1, SAME), turn(2, SAME), AIMessage("done", id="ai-3")]
    expected, actual = map(texts_in, both(*replies, version=version))
    assert expected == actual
    assert [text for kind, text in actual if kind == "tool"] == ["2", "2"]


def test_with_a_hook_after_the_model_the_same_call_again_ends_the_run() -> None:
    """A model that repeats its request without end must not be asked without end."""
    replies = [turn(1, SAME), turn(2, SAME), turn(3, SAME)]
    threads = both(*replies, post_model_hook=no_change)
    expected, actual = map(texts_in, threads)
    assert actual == expected == [("human", "q"), ("ai", ""), ("tool", "2"), ("ai", "")]
    assert [thread.agent.get_state(AT).next for thread in threads] == [(), ()]


def test_version_1_with_such_a_hook_ends_too_where_langgraph_breaks() -> None:
    """LangGraph's v1 has no edge from the hook to the tools."""
    replies = [turn(1, SAME), turn(2, SAME)]
    reference_thread, thread = both(*replies, version="v1", post_model_hook=no_change)

    with pytest.raises(KeyError):
        texts_in(reference_thread)
    assert texts_in(thread)[2:] == [("tool", "2"), ("ai", "")]


@versions
def test_beside_a_call_that_comes_again_a_new_one_runs(version: str) -> None:
    """As in LangGraph only the new call runs, because the other one has its answer; LangGraph's v1 fails here."""
    replies = [turn(1, SAME), turn(2, SAME, call("double", {"x": 5}, "b")), AIMessage("done", id="ai-3")]
    reference_thread, own_thread = both(*replies, version=version, post_model_hook=no_change)
    for thread in (own_thread, reference_thread) if version == "v2" else (own_thread,):
        messages = thread.agent.invoke(question(), AT)["messages"]
        answers = [(m.tool_call_id, m.content) for m in messages if isinstance(m, ToolMessage) and m.status != "error"]
        assert answers == [("a", "2"), ("b", "10")]
        assert messages[-1].content == "done"


@versions
def test_another_call_under_an_id_that_was_used_is_not_answered(version: str) -> None:
    """LangGraph ends without running the call, so a model that numbers calls anew would get no results."""
    replies = [turn(1, SAME), turn(2, call("double", {"x": 4}, "a")), AIMessage("done", id="ai-3")]
    thread = Thread(candidate(), *replies, version=version, post_model_hook=no_change)
    assert texts_in(thread)[-3:] == [("ai", ""), ("tool", "8"), ("ai", "done")]


@versions
def test_what_only_stands_for_an_answer_answers_nothing(version: str) -> None:
    """The placeholder for an interrupted call asks the model to repeat it, so the repeated call must run."""
    replies = [turn(1, SAME), turn(2, SAME), AIMessage("done", id="ai-3")]
    options: Any = {"post_model_hook": no_change, "interrupt_before": ["tools"]}
    thread = Thread(candidate(), *replies, version=version, **options)
    thread.agent.invoke(question(), AT)
    thread.agent.invoke(question("instead", "h2"), AT)
    assert thread.agent.get_state(AT).next == ("tools",)
    messages = thread.agent.invoke(None, AT)["messages"]
    assert [(message.type, message.content) for message in messages][-2:] == [("tool", "2"), ("ai", "done")]


@conversation(ONE, DONE, MORE)
def test_an_update_of_the_past_is_one_place_after_the_one_it_changes(thread: Thread) -> None:
    """The parent of the new place is the place that was changed."""
    thread.run(question())
    snapshot = next(entry for entry in thread.history() if entry.next == ("tools",))
    config = thread.update({"messages": [turn(1, call("double", {"x": 4}, "a"))]}, config=snapshot.config)
    thread.history()
    state = thread.look(config)
    thread.records.append(state.parent_config == snapshot.config)
    thread.run(None, config)
    thread.history()


@pytest.mark.parametrize("next_node", ["__start__", "agent", "tools", None])
@conversation(ONE, DONE, MORE)
def test_a_copy_of_a_place_goes_on_as_the_place_would(thread: Thread, next_node: str | None) -> None:
    """`as_node="__copy__"` makes a place beside the one that is copied."""
    thread.run(question())
    snapshot = next(entry for entry in thread.history() if entry.next == (() if next_node is None else (next_node,)))
    config = thread.update(None, config=snapshot.config, as_node="__copy__")
    state = thread.look(config, past=True)
    thread.records.append(_where(state.parent_config) == _where(snapshot.parent_config))
    thread.records.append(places_of(thread))
    thread.run(None, config)
    thread.records.append(places_of(thread))


def places_of(thread: Thread) -> list[Any]:
    """Return the history without the results of tasks."""
    snapshots = thread.agent.get_state_history(AT)
    return [
        (
            snapshot.metadata["source"],
            snapshot.metadata["step"],
            snapshot.next,
            len(snapshot.values.get("messages", ())),
        )
        for snapshot in snapshots
    ]


def _where(config: Any) -> Any:
    return config and config["configurable"]["checkpoint_id"]


@conversation(ONE, DONE, MORE)
def test_a_copy_can_be_changed_at_once(thread: Thread) -> None:
    """The copy may come with a list of updates, each in the name of a node."""
    thread.run(question())
    snapshot = next(entry for entry in thread.history() if entry.next == ("agent",))
    config = thread.update([(question("by hand", "h2"), "agent")], config=snapshot.config, as_node="__copy__")
    thread.look(config)
    thread.records.append(places_of(thread))


def test_a_copy_takes_no_values_that_would_be_passed_over() -> None:
    """LangGraph ignores such values; and an empty thread has no place to copy."""
    thread = Thread(candidate(), ONE, DONE)
    with pytest.raises(InvalidUpdateError, match="non-existent"):
        thread.agent.update_state(AT, None, as_node="__copy__")
    thread.run(question())

    with pytest.raises(InvalidUpdateError, match="a list of"):
        thread.agent.update_state(AT, question("lost", "h2"), as_node="__copy__")


@pytest.mark.parametrize("added", [{"messages": [AIMessage("never mind", id="x")]}, question("note", "h2")])
@conversation(turn(1, call("ask", {"what": "b"}, "b")), DONE)
def test_what_comes_next_after_an_update_while_a_question_is_open(thread: Thread, added: Any) -> None:
    """Nothing is next, because the model's message with the open calls is not the last one."""
    thread.run(question())
    thread.look()
    thread.update(added, as_node="agent")
    thread.look()
    thread.run(None)
    thread.look()


@versions
@pytest.mark.parametrize(
    ("added", "model_runs"),
    [(question("check the stock first", "h2"), True), ({"messages": [AIMessage("no", id="x")]}, False), (None, False)],
    ids=["a message of the user", "a message of the model", "nothing"],
)
def test_after_an_end_by_hand_the_model_decides_on_what_it_has_not_seen(
    added: Any, model_runs: bool, version: str
) -> None:
    """Calls that the model had requested earlier do not run."""
    thread = Thread(candidate(), ONE, MORE, version=version, interrupt_before=["tools"])
    thread.run(question())
    thread.update(added, as_node="__end__")
    assert thread.agent.get_state(AT).next == (("agent",) if model_runs else ())
    result = thread.agent.invoke(None, AT)
    assert [message.content for message in result["messages"]][-1] == ("more" if model_runs else "no" if added else "")
    assert len(thread.requests) == 1 + model_runs
    assert not any(m.content == "2" for m in result["messages"])


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
    for thread in both(*([] if new else [AIMessage("hi", id="ai-0")]), ONE, DONE, version=version):
        if not new:
            thread.run(question())
        thread.agent.invoke(COMMANDS[kind](), AT)
        steps.append(thread.agent.get_state(AT).metadata["step"])
    assert steps[0] == steps[1]


@conversation(turn(1, call("ask", {"what": "b"}, "b")), DONE)
def test_an_answer_with_an_update_takes_as_many_steps(thread: Thread) -> None:
    thread.run(question())
    thread.run(Command(resume="yes", update=question("more", "h2")))
    thread.records.append(thread.agent.get_state(AT).metadata["step"])
    # LangGraph sends its model call, text and answer in the order of the state, and providers refuse that.
    # callboard sends the answer first (`tests/agent/test_history.py`); everything else is equal.
    kind, messages, tools = thread.requests[-1]
    thread.requests[-1] = kind, [*messages[:-2], *sorted(messages[-2:], key=str)], tools


@pytest.mark.parametrize("limit", [1, 2, 3])
@conversation(AIMessage("hi", id="ai-0"), ONE, DONE)
def test_a_command_leaves_as_many_steps_to_a_run(thread: Thread, limit: int) -> None:
    """The same recursion limit is sufficient for LangGraph and for callboard."""
    thread.run(question())
    thread.run(Command(update=question("more", "h2"), goto="agent"), {**AT, "recursion_limit": limit})
