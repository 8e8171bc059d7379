"""Look-up of the running event loop, which each thread remembers."""

import asyncio
from contextvars import copy_context
from typing import Any

import pytest
import sniffio
import trio

from callboard._loops._current import current_loop
from callboard._loops._protocol import EventLoop

WAIT = 20


async def found() -> EventLoop:
    return current_loop()


@pytest.mark.backends("asyncio")
async def test_a_callback_between_two_tasks_is_outside_of_the_loop() -> None:
    """A callback has no task whose scopes could be cancelled, whichever loop the thread remembers."""
    current_loop()
    running, said = asyncio.get_running_loop(), asyncio.Future[type[BaseException]]()

    def look() -> None:
        try:
            current_loop()
        except BaseException as error:
            said.set_result(type(error))

    # Without the tests' own mark of the library, which a callback would inherit.
    context = copy_context()
    context.run(sniffio.current_async_library_cvar.set, None)
    running.call_soon(look, context=context)
    assert issubclass(await asyncio.wait_for(said, WAIT), RuntimeError)


def test_trio_as_a_guest_of_asyncio_is_found() -> None:
    """Both loops run in one thread, in turns."""

    async def host() -> list[Any]:
        running, over = asyncio.get_running_loop(), asyncio.Future[Any]()
        outer = current_loop()

        async def guest() -> list[EventLoop]:
            await trio.lowlevel.checkpoint()
            return [current_loop(), current_loop()]

        trio.lowlevel.start_guest_run(
            guest, run_sync_soon_threadsafe=running.call_soon_threadsafe, done_callback=over.set_result
        )
        inner = (await asyncio.wait_for(over, WAIT)).unwrap()
        return [outer, *inner, current_loop()]

    outer, first, second, after = asyncio.run(host())
    assert (outer.name, first.name) == ("asyncio", "trio")
    assert first is second
    assert after is outer
