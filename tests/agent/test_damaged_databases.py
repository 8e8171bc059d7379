"""Damaged databases are read correctly or raise `StorageError`, whatever the damage; no other error comes out."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import UnknownInterruptError
from langgraph.types import Command, interrupt
from typer.testing import CliRunner

from callboard import StorageError, ThreadBusyError
from callboard._cli._app import app
from callboard.conversations._database import store_of
from callboard.conversations._storage import CHANNEL, check_checkpoint
from callboard.testing import calls

from ._damage import DAMAGES
from ._savers import AT, QUESTION, scripted

pytestmark = pytest.mark.real_clock


TOLD = (StorageError, ThreadBusyError, UnknownInterruptError)
"""Valid errors for a damaged thread: the storage error, an apparently live holder, or a missing question."""


def ask(question: str) -> str:
    """Ask."""
    return str(interrupt({"which": question}))


def work() -> str:
    """Work."""
    return "done"


def agent_on(file: Path) -> Any:
    replies = [calls("work"), "hi", calls("work", ("ask", {"question": "a"}))]
    return scripted(replies, [work, ask], loop=True, checkpointer=f"sqlite:///{file}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with one finished turn and one that waits for a person."""
    file = tmp_path_factory.mktemp("damage") / "agent.db"
    agent = agent_on(file)
    agent.invoke(QUESTION, AT)
    assert agent.invoke(QUESTION, AT)["__interrupt__"]
    anyio.run(agent.aclose)
    return file


def error_of(act: Callable[[Any], object], agent: Any) -> Exception | None:
    """Return the valid error of a use of a database, if any; every other error is raised."""
    try:
        act(agent)
    except TOLD as error:
        return error
    return None


def remove(file: Path) -> None:
    for path in file.parent.glob(f"{file.name}*"):
        path.unlink()


def replace_by_copy(file: Path) -> None:
    """Replace a database by a copy that was made earlier, as one brings back a backup."""
    remove(file)
    shutil.copyfile(file.parent / "backup", file)


async def texts_in(file: Path) -> list[str]:
    """Return the messages that another process would read."""
    async with scripted([], [], checkpointer=f"sqlite:///{file}") as reader:
        state = await reader.aget_state(AT)
    return [message.text for message in state.values.get("messages", [])]


