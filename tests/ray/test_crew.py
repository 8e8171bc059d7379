"""The pool of Ray actors, tested with fake Ray actors and without a cluster."""

from typing import ClassVar

import anyio
import pytest

pytest.importorskip("ray")

from callboard import ActorStartError
from callboard_actors.ray import _engine
from callboard_actors.ray._options import RayOptions

WAIT = 60


class _FakeHost:
    """Fake Ray actor that starts unless a failure is planned, and lives until it is lost."""

    failures: ClassVar[list[ActorStartError]] = []

    def __init__(self, title: str, terms: RayOptions) -> None:
        self.has_started = False
        self.lost = anyio.Event()

    @property
    def is_alive(self) -> bool:
        return not self.lost.is_set()

    @property
    def is_expected(self) -> bool:
        return self.is_alive

    async def start(self) -> None:
        if _FakeHost.failures:
            raise _FakeHost.failures.pop()
        self.has_started = True

    async def until_ended(self) -> str:
        await self.lost.wait()
        return "it is lost"

    async def end(self, reason: str) -> None:
        self.lost.set()


def _crew_of(monkeypatch: pytest.MonkeyPatch) -> _engine.Crew:
    monkeypatch.setattr(_engine, "HostProxy", _FakeHost)
    monkeypatch.setattr(_engine, "disconnect", lambda: None)
    terms = RayOptions(
        workers=1, concurrency=1, cpus=1, gpus=0, memory=None, grace=1, max_result=1,
        start_timeout=10, patience=10,
    )  # fmt: skip
    return _engine.Crew(terms, lambda: None)


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("failures", "left"),
    [
        pytest.param([ActorStartError("RayEngine", "its process died")] * 2, None, id="two-lost"),
        pytest.param([ActorStartError("RayEngine", "its process died")] * 4, 1, id="always-lost"),
        pytest.param([ActorStartError("RayEngine", "it has Python 3.9", never=True)] * 2, 1, id="never"),
    ],
)
async def test_a_ray_actor_that_is_lost_at_the_start_is_started_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, failures: list[ActorStartError], left: int | None
) -> None:
    """On a busy machine Ray may lose a process while it starts; other versions, however, stay other versions."""
    crew = _crew_of(monkeypatch)
    monkeypatch.setattr(_engine, "_PAUSE", 0.0)
    monkeypatch.setattr(_FakeHost, "failures", list(failures))
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(crew.keep)
            await crew.until_ready()
            assert (crew.failure is None) == (left is None)
            assert len(_FakeHost.failures) == (left or 0)
            await crew.dismiss()
