"""Threads: state, history, interrupts, stops, updates and forks, as LangGraph's agent keeps them.

Intended differences, which are removed before the comparison or tested at the end of this file:

- Input takes one step in callboard and two in LangGraph (`__start__` is next, then it has ended). So the history has
  one place less, numbers differ after the first turn, and the source of the step is "input" and not "loop".
- Before a first place that `update_state` made, callboard has an empty place.
- An answered question is no longer shown at the place where it was asked, once its call has a result.
- `as_node="__end__"` accepts values in callboard, and refuses them in LangGraph.
- When one of several questions is answered, LangGraph runs finished and unanswered calls again; callboard does not
  (promise 5).
- LangGraph ignores answers without a question and unknown checkpoints; callboard raises.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command, StateUpdate, interrupt

from ._dump import dump
from ._harness import call, double, for_each, versions
from ._model import ReplayModel
from ._prebuilt import candidate, reference

AT: Any = {"configurable": {"thread_id": "1"}}
Talk = Callable[["Thread"], None]


@tool
def ask(what: str) -> str:
    """Ask."""
    return f"{what}: {interrupt(what)}"


@tool
def fails(x: int) -> str:
    """Fail."""
    raise ValueError("bad")


def turn(n: int, *calls: dict[str, Any]) -> AIMessage:
    return AIMessage("", tool_calls=list(calls), id=f"ai-{n}")


def question(text: str = "q", id: str = "h") -> Any:
    return {"messages": [HumanMessage(text, id=id)]}


ONE = turn(1, call("double", {"x": 1}, "a"))
DONE = AIMessage("done", id="ai-2")
MORE = AIMessage("more", id="ai-3")


class Thread:
    """A thread of one of the two agents, and the record of its states."""

    def __init__(self, ns: Any, *replies: AIMessage, version: str = "v2", **options: Any) -> None:
        self.asked: list[Any] = []
        self.seen: list[Any] = []
        model = ReplayModel(*replies, log=self.asked)
        self.agent = ns.create_react_agent(
            model, [double, ask, fails], checkpointer=InMemorySaver(), version=version, **options
        )

    def run(self, given: Any, config: Any = AT, **options: Any) -> Any:
        try:
            result = self.agent.invoke(given, config, **options)
        except Exception as error:
            self.seen.append(("raised", type(error).__name__))
            return None
        self.seen.append(("result", _values(result)))
        return result

    def look(self, config: Any = AT, *, past: bool = False) -> Any:
        """Record the state; for a past state, without the later results of its tasks."""
        state = self.agent.get_state(config)
        shown = _snapshot(state)
        self.seen.append(("state", {**shown, "tasks": [task[:2] for task in shown["tasks"]]} if past else shown))
        return state

    def history(self, **options: Any) -> list[Any]:
        """Record the history."""
        places = list(self.agent.get_state_history(AT, **options))
        self.seen.append(("history", *map(_snapshot, places), [place.metadata["step"] for place in places]))
        return places

    def update(self, *args: Any, config: Any = AT, **options: Any) -> Any:
        try:
            changed = self.agent.update_state(config, *args, **options)
        except InvalidUpdateError as error:
            self.seen.append(("raised", type(error).__name__))
            return config
        self.seen.append("updated")
        return changed


def _values(values: Any) -> Any:
    shown = {key: value for key, value in values.items() if key != "messages"}
    messages = [(m.type, m.content, m.name, getattr(m, "tool_calls", [])) for m in values.get("messages", [])]
    questions = sorted(one.value for one in shown.pop("__interrupt__", ()))  # LangGraph sorts them by arrival
    return dump([messages, questions, shown])


def _snapshot(state: Any) -> Any:
    metadata = state.metadata or {}
    return {
        "values": _values(state.values),
        "next": state.next,
        "source": metadata.get("source"),
        "parents": metadata.get("parents"),
        "questions": [one.value for task in state.tasks for one in _open(task)],
        "tasks": [_task(task) for task in state.tasks],
        "is new": state.created_at is None,
    }


def _open(task: Any) -> Any:
    return task.interrupts if task.result is None else ()


def _task(task: Any) -> Any:
    path = task.path[:2] if task.path[0] == "__pregel_push" else task.path
    result = None if task.result is None else _values(task.result)
    return task.name, path, task.error, [one.value for one in _open(task)], task.state, result


def _differences(one: Any, other: Any, where: str) -> Iterator[str]:
    """Return the paths of two values that differ, and the differences."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _differences(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{where}[{number}]")
    elif one != other:
        yield f"{where}: {one!r}, and LangGraph's {other!r}"


