"""The order service: events of a turn, approvals, health checks, draining, and conversations on PostgreSQL."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import ToolNode, tool_call
from callboard.testing import calls
from tests.agent._postgres import running_postgres

from .record_services import ROOT, Turn, example, order_service, text_of

pytestmark = [pytest.mark.real_clock, pytest.mark.hangs_after(60)]
ACCEPT = {"type": "accept"}


def kinds(turn: Turn) -> list[str]:
    """Return the kinds of events, each once for a series."""
    all_kinds = [kind for kind, _ in turn]
    return [kind for index, kind in enumerate(all_kinds) if not index or all_kinds[index - 1] != kind]


async def test_a_turn_streams_progress_results_and_tokens() -> None:
    async with order_service(seconds=0.06) as client:
        turn = await client.say("Where is order A-1?")

    assert kinds(turn) == ["result", "progress", "result", "token", "end"]
    assert [data["message"] for kind, data in turn if kind == "progress"] == [
        "asked Hull",
        "asked Bremen",
        "asked Berlin",
    ]
    assert text_of(turn) == "parcel P-1 is in Berlin."


async def test_a_refund_waits_for_its_answer(tmp_path: Path) -> None:
    """Another message does not approve it, and a second answer does not pay twice."""
    ledger = tmp_path / "refunds.txt"
    async with order_service(ledger=ledger, seconds=0) as client:
        question_turn = await client.say("Please refund order A-1.")
        assert kinds(question_turn) == ["result", "question", "end"]
        status = (await client.http.get("/threads/ann")).json()
        assert not ledger.exists()
        answered = await client.answer(question_turn, ACCEPT)
        second_response = await client.http.post(
            "/threads/ann/answers", json=dict.fromkeys(status["questions"], ACCEPT)
        )

    assert dict(question_turn)["question"] == status["questions"]
    assert dict(answered)["result"]["text"] == "refunded 49.90 EUR for order A-1"
    assert (second_response.status_code, second_response.json()["error"][:17]) == (409, "Unknown or alread")
    assert len(ledger.read_text().splitlines()) == 1


async def test_a_message_does_not_give_an_open_question_up(tmp_path: Path) -> None:
    """It would begin a turn in which the same refund is asked for again."""
    ledger = tmp_path / "refunds.txt"
    async with order_service(ledger=ledger, seconds=0) as client:
        question_turn = await client.say("Please refund order A-1.")
        refused = await client.http.post("/threads/ann/messages", json={"text": "Please refund order A-1."})
        assert (refused.status_code, refused.json()["questions"]) == (409, dict(question_turn)["question"])
        await client.answer(question_turn, ACCEPT)
        second_turn = await client.answer(await client.say("Please refund order A-1."), ACCEPT)

    assert dict(second_turn)["result"]["text"] == "not refunded: 49.90 EUR is more than is left of order A-1"
    assert len(ledger.read_text().splitlines()) == 1


async def test_a_customer_reads_the_run_that_the_answer_of_another_person_has_started() -> None:
    """The page of the customer sees in the thread that the question is answered, and goes on after its last event."""
    async with order_service(seconds=0) as client:
        question_turn = await client.post("messages", {"text": "Please refund order A-1."})
        [*_, (last, _, _)] = [event async for event in client.events()]
        assert (await client.http.get("/threads/ann")).json()["questions"] == dict(question_turn)["question"]
        nothing_new = [event async for event in client.events(seen=last)]
        answered = await client.answer(question_turn, ACCEPT)
        state = (await client.http.get("/threads/ann")).json()
        after_its_last_event = [(kind, data) async for _, kind, data in client.events(seen=last)]
        after_a_reload = [(kind, data) async for _, kind, data in client.events()]

    assert [kind for _, kind, _ in nothing_new] == ["end"]
    assert (state["questions"], state["unfinished"]) == ({}, False)
    assert state["messages"][-1]["text"] == "refunded 49.90 EUR for order A-1."
    assert after_its_last_event == after_a_reload == answered
    assert kinds(answered) == ["progress", "result", "token", "end"]


async def test_users_have_threads_of_their_own_and_only_an_approver_answers() -> None:
    """A name of a thread is no secret, and one user's name may begin with that of another one."""
    customers = {name: {"Authorization": f"login of {name}"} for name in ("ann", "ann.b", "")}
    users = {login["Authorization"]: name for name, login in customers.items()}
    order = {"text": "Please refund order A-1."}

    async with order_service(user_of=lambda request: users.get(request.headers["authorization"]), seconds=0) as client:
        created = await client.http.post("/threads", json={}, headers=customers["ann.b"])
        thread = created.json()["thread"]
        assert (created.status_code, thread[:6]) == (201, "ann.b.")
        for name, status in [("ann", 404), ("", 401), ("ann.b", 202)]:
            response = await client.http.post(f"/threads/{thread}/messages", json=order, headers=customers[name])
            assert response.status_code == status
        turn = [(kind, data) async for _, kind, data in client.events(thread)]
        for path in ("", "/events", "/calls"):
            assert (await client.http.get(f"/threads/{thread}{path}", headers=customers["ann"])).status_code == 404
        for path in ("cancel", "resume", "calls/cancel"):
            refused = await client.http.post(f"/threads/{thread}/{path}", json={}, headers=customers["ann"])
            assert refused.status_code == 404
        [question] = dict(turn)["question"]
        own_answer = {"json": {question: ACCEPT}, "headers": customers["ann.b"]}
        assert (await client.http.post(f"/threads/{thread}/answers", **own_answer)).status_code == 403
        assert (await client.http.post("/threads", json={}, headers=customers[""])).status_code == 401
        answered = await client.answer(turn, ACCEPT, thread)

    assert kinds(answered)[-1] == "end"


