"""Guarantees of a document store for the authors of rules, on every kind of server."""

from typing import Any

import anyio
import pytest

from callboard.extend import Away, Document, Done, Found, Rule, SharedDocuments, Written
from callboard_actors._server._documents import DocumentStore, PendingChange

from ._world import WAIT, World, until

pytestmark = pytest.mark.real_clock

DOCUMENT = Document("shelf", "document", ("mark",))


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
    """Another process reads the same text, and how long it still lives by the clock of the store."""
    await follow(world.store(), write(text, lives=30.0))

    found = await follow(world.store(), look)

    assert found.text == text
    assert 20 < found.left <= 30


async def test_a_document_lives_as_long_as_was_said_and_may_be_taken_away(world: World) -> None:
    """An expired or removed document does not exist any more, and can be created again."""
    store = world.store()
    await follow(store, write("old", lives=0.3))
    assert (await follow(store, look)).text == "old"
    await anyio.sleep(0.4)
    assert (await follow(store, look)).text is None

    await follow(store, write("new"))
    assert (await follow(store, look)).text == "new"
    await follow(store, write(None))
    assert (await follow(store, look)).text is None


async def test_a_change_sees_the_marks_that_its_process_has_set_before(world: World) -> None:
    """All processes see the same number of a mark, and it only increases."""
    one, other = world.store(), world.store()
    numbers = [(await follow(one, look)).marks]
    for _ in range(3):
        one.mark("shelf", "mark")
        numbers.append((await follow(one, look)).marks)

    assert sorted(set(numbers)) == numbers
    assert (await follow(other, look)).marks == numbers[-1]


async def test_a_rule_that_fails_is_an_error_of_who_asked(world: World) -> None:
    """Other rules are still applied."""
    store = world.store()

    def fails(found: Found) -> tuple[None, None]:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await follow(store, fails)

    assert await follow(store, one_more) == 1


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
async def test_a_text_that_is_too_large_or_of_another_prefix_is_not_read(server_world: World) -> None:
    """An oversized text may come from another program, and other applications share the server."""
    await follow(server_world.store(), write("x" * 200_000))
    careful = server_world.store(largest=65_536)

    assert (await follow(server_world.store(prefix="other"), look)).text is None
    assert (await follow(careful, look)).text is None
    await follow(careful, write("small"))
    assert (await follow(careful, look)).text == "small"


@pytest.mark.exhaustive
async def test_what_nobody_waits_for_is_said_before_a_store_is_closed(server_world: World) -> None:
    """A program may forget a wrong result and exit at once. Changes that an answer causes are sent, too."""
    store = server_world.store()
    assert isinstance(store, DocumentStore)
    marks = (await follow(server_world.store(), look)).marks
    client, done = store._client(), list[object]()

    def then(answer: object) -> None:
        client.change(PendingChange(DOCUMENT, one_more, None))
        done.append(answer)

    store.change(DOCUMENT, one_more)
    store.change(DOCUMENT, one_more, then)
    store.mark("shelf", "mark")
    store.close()
    late: list[Any] = []
    client.change(PendingChange(DOCUMENT, one_more, late.append))

    found = await follow(server_world.store(), look)
    assert len(done) == 1
    assert (found.text, found.marks > marks) == ("3", True)
    assert "the store was closed" in str(late[0])  # without an answer, the caller would wait for ever
