"""References to actors: used from any task, thread and event loop, across restarts, and after the actor's end."""

import asyncio
import copy
import gc
import inspect
import operator
import pickle
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import sniffio
import trio

from callboard import Actor, ActorDiedError, ActorGoneError, Backoff, Reply, Supervisor, child, handler, keyed, running

WAIT = 60
SOON = Backoff(first=0)


class Notebook(Actor):
    """Actor with lines of text."""

    fatal = (OSError,)

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.log: list[str] = []

    @handler
    async def append(self, line: str, *, times: int = 1) -> int:
        """Write a line, perhaps more than once."""
        self.lines += [line] * times
        return len(self.lines)

    @handler
    async def count(self) -> int:
        """How many there are."""
        return len(self.lines)

    @handler
    def size(self) -> int:
        """As many, counted in the actor's thread."""
        return len(self.lines)

    @handler(deferred=True)
    async def later(self, reply: Reply[str], line: str) -> None:
        """Answer when the mailbox has moved on."""
        reply.send(line)

    @handler
    async def hold(self) -> None:
        """Work until somebody cancels it, and take a moment to end."""
        self.log.append("began")
        try:
            await anyio.sleep(WAIT)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            self.log.append("ended")

    @handler(group="control")
    async def read_log(self) -> list[str]:
        return list(self.log)

    @handler
    async def burn(self) -> None:
        raise OSError("burnt")


