"""The order service over HTTP on loopback: messages during a run, clients that come back, and cancelled calls.

On asyncio the server is uvicorn, on trio hypercorn, as the example starts them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from types import ModuleType
from typing import Any

import anyio
import httpx2
import pytest

from callboard import Agent, LiveRun, progress
from callboard.testing import ScriptedModel

from .record_services import APPROVER, KEY, Client, Event, example, serving, text_of

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.hangs_after(60),
    # A client that leaves a response leaves generators of httpx2 unfinished.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

TRACK = {"text": "Where are orders A-1 and A-2?"}


class Carrier:
    """Carrier that answers for a parcel when the test lets it, and counts the calls that were cut off."""

    def __init__(self) -> None:
        self.answers = {parcel: anyio.Event() for parcel in ("P-1", "P-2", "P-3")}
        self.cut_off: list[str] = []

    async def track_parcel(self, parcel: str) -> str:
        """Ask the carrier where a parcel is."""
        progress(f"asked for {parcel}")
        try:
            await self.answers[parcel].wait()
        except BaseException:
            self.cut_off.append(parcel)
            raise
        return f"parcel {parcel} is in Berlin"


class Served(Client):
    """Client of a service on loopback whose carrier the test plays."""

    def __init__(self, module: ModuleType, http: httpx2.AsyncClient, app: Any, carrier: Carrier) -> None:
        super().__init__(app, http)
        self.module = module
        self.carrier = carrier

    async def status_of(self, path: str, body: Any, thread: str = "ann") -> int:
        return (await self.http.post(f"/threads/{thread}/{path}", json=body)).status_code

    async def state(self, thread: str = "ann") -> Any:
        return (await self.http.get(f"/threads/{thread}")).json()

    async def human_texts(self, thread: str = "ann") -> list[str]:
        return [message["text"] for message in (await self.state(thread))["messages"] if message["type"] == "human"]

    async def first(self, kind: str, thread: str = "ann") -> Event:
        """Read the events of a run until one of this kind, and leave; return it."""
        async with aclosing(self.events(thread)) as events:
            async for event in events:
                if event[1] == kind:
                    return event
        raise AssertionError(f"the run has no event {kind!r}")

    async def running(self, thread: str = "ann") -> dict[str, str]:
        """Return the tools of the running calls, by their ids."""
        calls = (await self.http.get(f"/threads/{thread}/calls")).json()["calls"]
        return {call["id"]: call["tool"] for call in calls}


@asynccontextmanager
async def serve_example(backend: str, model: Any = None) -> AsyncGenerator[Served]:
    """Serve the example on a port of loopback, and yield a client."""
    module, carrier = example("order_service"), Carrier()
    shop = module.Shop(seconds=0)
    shop.track_parcel = carrier.track_parcel
    listener = module.Listener()
    app = module.service(module.agent_for(shop, model), listener, approver_key=KEY)
    async with (
        serving(module, app, listener, backend) as base_url,
        httpx2.AsyncClient(base_url=base_url, headers=APPROVER, timeout=30) as http,
    ):
        while not await is_ready(http):
            await anyio.sleep(0.01)
        yield Served(module, http, app, carrier)


async def is_ready(http: httpx2.AsyncClient) -> bool:
    try:
        return bool((await http.get("/ready")).status_code == 200)
    except httpx2.TransportError:
        return False


@pytest.fixture
def backend(anyio_backend_name: str) -> str:
    return anyio_backend_name


async def test_two_messages_during_a_run_are_read_once_each(backend: str) -> None:
    async with serve_example(backend) as client:
        assert await client.status_of("messages", TRACK) == 202
        await client.first("progress")
        async with anyio.create_task_group() as senders:
            for text in ("Please hurry.", "And where is order A-3?"):
                senders.start_soon(client.status_of, "messages", {"text": text})
        unread = await client.human_texts()
        for answer in client.carrier.answers.values():
            answer.set()
        kinds = [kind async for _, kind, _ in client.events()]
        texts = await client.human_texts()

    assert unread == [TRACK["text"]]
    assert texts[0] == TRACK["text"] and sorted(texts[1:]) == ["And where is order A-3?", "Please hurry."]
    assert kinds.count("end") == 1
    assert client.carrier.cut_off == []


async def test_messages_at_the_same_time_start_one_run_that_reads_each_once(backend: str) -> None:
    model = ScriptedModel(["yes"], loop=True)
    texts = [f"question {number}" for number in range(10)]
    async with serve_example(backend, model) as client:
        async with anyio.create_task_group() as senders:
            for text in texts:
                senders.start_soon(client.status_of, "messages", {"text": text})
        assert [kind async for _, kind, _ in client.events()][-1] == "end"
        assert sorted(await client.human_texts()) == texts


async def test_a_client_that_is_cut_off_after_each_event_and_comes_back_misses_none(backend: str) -> None:
    received_events: list[Event] = []
    async with serve_example(backend) as client:
        await client.status_of("messages", TRACK)
        last_number = None
        while not received_events or received_events[-1][1] != "end":
            assert len(received_events) < 100
            async with aclosing(client.events(seen=last_number)) as events:
                event = await anext(events)
            received_events.append(event)
            last_number = event[0]
            if event[1] == "progress":
                client.carrier.answers[event[2]["message"].split()[-1]].set()
        uncut = [event async for event in client.events()]

    assert received_events == uncut
    assert {"progress", "result", "token", "end"} == {kind for _, kind, _ in uncut}
    assert client.carrier.cut_off == []


async def test_a_page_that_is_reloaded_shows_each_text_once(backend: str) -> None:
    """A new `EventSource` of a browser sends no number, so it gets the run from its beginning."""

    async def reload(client: Served) -> list[str]:
        """Return the texts that a page shows at the end of the run."""
        async with aclosing(client.events()) as events:
            first_event = await anext(events)
            stored = {message["id"]: message["text"] for message in (await client.state())["messages"]}
            text_by_message = dict(stored)
            for answer in client.carrier.answers.values():
                answer.set()
            for _, kind, data in [first_event, *[event async for event in events]]:
                if kind in ("result", "token") and data["message"] not in stored:
                    text_by_message[data["message"]] = text_by_message.get(data["message"], "") + data["text"]
            return list(text_by_message.values())

    async with serve_example(backend) as client:
        await client.status_of("messages", TRACK)
        await client.first("progress")
        pages = [await reload(client), await reload(client)]
        stored_texts = [message["text"] for message in (await client.state())["messages"]]

    assert [sorted(page) for page in pages] == [sorted(stored_texts)] * 2
    assert len(stored_texts) == 6  # the question, two orders, two parcels, the reply


async def test_a_reply_of_a_model_that_does_not_stream_is_a_token_too(backend: str) -> None:
    async with serve_example(backend, ScriptedModel(["It is here."], disable_streaming=True)) as client:
        turn = await client.say("Where is my order?")

    assert text_of(turn) == "It is here."


async def test_a_number_continues_from_one_run_to_the_next(backend: str) -> None:
    """A client that was away during the end of a run reads it, and then the next run."""
    async with serve_example(backend, ScriptedModel(["one two three", "four five"])) as client:
        await client.say("Count.")
        first = [event async for event in client.events()]
        await client.say("Go on.")
        later_events = [event async for event in client.events(seen=first[0][0])]

    assert text_of((kind, data) for _, kind, data in later_events) == " two threefour five"


async def test_cancel_ends_one_call_and_the_other_has_its_result(backend: str) -> None:
    async with serve_example(backend) as client:
        await client.status_of("messages", TRACK)
        while sorted((running := await client.running()).values()) != ["track_parcel", "track_parcel"]:
            await anyio.sleep(0.01)
        first, second = sorted(running)
        assert await client.running("bob") == {}
        assert await client.status_of("calls/cancel", {"id": first}, "bob") == 404  # each thread has its own calls
        assert await client.running() == running
        assert await client.status_of("calls/cancel", {"id": first}) == 202
        assert await client.running() == {second: "track_parcel"}
        assert await client.status_of("calls/cancel", {"id": first}) == 404
        for answer in client.carrier.answers.values():
            answer.set()
        turn = [(kind, data) async for _, kind, data in client.events()]

    results = [data for kind, data in turn if kind == "result" and data["tool"] == "track_parcel"]
    [cancelled] = [result["text"] for result in results if result["status"] == "error"]
    [finished] = [result["text"] for result in results if result["status"] == "success"]
    assert "the customer has stopped it" in cancelled
    [cut_off_parcel] = client.carrier.cut_off
    assert finished == f"parcel {'P-2' if cut_off_parcel == 'P-1' else 'P-1'} is in Berlin"
    assert turn[-1][0] == "end"


async def test_a_cancelled_run_is_resumed_or_given_up(backend: str) -> None:
    async with serve_example(backend) as client:
        await client.status_of("messages", TRACK)
        await client.first("progress")
        assert await client.status_of("cancel", {}) == 202
        end = [kind async for _, kind, _ in client.events()][-1]
        refused = await client.http.post("/threads/ann/messages", json={"text": "Thank you."})
        for answer in client.carrier.answers.values():
            answer.set()
        resumed = await client.post("resume", {})
        await client.status_of("messages", {"text": "Where is order A-3?"})
        await client.status_of("cancel", {})
        given_up = await client.post("messages", {"text": "Thank you.", "give_up": True})

    assert end == "cancelled"
    assert (refused.status_code, refused.json()["unfinished"]) == (409, True)
    assert text_of(resumed) == "parcel P-1 is in Berlin; parcel P-2 is in Berlin."
    assert [kind for kind, _ in given_up][-1] == "end"


async def test_a_message_gives_an_open_question_up_only_if_it_says_so(backend: str) -> None:
    async with serve_example(backend) as client:
        open_questions = dict(await client.say("Please refund order A-1."))["question"]
        refused = await client.http.post("/threads/ann/messages", json={"text": "Thank you."})
        assert (refused.status_code, refused.json()["questions"]) == (409, open_questions)
        assert (await client.state())["questions"] == open_questions
        await client.post("messages", {"text": "Thank you.", "give_up": True})
        assert (await client.state())["questions"] == {}
        late = await client.status_of("answers", {question: {"type": "accept"} for question in open_questions})

    assert late == 409


async def test_a_question_that_is_asked_between_two_steps_of_a_message_is_not_given_up(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message has found no live run, and another message starts a run that asks meanwhile."""
    has_looked, may_go_on = anyio.Event(), anyio.Event()
    say = Agent.say

    async def look(agent: Agent, message: Any, *args: Any, **options: Any) -> Any:
        run: LiveRun | None = await say(agent, message, *args, **options)
        if message == "Hello." and run is None:
            has_looked.set()
            await may_go_on.wait()
        return run

    monkeypatch.setattr(Agent, "say", look)
    statuses: list[int] = []
    async with serve_example(backend) as client, anyio.create_task_group() as senders:

        async def greet() -> None:
            statuses.append(await client.status_of("messages", {"text": "Hello."}))

        with anyio.fail_after(20):
            senders.start_soon(greet)
            await has_looked.wait()
            open_questions = dict(await client.say("Please refund order A-1."))["question"]
            may_go_on.set()
            while not statuses:
                await anyio.sleep(0.01)
            assert (await client.state())["questions"] == open_questions

    assert statuses == [409]


