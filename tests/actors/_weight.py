"""Print the memory of an idle actor: `python -m tests.actors._weight BACKEND KIND`, in its own process."""

import gc
import sys
import tracemalloc

import anyio

from callboard import Actor, Reply, Supervisor, child, handler

WAIT = 60
COUNT = 1000


class Desk(Actor):
    """Handlers of every kind."""

    @handler
    async def work(self, query: str) -> str:
        """Answer."""
        return query

    @handler(group="reads")
    async def read(self, query: str) -> str:
        """Answer, beside others."""
        return query

    @handler(deferred=True)
    async def later(self, reply: Reply[str], query: str) -> None:
        """Answer by a reply."""
        reply.send(query)

    @handler
    async def fail(self, query: str) -> str:
        """Fail."""
        raise ValueError(query)

    @handler
    async def slow(self, query: str) -> str:
        """Answer too late."""
        await anyio.sleep(30)
        return query


class Alone(Actor):
    """Actor with one exclusive handler."""

    @handler
    async def work(self, query: str) -> str:
        """Answer."""
        return query


async def weight(kind: type[Alone] | type[Desk], count: int) -> float:
    """Return the bytes per actor, measured with this number of idle actors that have answered once."""
    children = [child(kind, name=str(number)) for number in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        async with Supervisor(children) as tree:
            async with anyio.create_task_group() as group:
                for unit in tree._tree.units:  # type: ignore[union-attr]
                    group.start_soon(unit.cell.ask, kind._handlers["work"], ("x",), {})  # type: ignore[attr-defined]
            gc.collect()
            return tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()


KINDS: dict[str, type[Alone] | type[Desk]] = {"alone": Alone, "in groups": Desk}


async def main(kind: str) -> None:
    """Warm up with one actor, so that one-time allocations are not counted, and then measure many."""
    with anyio.fail_after(WAIT):
        await weight(KINDS[kind], 1)
        print(await weight(KINDS[kind], COUNT))


if __name__ == "__main__":
    anyio.run(main, sys.argv[2], backend=sys.argv[1])