async def in_a_task(fn: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    outcomes: list[Any] = []

    async def ask() -> None:
        try:
            outcomes.append(await fn())
        except Exception as error:
            outcomes.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
    return _outcome(outcomes)


def _outcome(outcomes: list[Any]) -> Any:
    if isinstance(outcomes[0], BaseException):
        raise outcomes[0]
    return outcomes[0]


async def in_a_worker_thread(fn: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await anyio.to_thread.run_sync(anyio.from_thread.run, fn)


async def in_an_asyncio_of_its_own(fn: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await _in_a_plain_thread(lambda: asyncio.run(fn()))


async def in_a_trio_of_its_own(fn: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await _in_a_plain_thread(lambda: trio.run(fn))


async def _in_a_plain_thread(fn: Callable[[], Any]) -> Any:
    """Run the function in a thread without the caller's context variables."""
    outcomes: list[Any] = []
    ended = threading.Event()

    def work() -> None:
        try:
            outcomes.append(fn())
        except BaseException as error:
            outcomes.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not ended.is_set():
        await anyio.sleep(0.002)
    thread.join()
    return _outcome(outcomes)


PLACES = [in_a_task, in_a_worker_thread, in_an_asyncio_of_its_own, in_a_trio_of_its_own]


@pytest.mark.real_clock
async def test_a_reference_is_used_from_any_task_thread_and_event_loop() -> None:
    async with running(Notebook) as book:
        for number, call_from in enumerate(PLACES, 1):
            assert await call_from(lambda: book.append("a")) == number
            assert await call_from(book.size) == number
            assert await call_from(lambda: book.later("x")) == "x"


@pytest.mark.real_clock
async def test_a_reference_leads_to_the_next_life_and_says_that_there_is_none() -> None:
    async with Supervisor([child(Notebook, poison=9)], backoff=SOON, intensity=9) as tree:
        book = tree[Notebook]
        for call_from in PLACES:
            with pytest.raises(ActorDiedError, match="burnt"):
                await call_from(book.burn)
            assert await call_from(lambda: book.append("a")) == 1
    for call_from in PLACES:
        with pytest.raises(ActorGoneError, match="Notebook is not there: its supervisor has ended"):
            await call_from(book.count)


@pytest.mark.real_clock
@pytest.mark.parametrize("library", ["asyncio", "trio"])
async def test_an_asker_on_another_loop_that_is_cancelled_waits_for_the_end_of_its_handler(library: str) -> None:
    async with running(Notebook) as book:

        async def give_up() -> tuple[bool, list[str]]:
            assert sniffio.current_async_library() == library
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(book.hold)
                    while await book.read_log() != ["began"]:
                        await anyio.sleep(0.001)
                    scope.cancel()
            return scope.cancelled_caught, await book.read_log()

        run_in_loop = in_a_trio_of_its_own if library == "trio" else in_an_asyncio_of_its_own
        assert await run_in_loop(give_up) == (True, ["began", "ended"])
        assert await book.count() == 0


@pytest.mark.real_clock
@pytest.mark.parametrize("library", ["asyncio", "trio"])
async def test_a_loop_that_ends_takes_its_askers_back(library: str) -> None:
    """Calls from other loops raise once the loop of the actor has ended, instead of waiting forever."""
    books: list[Notebook] = []

    async def live() -> None:
        async with running(Notebook) as book:
            books.append(book)
            assert await book.append("a") == 1

    run_in_loop = in_a_trio_of_its_own if library == "trio" else in_an_asyncio_of_its_own
    await run_in_loop(live)
    with pytest.raises(ActorGoneError, match="its supervisor has ended"):
        await books[0].count()


async def test_what_a_reference_has_not_is_named_with_what_it_has() -> None:
    async with running(Notebook) as book:
        with pytest.raises(AttributeError, match=r"'apend' is none of them; did you mean 'append'\?"):
            operator.attrgetter("apend")(book)
        for name in ("lines", "start", "stop", "enter", "_handlers", "groups"):
            with pytest.raises(AttributeError, match=f"has its handlers only .*'{name}' is none of them"):
                getattr(book, name)
        assert not hasattr(book, "lines")


async def test_nothing_is_set_and_nothing_deleted_through_a_reference() -> None:
    """The state belongs to the actor's task and handlers are fixed, so attributes are read-only."""
    async with running(Notebook) as book:
        for name in ("lines", "append", "new"):
            with pytest.raises(AttributeError, match=f"'{name}' is set in a handler"):
                setattr(book, name, 1)
            with pytest.raises(AttributeError, match=name):
                delattr(book, name)
        cell = next(name for name in dir(type(book)) if name.startswith("_Reference__"))
        with pytest.raises(AttributeError, match="nothing of <reference to Notebook> can be deleted"):
            delattr(book, cell)
        assert await book.append("still there") == 1


async def test_a_reference_is_no_thing_to_pickle_and_its_own_copy() -> None:
    async with running(Notebook) as book:
        with pytest.raises(TypeError, match="<reference to Notebook> belongs to this process"):
            pickle.dumps(book)
        assert copy.copy(book) is book
        assert copy.deepcopy({"book": book})["book"] is book


async def test_references_are_equal_if_they_lead_to_the_same_actor() -> None:
    """References compare by the actor they lead to, so they work in sets and as keys. Similar actors are not equal."""
    async with Supervisor([child(Notebook, name="a"), child(Notebook, name="b")]) as tree, keyed(Notebook) as books:
        assert tree["a"] == tree["a"]
        assert len({tree["a"], tree["a"], tree["b"], books[1], books[1], books[2]}) == 4
        assert tree["a"] != tree["b"]
        assert tree["a"] != "a"
        assert repr(books[1]) == "<reference to Notebook[1]>"


async def test_the_methods_of_a_reference_are_those_of_the_actor_to_look_at() -> None:
    async with running(Notebook) as book:
        assert str(inspect.signature(book.append)) == "(line: str, *, times: int = 1) -> int"
        assert str(inspect.signature(book.later)).startswith("(line: str)")
        assert str(inspect.signature(type(book).append)).startswith("(self, line: str")
        assert (book.size.__name__, book.size.__doc__) == ("size", "As many, counted in the actor's thread.")
        assert type(book).__doc__ == Notebook.__doc__
        assert all(inspect.iscoroutinefunction(getattr(book, name)) for name in ("append", "size", "later"))


@pytest.mark.parametrize("args", [(), (1, 2, 3)])
async def test_arguments_that_do_not_fit_are_the_callers_error(args: tuple[Any, ...]) -> None:
    async with running(Notebook) as book:
        await book.append("a")
        with pytest.raises(TypeError, match="append"):
            await book.append(*args)
        assert await book.count() == 1


async def test_a_handler_may_have_any_name() -> None:
    """A handler may have a name that the reference itself uses."""

    class Hidden(Actor):
        @handler
        async def _cell(self) -> str:
            return "mine"

    async with running(Hidden) as hidden:
        assert await hidden._cell() == "mine"
        assert repr(hidden) == "<reference to Hidden>"


async def test_a_method_of_a_reference_that_is_not_awaited_asks_nothing() -> None:
    async with running(Notebook) as book:
        book.append("never").close()
        assert await book.count() == 0


async def test_a_reference_holds_nothing_of_an_actor_that_has_ended() -> None:
    class Heavy(Actor):
        instances: "list[weakref.ref[Heavy]]" = []

        async def start(self) -> None:
            self.instances.append(weakref.ref(self))

        @handler
        async def work(self) -> None:
            pass

    async with running(Heavy) as heavy:
        await heavy.work()
    await anyio.sleep(0.01)
    gc.collect()
    assert Heavy.instances[0]() is None
    with pytest.raises(ActorGoneError):
        await heavy.work()