async def test_a_thread_without_a_run_here_and_a_wrong_number_are_refused(backend: str) -> None:
    async with serve_example(backend) as client:
        assert (await client.http.get("/threads/ann/events")).status_code == 404
        await client.say("Hello.")
        for number in ("x", "-1", "9" * 5000):
            wrong = await client.http.get("/threads/ann/events", headers={"Last-Event-ID": number})
            assert wrong.status_code == 400, number


async def test_a_client_of_an_earlier_process_reads_that_events_are_missing_and_goes_on(backend: str) -> None:
    async with serve_example(backend) as client:
        await client.say("Hello.")
        [(number, kind, text)] = [event async for event in client.events(seen=7)]
        later_events = [event async for event in client.events(seen=number)]
        all_events = [event async for event in client.events()]

    assert kind == "dropped" and "read /threads/ID" in text
    assert later_events == all_events


async def test_the_number_of_runs_is_bounded_and_live_runs_take_messages(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs go on without their clients, so that a limit of connections does not bound them."""
    async with serve_example(backend) as client:
        monkeypatch.setattr(client.module, "MAX_RUNS", 1)
        await client.status_of("messages", TRACK)
        await client.first("progress")
        refused = await client.status_of("messages", TRACK, "bob")
        accepted = await client.status_of("messages", {"text": "Hello."})
        for answer in client.carrier.answers.values():
            answer.set()
        assert [kind async for _, kind, _ in client.events()][-1] == "end"
        later = await client.status_of("messages", TRACK, "bob")

    assert (refused, accepted, later) == (503, 202, 202)


async def test_a_client_that_leaves_does_not_end_the_run(backend: str) -> None:
    async with serve_example(backend) as client:
        await client.status_of("messages", TRACK)
        await client.first("progress")
        for answer in client.carrier.answers.values():
            answer.set()
        turn = [(kind, data) async for _, kind, data in client.events()]

    assert client.carrier.cut_off == []
    assert text_of(turn) == "parcel P-1 is in Berlin; parcel P-2 is in Berlin."
    assert turn[-1][0] == "end"
