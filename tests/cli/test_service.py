"""The demo's service, client and database: real loopback, threads and a real file, on every backend."""

from pathlib import Path

import anyio
import httpx2
import pytest
from anyio import to_thread

from callboard._cli._demo import (
    CITIES,
    Stats,
    answer_for,
    http_client,
    make_node,
    query_database,
    running_service,
    temporary_database,
)
from callboard.testing import tool_call

pytestmark = pytest.mark.real_clock

PATIENCE = 30.0


async def test_the_service_answers_and_ends() -> None:
    with anyio.fail_after(PATIENCE):
        with running_service() as service:
            async with http_client() as client:
                response = await client.get(f"{service.url}/item/1")
                assert response.status_code == answer_for(1).status
                assert response.json()["item"] == 1
            assert service.stats == Stats(served=1, peak_in_flight=1)
        async with http_client() as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get(service.url)
            node = make_node(service.url, client, Path("no database"))
            [message] = (await node.ainvoke([tool_call("fetch", path="/item/1")]))["messages"]
            assert "Error: ConnectError" in message.content


async def test_a_hanging_request_can_be_cancelled_and_the_client_used_on() -> None:
    quick = [item for item in range(100) if answer_for(item).latency < 1.0][:4]
    with anyio.fail_after(PATIENCE), running_service() as service:
        async with http_client(connections=2) as client:
            with anyio.move_on_after(0.3) as scope:
                async with anyio.create_task_group() as group:
                    for _ in range(5):
                        group.start_soon(client.get, f"{service.url}/hang")
            assert scope.cancelled_caught
            for item in quick:
                response = await client.get(f"{service.url}/item/{item}")
                assert (response.status_code, response.json()["item"]) == (answer_for(item).status, item)
            while service.stats.in_flight:
                await anyio.sleep(0.02)
            assert service.stats == Stats(served=4, abandoned=2, peak_in_flight=2)


async def test_an_unknown_path_is_refused_and_the_client_used_on() -> None:
    with anyio.fail_after(PATIENCE), running_service() as service:
        async with http_client(connections=1) as client:
            for path in ("/nowhere", "/item/x", "/item/1/2"):
                assert (await client.get(f"{service.url}{path}")).status_code == 404
            assert (await client.get(f"{service.url}/item/1")).json()["item"] == 1


def test_the_failures_are_a_few_and_the_same_each_time() -> None:
    answers = [answer_for(item) for item in range(1_000)]
    assert answers == [answer_for(item) for item in range(1_000)]
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

    with temporary_database(rows=2_000) as path, anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for city in CITIES:
                group.start_soon(ask, path, city)
        assert sum(result["count"] for result in results.values()) == 2_000
        assert query_database(path, "nowhere") == {"count": 0, "total": 0}
        with temporary_database(rows=2_000) as again:
            assert {city: query_database(again, city) for city in CITIES} == results
    assert not path.exists()
