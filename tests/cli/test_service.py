"""The demo's service, client and database: a real process, real loopback and a real file, on every backend."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from anyio import to_thread
from anyio.abc import Process

from callboard._cli._demo import CITIES, http_client, make_node, query_database, temporary_database
from callboard._cli._service import answer_for, running_service
from callboard.testing import tool_call

pytestmark = pytest.mark.real_clock

SEED = 7
PATIENCE = 30.0

PARENT = """
import anyio
from callboard._cli._service import running_service

async def main():
    async with running_service(7) as url:
        print(url, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def stats(url: str) -> dict[str, int]:
    async with http_client(connections=1) as client:
        response = await client.get(f"{url}/stats")
    assert response.status_code == 200
    content: dict[str, int] = response.json()
    return content


async def listens(url: str) -> bool:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    try:
        stream = await anyio.connect_tcp(address.hostname, address.port)
    except OSError:
        return False
    await stream.aclose()
    return True


async def wait_until_gone(url: str) -> None:
    while await listens(url):
        await anyio.sleep(0.02)


async def first_line(process: Process) -> str:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        line += await process.stdout.receive()
    return line.decode().strip()


def items(count: int, *, slow: bool = False) -> list[int]:
    """Return the first items that the seed makes quick, or slow."""
    return [item for item in range(count * 100) if (answer_for(SEED, item).latency > 1.0) is slow][:count]


async def test_the_service_starts_answers_and_ends() -> None:
    with anyio.fail_after(PATIENCE):
        async with running_service(SEED) as url, http_client() as client:
            response = await client.get(f"{url}/item/1")
            assert response.status_code == answer_for(SEED, 1).status
            assert response.json()["item"] == 1
            assert await stats(url) == {"served": 1, "abandoned": 0, "in_flight": 0, "peak_in_flight": 1}
        assert not await listens(url)


async def test_the_service_ends_when_the_block_raises() -> None:
    url = ""
    with anyio.fail_after(PATIENCE):
        with pytest.raises(LookupError):
            async with running_service(SEED) as url:
                raise LookupError
        assert not await listens(url)


async def test_the_service_ends_when_the_block_is_cancelled() -> None:
    url = ""
    with anyio.fail_after(PATIENCE):
        with anyio.CancelScope() as scope:
            async with running_service(SEED) as url:
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert not await listens(url)


async def test_a_cancelled_start_leaves_nothing_behind() -> None:
    with anyio.fail_after(PATIENCE), anyio.CancelScope() as scope:
        scope.cancel()
        async with running_service(SEED):
            pytest.fail("the start was cancelled")
    assert scope.cancelled_caught


async def test_the_service_ends_with_its_killed_parent() -> None:
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process([sys.executable, "-c", PARENT], stderr=None) as parent:
            url = await first_line(parent)
            assert await listens(url)
            parent.kill()
            await parent.wait()
            await wait_until_gone(url)


async def test_the_module_runs_as_a_command() -> None:
    command = [sys.executable, "-m", "callboard._cli._service", "--seed", str(SEED)]
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(command, stderr=None) as process:
            word, port = (await first_line(process)).split()
            assert word == "listening"
            assert await listens(f"http://127.0.0.1:{port}")
            process.terminate()
            assert await process.wait() == 0


async def test_a_hanging_request_can_be_cancelled_and_the_client_used_on() -> None:
    with anyio.fail_after(PATIENCE):
        async with running_service(SEED) as url, http_client(connections=2) as client:
            with anyio.move_on_after(0.3) as scope:
                async with anyio.create_task_group() as group:
                    for _ in range(5):
                        group.start_soon(client.get, f"{url}/hang")
            assert scope.cancelled_caught
            for item in items(4):
                response = await client.get(f"{url}/item/{item}")
                assert (response.status_code, response.json()["item"]) == (answer_for(SEED, item).status, item)
            while (seen := await stats(url))["in_flight"]:
                await anyio.sleep(0.02)
            assert seen == {"served": 4, "abandoned": 2, "in_flight": 0, "peak_in_flight": 2}


async def test_the_model_reads_what_cannot_be_reached() -> None:
    with anyio.fail_after(PATIENCE):
        async with running_service(SEED) as url:
            pass
        async with http_client() as client:
            node = make_node(url, client, Path("no database"))
            [message] = (await node.ainvoke([tool_call("fetch", url=f"{url}/item/1")]))["messages"]
            assert "/item/1 did not answer: ConnectError" in message.content


async def test_an_unknown_path_is_refused_and_the_client_used_on() -> None:
    with anyio.fail_after(PATIENCE):
        async with running_service(SEED) as url, http_client(connections=1) as client:
            for path in ("/nowhere", "/item/x", "/item/1/2"):
                assert (await client.get(f"{url}{path}")).status_code == 404
            assert (await client.get(f"{url}/stats")).status_code == 200


async def test_the_failures_are_a_few_and_seeded() -> None:
    answers = [answer_for(SEED, item) for item in range(1_000)]
    assert answers == [answer_for(SEED, item) for item in range(1_000)]
    assert answers != [answer_for(SEED + 1, item) for item in range(1_000)]
    for few in (
        sum(answer.status == 500 for answer in answers),
        sum(answer.status == 503 for answer in answers),
        sum(answer.latency > 1.0 for answer in answers),
    ):
        assert 5 <= few <= 40


async def test_queries_from_threads_agree_with_the_file() -> None:
    results: dict[str, dict[str, int]] = {}

    async def ask(path: Path, city: str) -> None:
        results[city] = await to_thread.run_sync(query_database, path, city)

    with temporary_database(seed=SEED, rows=2_000) as path, anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for city in CITIES:
                group.start_soon(ask, path, city)
        assert sum(result["count"] for result in results.values()) == 2_000
        assert query_database(path, "nowhere") == {"count": 0, "total": 0}
        with temporary_database(seed=SEED, rows=2_000) as again:
            assert {city: query_database(again, city) for city in CITIES} == results
    assert not path.exists()
