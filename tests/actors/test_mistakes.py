"""Mistakes in actor definitions raise an early error that names the value and the remedy."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import pytest

from callboard import Actor, InMemorySnapshots, Reply, Supervisor, ToolNode, child, handler, keyed, running, tool_call
from tests.helpers import keep, live_tasks


class Notebook(Actor):
    """Correct actor that the mistakes are variations of."""

    log: list[str] = []

    def __init__(self, path: str = "a") -> None:
        self.path = path

    async def stop(self) -> None:
        self.log.append(self.path)

    @handler
    async def append(self, line: str) -> str:
        return line

    @handler(deferred=True)
    async def later(self, reply: Reply[int]) -> None:
        KEPT.append(reply)


class Journal(Actor):
    """Actor with a handler that is a tool."""

    @handler
    async def append(self, line: str) -> str:
        """Append a line."""
        return line


class Needy(Actor):
    def __init__(self, path: str, *, mode: str = "r") -> None:
        self.path = path


KEPT: list[Reply[int]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    KEPT.clear()
    Notebook.log.clear()


def a_class(base: Any = Actor, /, **body: Any) -> Callable[[], object]:
    return lambda: type("Book", (base,), body)


def overrides() -> object:
    class Book(Notebook):
        async def append(self, line: str) -> str:
            return line

    return Book


def twice() -> object:
    class Book(Actor):
        @handler
        async def read(self) -> None: ...

        @handler(group="reads")  # type: ignore[no-redef]
        async def read(self) -> None: ...  # noqa: F811  # pyright: ignore[reportRedeclaration]

    return Book


def hides() -> object:
    class Book(Actor):
        @handler
        async def read(self) -> None: ...

        async def read(self) -> None: ...  # type: ignore[no-redef]  # noqa: F811  # pyright: ignore[reportRedeclaration]

    return Book


@handler
async def read(self: Any) -> None: ...


@handler(group="reads")
async def grouped(self: Any) -> None: ...


async def agen(self: Any) -> AsyncGenerator[int]:
    yield 1


def gen(self: Any) -> Any:
    yield 1


def plain(self: Any) -> None: ...


async def no_self() -> None: ...


async def only_self(self: Any) -> None: ...


async def by_name(self: Any, *, reply: Any) -> None: ...


Make = Callable[[], object]
CLASSES: dict[str, tuple[Make, type[Exception], str]] = {
    "a handler that is overridden": (
        overrides,
        TypeError,
        r"Book\.append overrides a handler .* mark it with @handler",
    ),
    "a handler that is hidden": (twice, TypeError, r"Book\.read is there twice: .* give it another name"),
    "a handler that is hidden by a method": (
        hides,
        TypeError,
        r"Book\.read is there twice: the second, which is no handler, .* mark it with @handler",
    ),
    "an async generator": (lambda: handler(agen), TypeError, "agen is a generator; a handler returns one result"),
    "a generator": (lambda: handler(gen), TypeError, "gen is a generator; a handler returns one result"),
    "no function": (lambda: handler(3), TypeError, "@handler marks a method of an actor, got 3"),  # type: ignore[call-overload]
    "a group by position": (lambda: handler("reads"), TypeError, r"got 'reads'; .* handler\(group='reads'\)"),  # type: ignore[call-overload]
    "a static method": (a_class(read=staticmethod(read)), TypeError, r"Book\.read is a staticmethod"),
    "a class method": (a_class(read=classmethod(read)), TypeError, r"Book\.read is a classmethod"),
    "no self": (lambda: handler(no_self), TypeError, "no_self takes no `self`"),  # type: ignore[type-var]
    "no reply": (lambda: handler(deferred=True)(only_self), TypeError, "only_self is deferred, and takes no reply"),  # type: ignore[arg-type]
    "a reply by name": (lambda: handler(deferred=True)(by_name), TypeError, "by_name is deferred, and takes no reply"),  # type: ignore[arg-type]
    "start": (a_class(start=read), TypeError, r"Book\.start is called by the actor itself; it cannot be a handler"),
    "stop": (a_class(stop=read), TypeError, r"Book\.stop is called by the actor itself"),
    "a dunder": (a_class(__eq__=read), TypeError, r"Book\.__eq__ .* is Python's own"),
    "start that yields": (a_class(start=agen), TypeError, r"Book\.start is a generator, .* self\.enter\("),
    "a plain start that yields": (a_class(start=gen), TypeError, r"Book\.start is a generator, .* self\.enter\("),
    "stop that yields": (a_class(stop=agen), TypeError, r"Book\.stop is a generator"),
    "snapshot that yields": (a_class(snapshot=gen, restore=plain), TypeError, r"Book\.snapshot is a generator"),
    "a group misspelt": (
        a_class(read=grouped, groups={"raeds": 2}),
        ValueError,
        "Book.groups: no handler is of the group 'raeds'; did you mean 'reads'",
    ),
    "a group of none": (a_class(read=grouped, groups={"reads": 0}), ValueError, r"Book\.groups\['reads'\].*0"),
    "a group of two and a half": (a_class(read=grouped, groups={"reads": 2.5}), TypeError, r"groups\['reads'\].*2\.5"),
    "groups in a list": (a_class(read=grouped, groups=["reads"]), TypeError, r"is a mapping, .*got \['reads'\]"),
    "a number of control": (a_class(read=grouped, groups={"control": 1}), ValueError, "'control' never wait"),
    "a group without a name": (lambda: handler(group=""), TypeError, r"handler\(group=...\) is a name, .*got ''"),
    "a plain one in a group": (
        lambda: a_class(read=handler(group="reads")(plain))(),
        TypeError,
        "Book.read is a plain function.*`async def`",
    ),
    "fatal as one": (a_class(fatal=OSError), TypeError, r"Book\.fatal is a tuple .* got <class 'OSError'>"),
    "fatal as a list": (a_class(fatal=[OSError]), TypeError, r"Book\.fatal is a tuple"),
    "fatal of texts": (a_class(fatal=("OSError",)), TypeError, r"Book\.fatal has exceptions, .* got 'OSError'"),
    "fatal of objects": (a_class(fatal=(OSError(),)), TypeError, r"Book\.fatal has exceptions, .* got OSError\(\)"),
    "no restore": (a_class(snapshot=plain), TypeError, r"Book has `snapshot` and no `restore`"),
    "no snapshot": (a_class(restore=plain), TypeError, r"Book has `restore` and no `snapshot`"),
    "an option of a handler misspelt": (lambda: handler(grup="a"), TypeError, "'grup'; did you mean 'group'"),  # type: ignore[call-overload]
    "on_cancel misspelt": (lambda: handler(on_cancel="stop"), ValueError, r"'go_on', 'restart'\), got 'stop'"),  # type: ignore[call-overload]
    "reentrant as text": (lambda: handler(reentrant="yes"), TypeError, r"True or False, got 'yes'"),  # type: ignore[call-overload]
}


def c(*args: Any, **terms: Any) -> Make:
    return lambda: child(*(args or (Notebook,)), **terms)


def s(children: Any = (Notebook,), **options: Any) -> Make:
    return lambda: Supervisor(children, **options)


class Kept(Notebook):
    def snapshot(self) -> int:
        return 1

    def restore(self, snapshot: int) -> None: ...


TERMS: dict[str, tuple[Make, type[Exception], str]] = {
    "the base class": (c(Actor), TypeError, r"child\(Actor\): a class of your own is needed"),
    "an object of the base class": (c(Actor()), TypeError, r"child\(Actor\): a class of your own is needed"),
    "another class": (c(dict), TypeError, "subclass of Actor, or the class; got <class 'dict'>"),
    "a text": (c("Notebook"), TypeError, "got 'Notebook'"),
    "arguments twice": (c(Notebook("a"), "b"), TypeError, r"child\(Notebook\(...\), ...\): .*got \('b',\) besides"),
    "arguments missing": (c(Needy), TypeError, r"child\(Needy\): missing .*'path'; .*child\(Needy\(\.\.\.\)\)"),
    "too many arguments": (c(Needy, 1, 2), TypeError, r"child\(Needy\): too many .*child\(Needy\(\.\.\.\)\)"),
    "an argument by name": (c(Needy, path="a"), TypeError, "'path'"),
    "an option misspelt": (c(restrat="never"), TypeError, "'restrat'; did you mean 'restart'"),
    "restart": (c(restart="always"), ValueError, r"child\(Notebook\): restart is one of .*, got 'always'"),
    "no name": (c(name=""), TypeError, r"child\(name=...\) is a text, got ''"),
    "a name of another kind": (c(name=3), TypeError, r"child\(name=...\) is a text, got 3"),
    "no mailbox": (c(mailbox=0), ValueError, r"child\(Notebook\): mailbox.*0"),
    "when_full": (c(when_full="drop"), ValueError, r"when_full is one of .*, got 'drop'"),
    "poison": (c(poison=0), ValueError, r"child\(Notebook\): poison.*0"),
    "no time to start": (c(start_timeout=0), ValueError, r"child\(Notebook\): start_timeout.*0"),
    "for ever as None": (c(stop_timeout=None), TypeError, r"stop_timeout is .* got None; float\('inf'\) is for ever"),
    "a time as text": (c(max_age="1h"), TypeError, r"max_age.*'1h'"),
    "calls": (c(max_calls=0), ValueError, r"max_calls.*0"),
    "cap": (c(cap=0), ValueError, r"cap.*0"),
    "idle": (c(idle=0), ValueError, "idle must be more than 0"),
    "prefix": (c(prefix=None), TypeError, r"prefix is a text, such as 'browser_'; got None"),
    "a key that is none": (c(key="thread_id"), TypeError, r"child\(Notebook\): key.*'thread_id'"),
    "save": (c(Kept, save="always"), ValueError, r"save is one of .*, got 'always'"),
    "nothing to save": (c(save="each_call"), ValueError, "Notebook needs snapshot and restore"),
    "nothing to store": (c(snapshots=InMemorySnapshots()), ValueError, "Notebook needs snapshot and restore"),
    "no store": (c(Kept, snapshots={}), TypeError, r"child\(Kept\): snapshots .*`load` and `save`.*got \{\}"),
    "one child": (s(Notebook), TypeError, r"takes a list of actors, .*got <class"),
    "children by name": (s({"a": Notebook}), TypeError, r"takes a list of actors"),
    "a child that is none": (s([3]), TypeError, "got 3"),
    "two of one name": (s([Notebook, Notebook("b")]), ValueError, r"two children are named 'Notebook'; .*name='other'"),
    "a key in a supervisor": (s([child(Notebook, cap=3)]), ValueError, r"child\(Notebook\): key, cap and idle are for"),
    "an intensity in a supervisor": (s([child(Notebook, intensity=9)]), ValueError, r"Supervisor\(intensity=...\)"),
    "a prefix in a supervisor": (s([child(Notebook, prefix="a_")]), ValueError, r"child\(Notebook\): prefix is for"),
    "a supervisor's option": (s(intensty=3), TypeError, "'intensty'; did you mean 'intensity'"),
    "a supervisor's name": (s(name=3), TypeError, r"Supervisor\(name=...\) is a text, got 3"),
    "strategy": (s(strategy="one_for_none"), ValueError, r"Supervisor\(strategy=...\) is one of .* got 'one_for_none'"),
    "intensity": (s(intensity=-1), ValueError, r"Supervisor\(intensity=...\).*-1"),
    "period": (s(period=None), TypeError, r"Supervisor\(period=...\) is a number of seconds, got None"),
    "backoff": (s(backoff=3), TypeError, r"Supervisor\(backoff=...\) takes a Backoff, .*got 3"),
    "a cap without a key": (
        lambda: ToolNode([child(Notebook, cap=4)]),
        ValueError,
        r"child\(Notebook, cap=4\) .* node 'tools' has one for all of its calls; give it key=",
    ),
    "a class in a node": (lambda: ToolNode([Needy]), TypeError, r"it is a class: write Needy\(\.\.\.\)"),
}


@pytest.mark.parametrize("name", [*CLASSES, *TERMS])
def test_what_is_wrong_with_a_class_or_with_terms_is_said_when_they_are_made(name: str) -> None:
    make, kind, match = {**CLASSES, **TERMS}[name]
    with pytest.raises(kind, match=match):
        make()


BLOCKS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "terms twice": (
        lambda: running(child(Notebook), name="b"),
        TypeError,
        r"running\(child\(...\)\): .*got \{'name': 'b'\} besides",
    ),
    "terms twice, by key": (
        lambda: keyed(child(Notebook), cap=3),
        TypeError,
        r"keyed\(child\(...\)\): .*got \{'cap': 3\} besides",
    ),
    "an option misspelt": (lambda: running(Notebook, nme="b"), TypeError, "'nme'; did you mean 'name'"),
    "an option misspelt, by key": (lambda: keyed(Notebook, cp=3), TypeError, "'cp'; did you mean 'cap'"),
    "a key": (lambda: keyed(Notebook, key=lambda call: 1), ValueError, r"keyed\(...\) .* in brackets.*key=... is for"),
    "arguments missing": (lambda: running(Needy), TypeError, "'path'"),
    "a key without a node": (lambda: running(Notebook, key=lambda call: 1), ValueError, "are for a node"),
}


@pytest.mark.parametrize("name", BLOCKS)
async def test_what_is_wrong_with_a_block_is_said_when_it_is_entered(name: str) -> None:
    """A block that cannot be entered leaves no actor running."""
    make, kind, match = BLOCKS[name]
    before = live_tasks()
    with pytest.raises(kind, match=match):
        async with make():
            pytest.fail("it was entered")
    assert live_tasks() == before


async def test_an_actor_that_runs_alone_has_the_intensity_it_was_given() -> None:
    class Mortal(Notebook):
        fatal = (OSError,)

        @handler
        async def die(self) -> None:
            raise OSError

    with pytest.raises(Exception, match="Mortal ended 1 times within 7 s"):
        async with running(Mortal, intensity=0, period=7) as mortal:
            with pytest.raises(Exception, match="died"):
                await mortal.die()
            await anyio.sleep_forever()


async def test_a_supervisor_has_one_block_at_a_time() -> None:
    tree = Supervisor([Notebook], name="mine")
    for _ in range(2):
        async with tree:
            with pytest.raises(RuntimeError, match=r"name='mine'\) is running already; one block at a time"):
                await tree.__aenter__()
            assert await tree[Notebook].append("x") == "x"


async def test_a_supervisor_that_is_left_in_another_task_stops_its_children_and_says_so() -> None:
    """Leaving the block in another task is an error, but its children, such as a browser, must not run on."""
    tree = Supervisor([child(Notebook("a"), name="a"), child(Notebook("b"), name="b")], name="mine")
    came_to: list[str] = []

    async def leave() -> None:
        with pytest.raises(RuntimeError, match=r"was left in another task .*; its actors were stopped") as caught:
            await tree.__aexit__(None, None, None)
        came_to.append(str(caught.value))

    await tree.__aenter__()
    async with anyio.create_task_group() as group:
        group.start_soon(leave)
    assert came_to
    assert Notebook.log == ["b", "a"]
    with pytest.raises(RuntimeError, match="is not running"):
        tree["a"]
    await tree.__aexit__(None, None, None)  # the scope belongs to the owner, so the owner leaves it
    with pytest.raises(RuntimeError, match="is left twice"):
        await tree.__aexit__(None, None, None)


async def test_a_child_that_is_not_there_is_named_with_those_that_are() -> None:
    inner = Supervisor([child(Notebook, name="same"), child(Needy, "a", name="needy")], name="inner")
    tree = Supervisor([child(Notebook, name="same"), inner])
    with pytest.raises(RuntimeError, match=r"is not running: async with Supervisor"):
        tree["same"]
    async with tree:
        with pytest.raises(KeyError, match=r"no actor 'nedy', only \['same', 'same', 'needy'\]; did you mean 'nee"):
            tree["nedy"]
        with pytest.raises(KeyError, match="no actor 'Kept'"):
            tree[Kept]
        with pytest.raises(KeyError, match="no actor 3, only"):
            tree[3]  # type: ignore[call-overload]
        with pytest.raises(KeyError, match="same is there 2 times; give one another name"):
            tree["same"]
    async with Supervisor([child(Notebook, name="a"), child(Notebook, name="b")]) as tree:
        with pytest.raises(KeyError, match=r"Notebook is there 2 times: \['a', 'b'\]; ask by name"):
            tree[Notebook]


def test_a_method_may_be_made_a_handler_under_another_name() -> None:
    class Book(Actor):
        async def _read(self) -> str:
            return "a line"

        read = handler(_read)

    assert list(Book._handlers) == ["read"]


async def test_a_key_that_cannot_be_hashed_names_whose_it_is_and_what_to_write() -> None:
    """The error names the key function of a node, or the subscript in a block, and says what to return instead."""
    node = ToolNode([child(Journal, key=lambda call: [call["name"]])])
    with pytest.raises(TypeError, match=r"child\(Journal\): key: .*lambda.* gave a list as a key.*tuple\(\.\.\.\)"):
        await node.ainvoke([tool_call("append", line="a")])
    async with keyed(Notebook) as books:
        with pytest.raises(TypeError, match=r"Notebook\[\.\.\.\] gave a list as a key"):
            books[["a"]]  # type: ignore[index]


async def test_a_handler_of_a_description_is_no_call() -> None:
    """A handler called on a description has no running actor to answer it, even inside another actor."""
    description = Notebook()

    class Other(Actor):
        @handler
        async def ask(self) -> str:
            return await description.append("x")

    with pytest.raises(TypeError, match=r"only describes an actor .* async with running\(Notebook\(\.\.\.\)\)"):
        await description.append("x")
    async with running(Other) as asker:
        with pytest.raises(TypeError, match=r"only describes an actor"):
            await asker.ask()


async def test_a_reply_is_sent_once_and_fails_with_an_error_only() -> None:
    came_to: list[object] = []
    async with running(Notebook) as book, anyio.create_task_group() as group:
        group.start_soon(keep, came_to, book.later())
        await anyio.sleep(1)
        reply = KEPT.pop()
        for wrong in ("no", ValueError):
            with pytest.raises(TypeError, match=r"Notebook\.later: .*fail\(\) takes an exception, .*got"):
                reply.fail(wrong)  # type: ignore[arg-type]
        error = ValueError("no")
        assert reply.fail(error)
        for send_again in (lambda: reply.send(1), lambda: reply.fail(error)):
            with pytest.raises(RuntimeError, match=r"the reply of Notebook\.later has been sent already"):
                send_again()
        await anyio.sleep(1)
        assert came_to == [error]


async def test_what_cannot_be_entered_is_named() -> None:
    class Wrong(Actor):
        async def start(self) -> None:
            await self.enter(3)  # type: ignore[arg-type]

    with pytest.raises(Exception, match=r"Wrong\.enter\(\) takes a context manager, .*got 3"):
        async with running(Wrong):
            pytest.fail("it has started")