async def test_without_users_each_new_thread_has_an_id_that_nobody_guesses() -> None:
    async with order_service(seconds=0) as client:
        ids = [(await client.http.post("/threads", json={})).json()["thread"] for _ in range(2)]

    assert len({thread_id for thread_id in ids if len(thread_id) == 32}) == 2


ID = "0" * 32
REFUSED: list[tuple[int, str, dict[str, Any]]] = [
    (403, "answers", {"json": {ID: ACCEPT}, "headers": {"Authorization": "Bearer of a customer"}}),
    (400, "answers", {"json": ACCEPT}),
    (400, "answers", {"json": {}}),
    (400, "answers", {"json": [ACCEPT]}),
    (400, "messages", {"json": {"text": ["no text"]}}),
    (400, "messages", {"json": {}}),
    (400, "messages", {"content": "no JSON", "headers": {"Content-Type": "application/json"}}),
    (400, "messages", {"content": "[" * 10_000, "headers": {"Content-Type": "application/json"}}),
    (413, "messages", {"json": {"text": "x" * 20_000}}),
    (400, "messages", {"json": {"text": "hi", "give_up": "no"}}),
    (400, "messages", {"content": '{"text": "\\ud800"}', "headers": {"Content-Type": "application/json"}}),
    (415, "messages", {"content": '{"text": "hi"}', "headers": {"Content-Type": "text/plain"}}),
    (415, "cancel", {}),
    (404, "cancel", {"json": {}}),
    (415, "calls/cancel", {}),
    (404, "calls/cancel", {"json": {"id": "call_1"}}),
    (404, "calls/cancel", {"json": {"id": 1}}),
    (415, "resume", {}),
    (409, "resume", {"json": {}}),
    (400, "messages", {"json": {"text": "hi"}, "headers": {"Host": "evil.example"}}),
]
"""A page of another site may send plain text without being asked, and may have a name that resolves to the service."""


# The client in the same process leaves its generator of a body that the service does not read.
@pytest.mark.filterwarnings("ignore:Async generator 'httpx2._content:ResourceWarning")
async def test_requests_that_a_service_should_not_serve_are_refused() -> None:
    async with order_service(seconds=0) as client:
        for status, path, request in REFUSED:
            response = await client.http.post(f"/threads/ann/{path}", **request)
            assert response.status_code == status, request
        assert (await client.http.get("/threads/ann")).json() == {"messages": [], "questions": {}, "unfinished": False}


async def test_a_probe_that_names_the_address_of_a_pod_reads_the_checks_and_nothing_else() -> None:
    headers = {"Host": "10.0.0.7:8000"}
    async with order_service(seconds=0) as client:
        statuses = {
            path: (await client.http.get(path, headers=headers)).status_code
            for path in ("/live", "/ready", "/threads/ann", "/elsewhere")
        }

    assert statuses == {"/live": 200, "/ready": 200, "/threads/ann": 400, "/elsewhere": 400}


async def test_without_a_key_nobody_answers_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.applications.record_services.KEY", "")
    async with order_service(seconds=0) as client:
        response = await client.http.post(
            "/threads/ann/answers", json={ID: ACCEPT}, headers={"Authorization": "Bearer "}
        )
    assert response.status_code == 403


@pytest.mark.parametrize(("order", "cents"), [("A-1", 4991), ("A-1", 0), ("A-1", -1), ("nope", 1), ("A-1 1 k\nA-3", 1)])
async def test_a_refund_that_the_model_makes_up_is_not_paid(tmp_path: Path, order: str, cents: int) -> None:
    shop = example("order_service").Shop(tmp_path / "refunds.txt", 0)
    node = ToolNode([shop.refund])
    [message] = (await node.ainvoke({"messages": [calls(tool_call("refund", order=order, cents=cents))]}))["messages"]

    assert message.content.startswith(("not refunded", "there is no order"))
    assert not shop.ledger.exists()


async def test_a_wrong_answer_keeps_the_question(tmp_path: Path) -> None:
    async with order_service(seconds=0) as client:
        question_turn = await client.say("Please refund order A-1.")
        [(kind, text)] = await client.answer(question_turn, {"type": "edit"})
        answered = await client.answer(question_turn, ACCEPT)

    assert kind == "error"
    assert 'Answer with {"type": "accept"}' in text
    assert dict(answered)["result"]["status"] == "success"


