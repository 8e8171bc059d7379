"""Questions of calls are sent to the client's user as forms; the filled form is the answer."""

import json
import time
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import Interrupt, interrupt
from mcp import Client, MCPError, types
from mcp_types._v2025_11_25 import PrimitiveSchemaDefinition
from pydantic import TypeAdapter

from callboard import ToolNode
from callboard.middleware import RequireApproval
from callboard_actors.mcp_service._questions import ProgressCounter, form_questions, progress_sender
from callboard_actors.mcp_service._service import MOST_COMPLAINTS

from ._clients import DECLINED, DISMISSED, Person, client_of, fill_in, in_both_eras, service_of, text_in

FIELD: TypeAdapter[Any] = TypeAdapter(PrimitiveSchemaDefinition)


class Desk:
    """Tools whose calls need approval, and a record of the calls that ran."""

    def __init__(self, **approval: Any) -> None:
        self.ran: list[str] = []
        self.node = ToolNode([self.delete], middleware=[RequireApproval(["delete"], **approval)])

    async def delete(self, path: str) -> str:
        """Delete a file."""
        self.ran.append(path)
        return f"{path} deleted"

    async def run_call(self, era: str, person: Person) -> types.CallToolResult:
        async with client_of(self.node, era, elicitation_callback=person) as client:
            return await client.call_tool("delete", {"path": "a.txt"})


@in_both_eras
@pytest.mark.parametrize(
    ("answer", "text", "is_error", "ran"),
    [
        (fill_in(decision="accept"), "a.txt deleted", False, ["a.txt"]),
        (fill_in(decision="edit", arguments='{"path": "b.txt"}'), "b.txt deleted", False, ["b.txt"]),
        (fill_in(decision="respond", message="it is gone"), "it is gone", False, []),
        (fill_in(decision="ignore", message="in use"), "with reason: in use", True, []),
        (fill_in(decision="ignore"), "rejected", True, []),
        (DECLINED, "rejected", True, []),
        (DISMISSED, "rejected", True, []),
    ],
)
async def test_an_approval_is_asked_of_the_user(
    era: str, answer: types.ElicitResult, text: str, is_error: bool, ran: list[str]
) -> None:
    """No answer counts as a refusal. The call runs only after the answer, and only once."""
    desk, person = Desk(), Person(answer)
    result = await desk.run_call(era, person)

    assert (text in text_in(result), result.is_error, desk.ran) == (True, is_error, ran)
    [form] = person.received_forms
    assert "delete" in form.message
    assert "a.txt" in form.message
    assert form.requested_schema["properties"]["decision"]["enum"] == ["accept", "edit", "respond", "ignore"]
    assert json.loads(form.requested_schema["properties"]["arguments"]["default"]) == {"path": "a.txt"}


@in_both_eras
async def test_a_character_that_hides_others_is_shown_by_its_number(era: str) -> None:
    """A person would approve another file name than the one that is shown."""
    desk, person = Desk(description="Delete?"), Person(DECLINED)
    async with client_of(desk.node, era, elicitation_callback=person) as client:
        await client.call_tool("delete", {"path": "cat\u202egpj.exe"})

    [form] = person.received_forms
    assert "cat\\u202egpj.exe" in form.message
    assert form.requested_schema["properties"]["arguments"]["default"] == '{"path": "cat\\u202egpj.exe"}'


@in_both_eras
async def test_a_form_has_only_what_may_be_said(era: str) -> None:
    """Without permission to edit there is no edit field; where no rejection is possible, declining ends the call."""
    desk, person = Desk(allow=["accept"]), Person(DECLINED)
    result = await desk.run_call(era, person)

    assert set(person.received_forms[0].requested_schema["properties"]) == {"decision"}
    assert result.is_error
    assert "has not answered" in text_in(result)
    assert desk.ran == []


@in_both_eras
@pytest.mark.parametrize(
    "wrong",
    [
        fill_in(decision="perhaps"),
        fill_in(),
        fill_in(decision="edit", arguments="no JSON"),
        fill_in(decision="edit", arguments="[1]"),
        fill_in(decision="edit", arguments='{"path": 3}'),
        fill_in(decision="respond"),
    ],
)
async def test_an_answer_that_is_none_is_asked_for_again(era: str, wrong: types.ElicitResult) -> None:
    """The form shows the mistake; the number of attempts is limited."""
    desk, person = Desk(), Person(wrong, fill_in(decision="accept"))
    result = await desk.run_call(era, person)
    first, second = person.received_forms

    assert (text_in(result), desk.ran) == ("a.txt deleted", ["a.txt"])
    assert second.message.endswith(first.message)
    assert len(second.message) > len(first.message)

    desk, person = Desk(), Person(*[wrong] * (MOST_COMPLAINTS + 1))
    result = await desk.run_call(era, person)
    assert (result.is_error, desk.ran) == (True, [])