def same(talk: Talk, *replies: AIMessage, **options: Any) -> list[Any]:
    """Run the same conversation with both agents, and compare their records."""
    theirs, ours = (Thread(ns, *replies, **options) for ns in (reference(), candidate()))
    talk(theirs)
    talk(ours)
    assert not list(_differences(ours.seen, theirs.seen, "seen"))
    assert dump(ours.asked) == dump(theirs.asked)
    return ours.seen


def conversation(*replies: AIMessage, versions: Sequence[str] = ("v1", "v2"), **options: Any) -> Any:
    """Return a test that a conversation is the same with both agents, in each version; a decorator of the conversation.

    The conversation takes the thread, and the parameters of the test if there are any.
    """

    def decorated(talk: Any) -> Any:
        return for_each(
            "version",
            versions,
            talk,
            lambda version, given: same(partial(talk, **given), *replies, version=version, **options),
        )

    return decorated


@conversation(ONE, DONE)
def test_a_finished_turn(thread: Thread) -> None:
    thread.run(question())
    thread.look()
    thread.history()
    thread.run(None)
    thread.look()


@versions
def test_the_steps_of_the_first_turn_have_the_same_numbers(version: str) -> None:
    def steps(ns: Any) -> list[Any]:
        thread = Thread(ns, ONE, DONE, version=version)
        thread.run(question())
        return [place.metadata["step"] for place in thread.agent.get_state_history(AT)]

    assert steps(candidate()) == steps(reference()) == [3, 2, 1, 0, -1]


@conversation(ONE, versions=("v2",))
def test_a_thread_that_is_not_there(thread: Thread) -> None:
    thread.look()
    thread.history()


@conversation(ONE, DONE, MORE)
def test_two_turns_and_their_history(thread: Thread) -> None:
    thread.run(question())
    thread.run(question("again", "h2"))
    thread.look()
    places = thread.history()
    for place in places[:-1]:
        thread.look(place.config, past=True)
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
        assert {one.id for one in state.interrupts} == {one.id for one in result["__interrupt__"]}
        by_value = {one.value: one.id for one in state.interrupts}
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


@conversation(ONE, DONE, interrupt_before=["tools"])
def test_a_stopped_call_is_edited(thread: Thread) -> None:
    thread.run(question())
    edited = turn(1, call("double", {"x": 21}, "a"))
    thread.update({"messages": [edited]})
    thread.look()
    thread.run(None)
    thread.history()


@pytest.mark.parametrize("as_node", ["tools", "agent"])
@conversation(ONE, DONE, interrupt_before=["tools"])
def test_a_stopped_call_is_answered_by_hand(thread: Thread, as_node: str) -> None:
    thread.run(question())
    thread.update({"messages": [ToolMessage("no", tool_call_id="a", id="t")]}, as_node=as_node)
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
    thread.update({"messages": [RemoveMessage(id="ai-2")]}, as_node="agent")
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
    thread.agent.bulk_update_state(AT, updates)
    thread.look()


@pytest.mark.parametrize("length", [1, 2, 3])
@conversation(ONE, DONE, ONE, DONE)
def test_a_fork_goes_on_from_a_place_in_the_middle(thread: Thread, length: int) -> None:
    thread.run(question())
    place = next(one for one in thread.history() if len(one.values["messages"]) == length)
    thread.run(None, place.config)
    thread.look()


@conversation(ONE, DONE, MORE)
def test_a_fork_by_an_update_in_the_past(thread: Thread) -> None:
    thread.run(question())
    place = next(one for one in thread.history() if one.next == ("tools",))
    config = thread.update({"messages": [turn(1, call("double", {"x": 4}, "a"))]}, config=place.config)
    thread.look(config)
    thread.run(None, config)
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

    def seen(ns: Any) -> Iterator[Any]:
        agent = ns.create_react_agent(Broken(DONE), [double], checkpointer=InMemorySaver(), version=version)
        with pytest.raises(ValueError, match="no model"):
            agent.invoke(question(), AT)
        yield _snapshot(agent.get_state(AT))

    assert list(seen(candidate())) == list(seen(reference()))


@conversation(ONE, DONE, MORE)
def test_commands_without_an_answer(thread: Thread) -> None:
    thread.run(question())
    thread.run(Command(update=question("more", "h2"), goto="agent"))
    thread.look()


@conversation(ONE, DONE, MORE, versions=("v2",))
def test_a_past_place_shows_what_its_tasks_did(thread: Thread) -> None:
    thread.run(question())
    thread.run(question("again", "h2"))
    for place in thread.history():
        thread.look(place.config)


# --- intended differences, and their reasons


def talk_to(ns: Any, *replies: AIMessage, version: str = "v2", **options: Any) -> Thread:
    return Thread(ns, *replies, version=version, **options)


