"""Servers are told to end during a call: answer, exit code, processes, journal.

The example, a uvicorn in its own program, itself has a call that finishes in time, and a process that is killed.
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from ._service import Service, ask, running_service, service_of, the_example, until, until_asked

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.hangs_after(180)]

APP = "tests.drain._served:app"


def server(module: str, *options: str, port: str = "--bind") -> Any:
    """Return the command of a server that imports the application."""

    def command(directory: Path, number: int, seconds: float) -> list[str]:
        address = ["--host", "127.0.0.1", "--port", str(number)] if port == "--port" else [port, f"127.0.0.1:{number}"]
        return [sys.executable, "-m", module, APP, *options, *address]

    pytest.importorskip(module)
    return command


@pytest.mark.backends("asyncio", "trio")
async def test_a_message_that_is_repeated_does_not_give_up_its_turn(tmp_path: Path) -> None:
    """A client repeats a request after a 503. As a new message it would book twice, and nobody would be asked."""
    app = service_of(tmp_path, 20.0)
    booking = {"text": "Bristol 60"}
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(client.post, "/oslo", json=booking))
            while not (tmp_path / "bookings").exists():
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        repeated = await client.post("/oslo", json=booking)
        continued = await client.post("/oslo", json={"text": ""})
        new_thread = await client.post("/rome", json={"text": ""})

    assert (repeated.status_code, repeated.json()["error"][:25]) == (409, "the last turn is not over")
    assert continued.status_code == 200
    assert len(continued.json()["questions"]) == 1
    assert (tmp_path / "bookings").read_text().count("Bristol") == 1
    assert new_thread.status_code == 409


def uvicorn() -> Any:
    return server("uvicorn", port="--port")


def gunicorn(graceful: int = 30) -> Any:
    pytest.importorskip("uvicorn_worker")
    worker = ("--worker-class", "uvicorn_worker.UvicornWorker", "--workers", "2")
    return server("gunicorn", *worker, "--graceful-timeout", str(graceful))


def hypercorn(worker: str, graceful: int = 30) -> Any:
    return server("hypercorn", "--worker-class", worker, "--graceful-timeout", str(graceful))


def program(module: str, backend: str) -> Any:
    """Return the command of the program that the page has for a server."""
    pytest.importorskip(module)
    return lambda _, number, seconds: [sys.executable, "-m", "tests.drain._served", module, backend, str(number)]


SERVERS: dict[str, Any] = {
    "uvicorn": uvicorn,
    "uvicorn in a program": lambda: program("uvicorn", "asyncio"),
    "gunicorn": gunicorn,
    "hypercorn on asyncio": lambda: hypercorn("asyncio"),
    "hypercorn on trio": lambda: hypercorn("trio"),
    "hypercorn in a program on asyncio": lambda: program("hypercorn", "asyncio"),
    "hypercorn in a program on trio": lambda: program("hypercorn", "trio"),
}
CODES = {"uvicorn": -15}
"""Exit codes after a drain without unknown calls, other than 0; a shell shows -15 as 143."""


def tell_to_end(service: Service, directory: Path, text: str) -> tuple[Any, int, float]:
    """Send SIGTERM during a call; return the client's answer, the exit code, and the seconds until the end."""
    answers: list[Any] = []
    client = service.post("/rome", text, answers)
    until_asked(directory, "Minerva")
    begun = time.monotonic()
    service.terminate()
    client.join(40)
    code = service.process.wait(40)
    return answers[0], code, time.monotonic() - begun


def tools_to_approve(directory: Path) -> list[str]:
    """Continue the thread in a new process; return the questions about calls whose outcome is unknown."""
    with running_service(directory) as service:
        status, body = ask(service.port, "POST", "/rome")
    assert status == 200
    return [question for question in body["questions"] if "This call was begun" in question]


@pytest.mark.parametrize("name", SERVERS)
def test_a_call_that_finishes_in_time_is_answered(name: str, tmp_path: Path) -> None:
    """Its client gets the result, and no process remains."""
    with running_service(tmp_path, 20, SERVERS[name]()) as service:
        answer, code, _ = tell_to_end(service, tmp_path, "Minerva 2")
        remaining = service.remaining()
    assert answer == (200, {"answer": "It is booked.", "questions": []})
    assert code == CODES.get(name, 0)
    assert remaining == []
    assert (tmp_path / "bookings").read_text() == "Minerva is asked\nMinerva is booked\n"


DRAINED = {
    "the example": 4,
    "uvicorn": -15,
    "uvicorn in a program": 4,
    "gunicorn": 0,
    "hypercorn in a program on asyncio": 4,
    "hypercorn in a program on trio": 4,
}


@pytest.mark.parametrize("name", DRAINED)
def test_a_call_that_takes_too_long_is_ended_by_the_drain(name: str, tmp_path: Path) -> None:
    """Its client gets a 503, and the next process asks about the call. Only a program of your own has the exit code."""
    command = the_example if name == "the example" else SERVERS[name]()
    with running_service(tmp_path, 0.5, command) as service:
        answer, code, seconds = tell_to_end(service, tmp_path, "Minerva 60")
        remaining = service.remaining()
    log = service.log.read_text()
    assert answer[0] == 503
    assert answer[1]["begun"]
    assert code == DRAINED[name]
    assert name != "the example" or "was drained: 0 finished, 1 ended; unknown: book (call '" in log
    assert seconds < 20
    assert remaining == []
    assert len(tools_to_approve(tmp_path)) == 1
    assert (tmp_path / "bookings").read_text() == "Minerva is asked\n"


CUT_OFF: dict[str, Any] = {
    "gunicorn": lambda: gunicorn(1),
    "hypercorn on asyncio": lambda: hypercorn("asyncio", 1),
    "hypercorn on trio": lambda: hypercorn("trio", 1),
}


@pytest.mark.parametrize("name", CUT_OFF)
def test_a_graceful_timeout_that_is_too_short_cuts_the_call_off(name: str, tmp_path: Path) -> None:
    """gunicorn kills its worker, hypercorn cancels the request. No client gets an answer, and the journal knows."""
    with running_service(tmp_path, 20, CUT_OFF[name]()) as service:
        answer, code, seconds = tell_to_end(service, tmp_path, "Minerva 60")
        remaining = service.remaining()
    assert isinstance(answer, Exception)
    assert code == 0
    assert seconds < 15
    assert remaining == []
    assert len(tools_to_approve(tmp_path)) == 1
    assert (tmp_path / "bookings").read_text() == "Minerva is asked\n"


def test_a_second_sigterm_ends_at_once_what_runs(tmp_path: Path) -> None:
    """A second signal means that there is no time for the drain."""
    answers: list[Any] = []
    with running_service(tmp_path, 600) as service:
        client = service.post("/rome", "Minerva 600", answers)
        until_asked(tmp_path, "Minerva")
        service.terminate()
        until(service.refuses_connections)
        service.terminate()
        client.join(30)
        code = service.process.wait(30)
    assert [answer[0] for answer in answers] == [503]
    assert code == 4