@in_both_eras
async def test_a_client_that_cannot_ask_is_refused(era: str) -> None:
    """The call does not run, and the client's model reads the reason."""
    desk = Desk()
    async with client_of(desk.node, era) as client:
        result = await client.call_tool("delete", {"path": "a.txt"})

    assert result.is_error
    assert "this client cannot ask one" in text_in(result)
    assert desk.ran == []


@in_both_eras
async def test_a_question_of_a_tool_is_asked_of_the_user(era: str) -> None:
    """Questions come one at a time and are not repeated; code before the question runs again."""
    ran: list[str] = []

    async def plan(town: str) -> str:
        """Plan."""
        ran.append("looked up")
        nights = interrupt(f"How many nights in {town}?")
        hotel = interrupt({"town": town, "hotels": ["Minerva", "Bristol"]})
        return f"{nights!r} at {hotel!r}"

    person = Person(fill_in(answer="2"), fill_in(answer="Minerva"))
    async with client_of([plan], era, elicitation_callback=person) as client:
        result = await client.call_tool("plan", {"town": "Oslo"})

    assert text_in(result) == "2 at 'Minerva'"
    assert person.received_forms[0].message == "How many nights in Oslo?"
    assert json.loads(person.received_forms[1].message) == {"town": "Oslo", "hotels": ["Minerva", "Bristol"]}
    assert ran == ["looked up"] * 3


@in_both_eras
@pytest.mark.parametrize("no", [DECLINED, DISMISSED])
async def test_a_question_without_an_answer_ends_the_call(era: str, no: types.ElicitResult) -> None:
    """The tool has no answer with which it could continue."""
    went_on: list[object] = []

    async def plan() -> str:
        """Plan."""
        went_on.append(interrupt("Where to?"))
        return "planned"

    async with client_of([plan], era, elicitation_callback=Person(no)) as client:
        result = await client.call_tool("plan", {})

    assert (result.is_error, went_on) == (True, [])
    assert "has not answered" in text_in(result)


@in_both_eras
async def test_a_question_may_say_what_its_answer_looks_like(era: str) -> None:
    """The answer's schema becomes the form if forms can express it."""
    flat = {
        "type": "object",
        "properties": {"nights": {"type": "integer"}, "late": {"type": "boolean"}},
        "required": ["nights"],
    }

    async def plan() -> str:
        """Plan."""
        stay: Any = interrupt("How long?", response_schema=flat)
        price: Any = interrupt("For how much?", response_schema={"type": "number"})
        return f"{stay} for {price}"

    person = Person(fill_in(nights=2, late=True), fill_in(answer=80.5))
    async with client_of([plan], era, elicitation_callback=person) as client:
        result = await client.call_tool("plan", {})

    assert text_in(result) == "{'nights': 2, 'late': True} for 80.5"
    assert person.received_forms[0].requested_schema == flat
    assert person.received_forms[1].requested_schema["properties"]["answer"]["type"] == "number"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES, st.none() | st.dictionaries(st.sampled_from(["type", "properties", "enum"]), VALUES))
def test_any_question_has_a_form_that_clients_can_show(value: object, schema: dict[str, Any] | None) -> None:
    """A tool may pass any value to `interrupt()`, but forms have primitive fields only."""
    [question] = form_questions([Interrupt(value=value, id="1", response_schema=schema)])  # type: ignore[call-arg]
    for form in question.forms:
        assert isinstance(form.params, types.ElicitRequestFormParams)
        for field in form.params.requested_schema["properties"].values():
            FIELD.validate_python(field)


async def test_a_question_can_be_answered_once() -> None:
    """A client that lost the result may repeat its answer; the call must not run twice."""
    desk = Desk()
    async with client_of(desk.node, "2026-07-28", elicitation_callback=Person()) as client:
        question = await client.session.call_tool("delete", {"path": "a.txt"}, allow_input_required=True)
        assert isinstance(question, types.InputRequiredResult)
        [key] = question.input_requests or {}
        answer: Any = {
            "input_responses": {key: fill_in(decision="accept")},
            "request_state": question.request_state,
        }
        with pytest.raises(MCPError, match="Invalid or expired"):
            await client.session.call_tool("delete", {"path": "b.txt"}, **answer)
        done = await client.session.call_tool("delete", {"path": "a.txt"}, **answer)
        with pytest.raises(MCPError, match="was answered before"):
            await client.session.call_tool("delete", {"path": "a.txt"}, **answer)

    assert text_in(done) == "a.txt deleted"
    assert desk.ran == ["a.txt"]


