"""Guarantees of a document store for the authors of rules, on every kind of server."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from callboard.extend import EVERYBODY, Away, Document, Done, Found, Rule, SharedDocuments, Written

from ._world import LEASE, WAIT, World, until

pytestmark = pytest.mark.real_clock

DOCUMENT = Document("shelf", "document", ("mark",))


class Heard:
    """Listener that records its notifications."""

    def __init__(self, store: SharedDocuments) -> None:
        self.documents: list[Document | None] = []
        store.listen(self)

    def heard(self, document: Document | None) -> None:
        self.documents.append(document)


async def follow(store: SharedDocuments, rule: Rule[Any], document: Document = DOCUMENT) -> Any:
    """Apply a rule to a document and return the result of the rule."""
    answers: list[Done[Any] | Away | Exception] = []
    store.change(document, rule, answers.append)
    await until(lambda: bool(answers))
    [answer] = answers
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Done)
    return answer.value


def write(text: str | None, **options: Any) -> Rule[None]:
    return lambda found: (Written(text=text, **options), None)


def look(found: Found) -> tuple[None, Found]:
    return None, found


def one_more(found: Found) -> tuple[Written, int]:
    count = int(found.text or "0") + 1
    return Written(text=str(count)), count


async def test_of_changes_by_many_processes_none_is_lost(world: World) -> None:
    """Each change sees the result of all earlier ones."""
    stores = [world.store() for _ in range(4)]
    counts: list[int] = []

    async def count(store: SharedDocuments) -> None:
        counts.extend([await follow(store, one_more) for _ in range(25)])

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for store in stores * 2:
                group.start_soon(count, store)

    assert sorted(counts) == list(range(1, 201))


@pytest.mark.parametrize("text", ["", "x" * 60_000, 'quote " slash \\ line \n', "é 漢 🎭", '{"a": "\\u0000"}'])
async def test_a_text_comes_back_as_it_was_written(world: World, text: str) -> None:
    """Another process reads the same text."""
    await follow(world.store(), write(text, lives=30.0))

    found = await follow(world.store(), look)

    assert found.text == text
    assert 20 < found.left <= 30


async def test_a_document_lives_as_long_as_was_said(world: World) -> None:
    """The lifetime is measured by the clock of the store; an expired document does not exist any more."""
    store = world.store()
    await follow(store, write("old", lives=0.3))
    assert (await follow(store, look)).text == "old"

    await world.pass_time(0.4)

    assert (await follow(store, look)).text is None
    await follow(store, write("new"))
    assert (await follow(store, look)).text == "new"


async def test_a_document_may_be_taken_away(world: World) -> None:
    """A removed document can be created again."""
    store = world.store()
    await follow(store, write("old"))
    await follow(store, write(None))
    assert (await follow(store, look)).text is None

    await follow(store, write("new"))

    assert (await follow(store, look)).text == "new"


async def test_a_change_sees_the_marks_that_its_process_has_set_before(world: World) -> None:
    """All processes see the same number of a mark, and it only increases."""
    one, other = world.store(), world.store()
    numbers = [(await follow(one, look)).marks]
    for _ in range(3):
        one.mark("shelf", "mark")
        numbers.append((await follow(one, look)).marks)

    assert sorted(set(numbers)) == numbers
    assert (await follow(other, look)).marks == numbers[-1]


async def test_those_are_told_who_are_to_be_told(world: World) -> None:
    """A write notifies one process or all; a mark notifies all."""
    one, other = world.store(), world.store()
    by_one, by_other = Heard(one), Heard(other)
    me = (await follow(one, look)).me
    assert me != (await follow(other, look)).me

    await follow(other, write("a", tell=frozenset((me,))), Document("shelf", "for one"))
    await follow(other, write("a", tell=frozenset((EVERYBODY,))), Document("shelf", "for all"))
    one.mark("shelf", "mark")
    await until(lambda: len(by_one.documents) == 3 and len(by_other.documents) == 2)

    names = [[document.name if document else None for document in one.documents] for one in (by_one, by_other)]
    assert names == [["for one", "for all", "mark"], ["for all", "mark"]]


async def test_a_rule_that_fails_is_an_error_of_who_asked(world: World) -> None:
    """Other rules are still applied."""
    store = world.store()

    def fails(found: Found) -> tuple[None, None]:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await follow(store, fails)

    assert await follow(store, one_more) == 1


async def test_what_is_tended_is_so_within_each_lease_until_it_is_not(world: World) -> None:
    """The rule of a tended document is applied within each lease until tending stops or its process ends."""
    store = world.store()
    stop: Callable[[], object] = store.tend(DOCUMENT, write("here", lives=LEASE))
    await world.pass_time(0.1)
    for _ in range(4):
        await world.pass_time(LEASE / 2)
        assert (await follow(store, look)).text == "here"

    stop()
    await world.pass_time(1.5 * LEASE)

    assert (await follow(store, look)).text is None


async def test_of_so_many_documents_those_go_that_have_least_to_live(world: World) -> None:
    """Documents with the shortest remaining lifetime are removed; those written without a maximum do not count."""
    store = world.store()
    await follow(store, write("x", lives=1.0), Document("shelf", "not counted"))
    for number in range(5):
        await follow(store, write("x", lives=20.0 + number, most=2), Document("shelf", f"{number}"))

    names = ["not counted", *map(str, range(5))]
    found = [(await follow(store, look, Document("shelf", name))).text for name in names]

    assert found == ["x", None, None, None, "x", "x"]


@pytest.mark.exhaustive
async def test_of_a_text_that_is_too_large_nothing_is_read(server_world: World) -> None:
    """An oversized text may come from another program; it can be overwritten."""
    await follow(server_world.store(), write("x" * 200_000))
    careful = server_world.store(largest=65_536)

    assert (await follow(careful, look)).text is None
    await follow(careful, write("small"))
    assert (await follow(careful, look)).text == "small"


@pytest.mark.exhaustive
async def test_other_prefixes_know_nothing_of_each_other(server_world: World) -> None:
    """Several applications can share a server by different prefixes."""
    await follow(server_world.store(), write("mine"))

    assert (await follow(server_world.store(prefix="other"), look)).text is None


@pytest.mark.exhaustive
async def test_what_nobody_waits_for_is_said_before_a_store_is_closed(server_world: World) -> None:
    """Changes without a waiting caller are sent before the store closes; so are changes that their answers cause."""
    store: Any = server_world.store()
    done: list[object] = []

    def then(answer: object) -> None:
        store._current_before.change(_errand(one_more))
        done.append(answer)

    store.change(DOCUMENT, one_more)
    store._current_before = store._client()
    store.change(DOCUMENT, one_more, then)
    store.close()

    assert len(done) == 1
    assert (await follow(server_world.store(), look)).text == "3"


def _errand(rule: Rule[Any]) -> Any:
    from callboard_actors._server.documents._changes import PendingChange

    return PendingChange(DOCUMENT, rule, None)


@pytest.mark.exhaustive
async def test_a_process_that_forgets_and_ends_is_heard(server_world: World) -> None:
    """A command-line program may forget a wrong result and exit at once."""
    store = server_world.store()
    before = (await follow(store, look)).marks
    short: Any = server_world.store()

    short.mark("shelf", "mark")
    short.close()

    assert (await follow(store, look)).marks > before


@pytest.mark.exhaustive
async def test_who_asks_a_store_that_is_closed_meanwhile_has_an_answer(server_world: World) -> None:
    """The caller would otherwise wait for ever."""
    store: Any = server_world.store()
    client = store._client()
    store.close()
    answers: list[object] = []
    errand = _errand(one_more)
    errand.on_answer = answers.append

    client.change(errand)

    assert "the store was closed" in str(answers[0])
