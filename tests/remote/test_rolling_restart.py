"""Four workers are replaced one after the other under load: no call is lost, none runs twice."""

import signal
import statistics
import time
from pathlib import Path

import anyio
import pytest

from callboard.extend import Body

from . import _bodies as bodies
from ._commands import BODIES, Worker, engine

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.timeout(300)]
_CLIENTS = 6


@pytest.mark.backends("asyncio", "trio")
async def test_a_rolling_restart_of_four_workers_under_load_loses_and_doubles_no_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each worker exits with 0; each call has its effect once and returns its result."""
    path = tmp_path / "effects"
    workers = [Worker(BODIES) for _ in range(4)]
    taken: list[float] = []
    codes: list[int] = []
    is_over = False

    async def load(client: int) -> None:
        number = 0
        while not is_over:
            ident = f"{client}-{number}"
            began = time.monotonic()
            body = Body(fn=bodies.note_id, args=(str(path), ident, 0.02), title="note_id")
            assert await remote.run_body(body) == ident
            taken.append(time.monotonic() - began)
            number += 1

    try:
        with anyio.fail_after(240):
            async with engine(*workers, patience=30.0) as remote, anyio.create_task_group() as group:
                for client in range(_CLIENTS):
                    group.start_soon(load, client)
                for place, one in enumerate(workers):
                    one.signal(signal.SIGTERM)
                    codes.append(await anyio.to_thread.run_sync(one.wait))
                    one.close()
                    workers[place] = await anyio.to_thread.run_sync(lambda: Worker(BODIES, "--listen", one.address))  # noqa: B023
                    [link] = [link for link in remote._here("").links if str(link.address) == one.address]
                    while not link.is_up:
                        await anyio.sleep(0.01)
                is_over = True
    finally:
        for one in workers:
            one.close()

    noted = path.read_text().splitlines()
    quantiles = statistics.quantiles(taken, n=100)
    with capsys.disabled():
        print(f"\n{len(taken)} calls, p50 {quantiles[49] * 1e3:.0f} ms, p99 {quantiles[98] * 1e3:.0f} ms")
    assert codes == [0, 0, 0, 0]
    assert len(noted) == len(set(noted)) == len(taken)
    assert len(taken) > 100