async def test_a_denied_refund_is_not_paid(tmp_path: Path) -> None:
    ledger = tmp_path / "refunds.txt"
    async with order_service(ledger=ledger, seconds=0) as client:
        denied = await client.answer(await client.say("Please refund order A-1."), {"type": "ignore"})

    assert dict(denied)["result"]["status"] == "error"
    assert not ledger.exists()


@pytest.fixture
def server_with_a_handler() -> Iterator[None]:
    """Handle SIGTERM as a server does; without a handler, `drain_on_signal` would cancel the test after the drain."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("server_with_a_handler")
async def test_a_draining_service_is_alive_and_not_ready_and_ends_its_turns() -> None:
    async with order_service(seconds=0.2) as client, anyio.create_task_group() as group:
        turns: list[Turn] = []

        async def say() -> None:
            turns.append(await client.say("Where is order A-1?"))

        assert (await client.http.get("/ready")).status_code == 200
        group.start_soon(say)
        while not (await client.http.get("/threads/ann")).json()["unfinished"]:
            await anyio.sleep(0.01)
        client.app.state.shutdown.begin()
        refused = await client.http.post("/threads/bob/messages", json={"text": "Where is order A-1?"})
        checks = [(await client.http.get(path)).status_code for path in ("/live", "/ready")]

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert checks == [200, 503]
    assert kinds(turns[0])[-1] == "end"


def test_a_real_model_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is sent: there is no key, and no network."""
    pytest.importorskip("langchain_openai")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    module = example("order_service")

    assert module.agent_for(module.Shop(), "openai:gpt-5.1").name == "orders"


def run(*options: Any) -> None:
    example = [sys.executable, "-W", "error", ROOT / "examples" / "order_service.py"]
    done = subprocess.run([*example, *options], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "exit code 0" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.hangs_after(120)
def test_a_refund_that_a_kill_has_ended_is_asked_about_and_paid_once(tmp_path: Path) -> None:
    """The person who approved it is asked again, because the money may have moved."""
    module = example("order_service")
    first = module.Service(tmp_path, "--carrier", "60")
    first.post("/threads/ann/messages", {"text": "Please refund order A-1."})
    [question] = dict(first.turn("ann"))["question"]
    first.post("/threads/ann/answers", {question: ACCEPT})
    assert next(first.events("ann"))[1] == "progress"
    first.process.kill()
    first.process.wait(30)

    second = module.Service(tmp_path)
    try:
        second.post("/threads/ann/resume", {})
        [(question, [action])] = dict(second.turn("ann"))["question"].items()
        second.post("/threads/ann/answers", {question: ACCEPT})
        answered = dict(second.turn("ann"))
    finally:
        second.process.terminate()
        second.process.wait(30)

    assert action["description"].startswith("This call was begun")
    assert answered["result"]["text"] == "refunded 49.90 EUR for order A-1"
    assert len((tmp_path / "refunds.txt").read_text().splitlines()) == 1


@pytest.mark.exhaustive
@pytest.mark.hangs_after(120)
@pytest.mark.parametrize("server", [(), ("--trio",)], ids=["uvicorn", "hypercorn on trio"])
def test_a_drain_ends_runs_that_take_too_long_and_the_next_process_continues_them(
    tmp_path: Path, server: tuple[str, ...]
) -> None:
    """A word that the ended run has not read is read there, too."""
    module = example("order_service")
    first = module.Service(tmp_path, "--carrier", "60", "--drain", "0.5", *server)
    first.post("/threads/ann/messages", {"text": "Where is order A-1?"})
    turn = first.events("ann")
    assert next(kind for _, kind, _ in turn if kind != "result") == "progress"
    first.post("/threads/ann/messages", {"text": "I mean order A-2."})
    first.process.terminate()
    [*_, (_, kind, end)] = turn
    exit_code = first.process.wait(30)

    second = module.Service(tmp_path, "--carrier", "0", *server)
    try:
        second.post("/threads/ann/resume", {})
        resumed = second.turn("ann")
        texts = [message["text"] for message in second.get("/threads/ann")[1]["messages"] if message["type"] == "human"]
    finally:
        second.process.terminate()
        second.process.wait(30)

    assert (kind, end[-16:], exit_code) == ("error", "Resume the turn.", 3)
    assert texts == ["Where is order A-1?", "I mean order A-2."]
    assert resumed[-1][0] == "end"
    assert module.text(resumed) == "parcel P-2 is in Berlin."


@pytest.mark.exhaustive
@pytest.mark.hangs_after(240)
def test_its_conversations_survive_a_kill_on_postgres() -> None:
    with running_postgres() as server:
        run("--db", server.new_database())


@pytest.mark.exhaustive
@pytest.mark.hangs_after(120)
def test_it_runs_on_hypercorn_and_trio() -> None:
    pytest.importorskip("hypercorn")
    run("--trio")


@pytest.mark.exhaustive
@pytest.mark.hangs_after(120)
def test_it_prints_spans_and_makes_a_recording(tmp_path: Path) -> None:
    recording = tmp_path / "runs.jsonl"
    run("--traces", "console", "--record", recording)

    assert '"captures":true' in recording.read_text()