async def test_a_question_that_has_waited_too_long_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person approved yesterday may be wrong today."""
    desk = Desk()
    async with client_of(desk.node, "2026-07-28", elicitation_callback=Person()) as client:
        question = await client.session.call_tool("delete", {"path": "a.txt"}, allow_input_required=True)
        assert isinstance(question, types.InputRequiredResult)
        answers: Any = {key: fill_in(decision="accept") for key in question.input_requests or {}}
        later = time.time() + 3601
        monkeypatch.setattr(time, "time", lambda: later)
        with pytest.raises(MCPError, match="Invalid or expired"):
            await client.session.call_tool(
                "delete", {"path": "a.txt"}, input_responses=answers, request_state=question.request_state
            )

    assert desk.ran == []


async def test_a_question_that_cannot_be_stored_ends_the_call() -> None:
    """A tool may ask with any object, and the client keeps the state as text."""

    async def plan() -> str:
        """Plan."""
        return f"{interrupt({'where': object()})}"

    async with client_of([plan], "2026-07-28", elicitation_callback=Person()) as client:
        result = await client.call_tool("plan", {})

    assert result.is_error
    assert "its question has a value that cannot be stored" in text_in(result)


async def test_answered_questions_are_remembered_only_until_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server runs for months, and each answer leaves a name behind."""
    desk = Desk()
    now = time.time()
    person = Person(*[fill_in(decision="accept")] * 3)
    async with service_of(desk.node, "2026-07-28", elicitation_callback=person) as (service, client):
        for hour in range(3):
            monkeypatch.setattr(time, "time", lambda hour=hour: now + 3601 * hour)
            await client.call_tool("delete", {"path": "a.txt"})
            assert len(service._answered) == 1
    assert desk.ran == ["a.txt"] * 3


@in_both_eras
async def test_nobody_is_asked_any_more_when_the_service_is_drained(era: str) -> None:
    """A person may take hours and the process has to end. The call has not run, and the client is told so."""
    desk = Desk()
    is_asked, results = anyio.Event(), list[types.CallToolResult | str]()

    async def think(context: object, params: object) -> types.ElicitResult:
        is_asked.set()
        if era == "legacy":
            await anyio.sleep_forever()
        await service.drain(0)
        return fill_in(decision="accept")

    async def call(client: Client) -> None:
        try:
            results.append(await client.call_tool("delete", {"path": "a.txt"}))
        except MCPError as error:
            results.append(error.error.message)

    async with service_of(desk.node, era, elicitation_callback=think) as (service, client):
        async with anyio.create_task_group() as group:
            group.start_soon(call, client)
            await is_asked.wait()
            if era == "legacy":
                await service.drain(5)
    [result] = results

    assert desk.ran == []
    text = result if isinstance(result, str) else text_in(result)
    assert "the server is shutting down" in text or "is being drained" in text


NUMBERS = st.none() | st.floats(min_value=0, max_value=1e300)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20))
def test_progress_rises_whatever_a_tool_says(reports: list[tuple[float | None, float | None]]) -> None:
    """The protocol requires increasing numbers, but a tool may go back, repeat a number or report none."""
    rising = ProgressCounter()
    numbers = [rising.report("", done, total)[0] for done, total in reports]

    assert all(number < next_number for number, next_number in pairwise(numbers))
    assert all(report >= done for report, (done, _) in zip(numbers, reports, strict=True) if done is not None)


@pytest.mark.parametrize(
    "reports", [[(0, 10), (None, None), (0, 10)], [(None, 10), (None, 10)], [(None, None), (3, 4), (3, 4), (None, 0)]]
)
def test_progress_is_told_in_numbers_that_can_be_shown(reports: list[tuple[float | None, float | None]]) -> None:
    """Steps as small as 5e-324 cannot be shown; each report adds a visible step, and no progress is 0."""
    rising = ProgressCounter()
    numbers = [rising.report("", done, total)[0] for done, total in reports]

    assert numbers[0] == 0
    assert all(next_number - number >= 1e-6 * 0.99 for number, next_number in pairwise(numbers))


async def test_a_call_does_not_wait_for_a_client_that_is_slow_to_hear() -> None:
    """Only the newest report is kept for a client that reads slowly."""
    listens = anyio.Event()
    messages: list[object] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        messages.append(message)
        await listens.wait()

    async with progress_sender(report) as tell:
        for n in range(100):
            tell({"type": "progress", "message": f"{n}", "done": n + 1})
            await anyio.sleep(0)
        tell("something else in the stream")
        listens.set()

    assert messages[-1] == "99"
    assert len(messages) < 5