@pytest.mark.parametrize("take_away", [remove, replace_by_copy])
async def test_a_turn_after_the_removal_of_the_file_is_stored_where_others_read_it(
    tmp_path: Path, take_away: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The open connection writes to a file without a name, which ends with the process: each later turn was lost."""
    file = tmp_path / "agent.db"
    async with scripted(["first"], [], checkpointer=f"sqlite:///{file}") as other:
        await other.ainvoke(QUESTION, AT)
    shutil.copyfile(file, tmp_path / "backup")
    earlier_texts = [] if take_away is remove else await texts_in(file)

    async with scripted(["second", "third"], [], checkpointer=f"sqlite:///{file}") as agent:
        await agent.ainvoke(QUESTION, AT)
        take_away(file)
        await agent.ainvoke(QUESTION, AT)
        texts = await texts_in(file)

    assert texts == [*earlier_texts, QUESTION["messages"][0][1], "third"]
    assert "was removed or replaced" in caplog.text


async def test_a_run_during_which_the_file_is_removed_is_stored_as_a_whole(tmp_path: Path) -> None:
    """Its end has the whole state, so the thread goes on in the new file."""
    file = tmp_path / "agent.db"

    async def reset() -> str:
        """Remove the database."""
        remove(file)
        return "removed"

    async with scripted([calls("reset"), "done"], [reset], checkpointer=f"sqlite:///{file}") as agent:
        await agent.ainvoke(QUESTION, AT)
        texts = await texts_in(file)

    assert texts == [QUESTION["messages"][0][1], "", "removed", "done"]


async def test_a_store_whose_file_is_removed_writes_to_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = store_of(f"sqlite:///{file}")
    assert store is not None
    await store.aput(("orders",), "1", {"state": "sent"})
    remove(file)
    await store.aput(("orders",), "2", {"state": "paid"})

    reader = store_of(f"sqlite:///{file}")
    assert reader is not None
    assert [item.key for item in await reader.asearch(("orders",))] == ["2"]


USES: dict[str, Callable[[Any], object]] = {
    "state": lambda agent: agent.get_state(AT),
    "history": lambda agent: list(agent.get_state_history(AT)),
    "resume": lambda agent: agent.invoke(Command(resume="b"), AT),
    "go": lambda agent: agent.invoke(QUESTION, AT),
    "update": lambda agent: agent.update_state(AT, QUESTION),
}


@pytest.mark.parametrize("use", USES)
def test_a_whole_database_passes(use: str, whole: Path, tmp_path: Path) -> None:
    USES[use](agent_on(Path(shutil.copy(whole, tmp_path / "agent.db"))))


@pytest.mark.parametrize("seed", range(40))
def test_an_agent_says_what_is_wrong_with_its_database(seed: int, whole: Path, tmp_path: Path) -> None:
    """Each operation on a damaged file succeeds, or raises an error of one line that names the file."""
    broken = Path(shutil.copy(whole, tmp_path / "broken.db"))
    damage = DAMAGES[seed % len(DAMAGES)](broken, Random(seed))

    for use, act in USES.items():
        agent = agent_on(Path(shutil.copy(broken, tmp_path / f"{use}.db")))
        error = error_of(act, agent)
        anyio.run(agent.aclose)
        assert not isinstance(error, StorageError) or (f"{use}.db" in str(error) and "\n" not in str(error)), damage


@pytest.mark.parametrize("seed", range(40, 72))
def test_the_commands_print_one_line_of_a_damaged_database(seed: int, whole: Path, tmp_path: Path) -> None:
    """The commands print no traceback, and report no success without one."""
    broken = Path(shutil.copy(whole, tmp_path / "broken.db"))
    damage = DAMAGES[seed % len(DAMAGES)](broken, Random(seed))

    for arguments in (["threads"], ["show", "1"], ["show", "1", "--history"]):
        file = Path(shutil.copy(broken, tmp_path / f"{len(arguments)}.db"))
        result = CliRunner().invoke(app, [*arguments, "--db", str(file)], catch_exceptions=False)
        if result.exit_code:
            assert result.stderr.startswith("Error: "), damage
            assert len(result.stderr.splitlines()) == 1, damage


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE store SET value = '{'",
        "UPDATE store SET value = x'ff'",
        "UPDATE store SET created_at = 5",
        "DROP TABLE store",
    ],
)
def test_a_damaged_store_is_a_storage_error(statement: str, tmp_path: Path) -> None:
    """The store with the tools' memories is a file, too, and its errors have the same type."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store: Any = store_of(url)
    store.put(("a",), "b", {"c": 1})
    store.close()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute(statement)

    try:
        store_of(url).get(("a",), "b")  # type: ignore[union-attr]
    except StorageError as error:
        assert "store.db" in str(error)  # noqa: PT017 (SQLite accepts a number as a date)
    else:
        assert "created_at" in statement


HOLDER = {"kind": "hold", "holder": {"token": "a", "host": "b", "boot": "c", "pid": "1", "until": 0.5}}


@pytest.mark.parametrize(
    ("checkpoint", "metadata", "entry", "reason"),
    [
        ({"ts": 5}, {}, None, "the checkpoint, wrong at ts: .*string, got 5"),
        ({"versions_seen": {"a": 5}}, {}, None, "the checkpoint, wrong at versions_seen.a: .*, got 5"),
        ({"versions_seen": {CHANNEL: {'{"actors": [["a"]]}': 0}}}, {}, None, "its notes, wrong at actors.0.1"),
        ({"channel_versions": {"a": 1, "b": "2"}}, {}, None, "versions of several kinds: int, str"),
        ({}, {"step": "1"}, None, "its metadata, wrong at step: .*integer, got '1'"),
        ({}, {}, {"kind": "task", "task": 1, "output": 2}, "the entry 'task', wrong at task: .*string, got 1"),
        ({}, {}, {"kind": "asked", "records": {"a": {"pending": [None]}}}, "wrong at records.a.pending.0: .*got None"),
        ({}, {}, HOLDER, "the entry 'hold', wrong at holder.pid: .*integer, got '1'"),
        ({}, {}, {"kind": "of a later version"}, "a newer version of callboard wrote, or that is damaged"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(checkpoint: Any, metadata: Any, entry: Any, reason: str) -> None:
    saver = InMemorySaver()
    scripted(["hi"], [], checkpointer=saver).invoke(QUESTION, AT)
    checkpoint_tuple: Any = saver.get_tuple(AT)
    check_checkpoint(checkpoint_tuple)
    entries = [] if entry is None else [("task", CHANNEL, [entry])]
    damaged = checkpoint_tuple._replace(
        checkpoint={**checkpoint_tuple.checkpoint, **checkpoint},
        metadata={**checkpoint_tuple.metadata, **metadata},
        pending_writes=[*checkpoint_tuple.pending_writes, *entries],
    )

    with pytest.raises(ValueError, match=reason):
        check_checkpoint(damaged)
