"""Places of bodies in Ray actors, for random bodies that come, end, are cancelled, and lose their Ray actor."""

import random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

from callboard_actors.ray._places import Places

WAIT = 60


class _RayActor:
    """Fake Ray actor that counts its bodies."""

    def __init__(self) -> None:
        self.is_alive = True
        self.bodies: list[bool] = []
        """For each running body, whether it is a sync one."""


class _World:
    """Places with fake Ray actors, and bodies that check their neighbours whenever they have a place."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.places = Places[_RayActor](concurrency)
        self.actors: list[_RayActor] = []
        self.served = 0

    def add(self) -> None:
        self.actors.append(actor := _RayActor())
        self.places.add(actor)

    def lose(self, actor: _RayActor) -> None:
        actor.is_alive = False
        self.actors.remove(actor)
        self.places.remove(actor)

    async def run(self, *, is_sync: bool, seconds: float) -> None:
        while True:
            actor = self.places.take_nowait(is_sync=is_sync)
            if actor is None:
                actor = await self.places.take(is_sync=is_sync, patience=1e6, is_hopeless=lambda: False)
            assert actor is not None
            if actor.is_alive:
                break
        actor.bodies.append(is_sync)
        try:
            assert actor.bodies == [True] or not any(actor.bodies)
            assert len(actor.bodies) <= self.concurrency
            await anyio.sleep(seconds)
            self.served += 1
        finally:
            actor.bodies.remove(is_sync)
            self.places.give_back(actor, is_sync=is_sync)


@given(seed=st.integers(0, 2**32), concurrency=st.sampled_from([1, 2, 5, 100]))
@pytest.mark.parametrize("backend_name", ["asyncio", "trio"])
def test_a_sync_body_is_alone_and_each_body_is_served(backend_name: str, seed: int, concurrency: int) -> None:
    """Neither a cancelled body nor a lost Ray actor may keep a place, and a sync body waits for async ones to end."""
    chance = random.Random(seed)
    kinds = [(chance.random() < 0.3, chance.choice([0.0, 0.0, 0.001])) for _ in range(60)]

    async def main() -> None:
        world = _World(concurrency)
        cancelled = 0
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                scopes: list[anyio.CancelScope] = []

                async def run(*, is_sync: bool, seconds: float) -> None:
                    with anyio.CancelScope() as scope:
                        scopes.append(scope)
                        await world.run(is_sync=is_sync, seconds=seconds)
                    nonlocal cancelled
                    cancelled += scope.cancelled_caught

                for is_sync, seconds in kinds:
                    group.start_soon(lambda is_sync=is_sync, seconds=seconds: run(is_sync=is_sync, seconds=seconds))
                    match chance.randrange(6):
                        case 0:
                            await anyio.sleep(0)
                        case 1 if scopes:
                            chance.choice(scopes).cancel()
                        case 2 if len(world.actors) > 1:
                            world.lose(chance.choice(world.actors))
                        case 3 if len(world.actors) < 4:
                            world.add()
                        case _:
                            pass
                world.add()  # there may be none
        assert world.served + cancelled == len(kinds)
        # Every place is free again: a sync body finds each Ray actor empty.
        empty = [world.places.take_nowait(is_sync=True) for _ in world.actors]
        assert set(empty) == set(world.actors)

    anyio.run(main, backend=backend_name)


async def test_a_waiting_sync_body_gets_a_ray_actor_although_async_bodies_keep_coming() -> None:
    """Without a Ray actor that is kept free for it, it would wait as long as there are new async bodies."""
    places = Places[_RayActor](2)
    first, second = _RayActor(), _RayActor()
    places.add(first)
    places.add(second)
    for _ in range(3):
        assert places.take_nowait(is_sync=False) is not None
    order: list[tuple[str, _RayActor | None]] = []

    async def take(name: str, *, is_sync: bool) -> None:
        order.append((name, await places.take(is_sync=is_sync, patience=1e6, is_hopeless=lambda: False)))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: take("sync", is_sync=True))
            await anyio.wait_all_tasks_blocked()
            group.start_soon(lambda: take("async", is_sync=False))
            await anyio.wait_all_tasks_blocked()
            assert order == [], "the Ray actor with one body is kept free, the other one is full"
            places.give_back(first, is_sync=False)
            await anyio.wait_all_tasks_blocked()
            places.give_back(second, is_sync=False)
    assert [name for name, _ in order] in (["async", "sync"], ["sync", "async"])
    assert {actor for _, actor in order} == {first, second}


async def test_a_body_gives_up_where_no_ray_actor_lives() -> None:
    """Two checks in a row have to be hopeless, because a Ray actor that was lost may be about to be replaced."""
    places = Places[_RayActor](1)
    checks: list[bool] = [True, False, True, True]
    with anyio.fail_after(WAIT):
        with pytest.raises(TimeoutError):
            await places.take(is_sync=False, patience=0.01, is_hopeless=lambda: checks.pop(0) if checks else True)
    assert checks == []
    places.add(actor := _RayActor())
    assert places.take_nowait(is_sync=True) is actor, "the body that gave up left no trace"