def test_a_new_message_instead_of_an_answer_is_taken_by_us_and_refused_by_langgraph() -> None:
    """Promise 2: otherwise the thread, with its finished results, could not be continued."""
    seen = {}
    for ns in (reference(), candidate()):
        thread = talk_to(ns, turn(1, call("double", {"x": 1}, "a"), call("ask", {"what": "b"}, "b")), DONE)
        thread.run(question())
        thread.run(question("never mind", "h2"))
        seen[ns.side] = thread.seen[-1]

    assert seen["langgraph"] == ("raised", "ValueError")
    assert seen["callboard"][0] == "result"


@pytest.mark.parametrize("given", [Command(resume="go on"), Command(resume={}), None], ids=["word", "nothing", "none"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_any_word_goes_on_after_a_stop_before_a_node(given: Any, version: str) -> None:
    """The stop is no question, and clients that always send a `Command` must be able to continue."""
    seen = {}
    for ns in (reference(), candidate()):
        thread = talk_to(ns, ONE, DONE, version=version, interrupt_before=["tools"])
        thread.run(question())
        thread.run(given)
        seen[ns.side] = thread.seen

    assert seen["callboard"] == seen["langgraph"]
    assert "done" in str(seen["callboard"][-1])


@pytest.mark.parametrize("resume", ["both", {"a": "x"}, {"0" * 32: "x", "a": "x"}, {"A" * 32: "x"}], ids=str)
def test_one_answer_for_several_questions_is_an_error_of_langgraphs_type(resume: Any) -> None:
    """A dict is a map of answers if all of its keys are ids in lower case; any other value is one answer."""
    for ns in (reference(), candidate()):
        thread = talk_to(ns, turn(1, call("ask", {"what": "a"}, "a"), call("ask", {"what": "b"}, "b")), DONE)
        thread.run(question())
        with pytest.raises(RuntimeError, match="multiple pending interrupts"):
            thread.agent.invoke(Command(resume=resume), AT)


@pytest.mark.parametrize("given", [Command(resume="yes"), Command(resume={"0" * 32: "yes"})], ids=["plain", "by id"])
def test_an_answer_that_nobody_asked_for_is_refused_by_us_and_ignored_by_langgraph(given: Any) -> None:
    """A misspelt id would otherwise remain unnoticed."""
    seen = {}
    for ns in (reference(), candidate()):
        thread = talk_to(ns, ONE, DONE)
        thread.run(question())
        thread.run(given)
        seen[ns.side] = thread.seen[-1]

    assert seen["langgraph"] != ("raised", "UnknownInterruptError")
    assert seen["callboard"] == ("raised", "UnknownInterruptError")


def waiting(bodies: list[str]) -> Any:
    @tool
    def wait(what: str) -> str:
        """Wait for an answer, but for `quick`."""
        bodies.append(what)
        return what if what == "quick" else str(interrupt(what))

    return wait


def test_a_call_that_waits_does_not_run_again_for_the_answer_of_another() -> None:
    """Promise 5: LangGraph's v1 runs all calls again for each answer, including finished ones."""
    ran: dict[str, list[str]] = {}
    calls = [call("wait", {"what": what}, what) for what in ("quick", "a", "b")]
    for ns in (reference(), candidate()):
        bodies = ran[ns.side] = []
        model = ReplayModel(turn(1, *calls), DONE)
        agent = ns.create_react_agent(model, [waiting(bodies)], checkpointer=InMemorySaver(), version="v1")
        agent.invoke(question(), AT)
        for _ in range(2):
            first = agent.get_state(AT).interrupts[0]
            agent.invoke(Command(resume={first.id: "yes"}), AT)

    assert sorted(ran["callboard"]) == ["a", "a", "b", "b", "quick"]
    assert len(ran["langgraph"]) > len(ran["callboard"])


def test_an_end_by_hand_takes_values_with_us() -> None:
    """LangGraph accepts no values at the end, so it needs two updates."""
    seen = {}
    for ns in (reference(), candidate()):
        thread = talk_to(ns, ONE, DONE)
        thread.run(question())
        thread.update(question("by hand", "h2"), as_node="__end__")
        seen[ns.side] = (thread.seen[-1], thread.look().next)

    assert seen == {"langgraph": (("raised", "InvalidUpdateError"), ()), "callboard": ("updated", ("agent",))}


def test_an_unknown_checkpoint_is_an_error_and_not_a_new_conversation() -> None:
    """LangGraph returns an empty state for an unknown checkpoint."""
    unknown = {"configurable": {"thread_id": "1", "checkpoint_id": "1f0c5b2e-0000-6000-8000-000000000000"}}
    threads = {ns.side: talk_to(ns, ONE, DONE) for ns in (reference(), candidate())}
    for thread in threads.values():
        thread.run(question())

    assert threads["langgraph"].agent.get_state(unknown).values == {}
    with pytest.raises(ValueError, match="no checkpoint"):
        threads["callboard"].agent.get_state(unknown)
