"""Read-only commands on databases: nothing stored in them is executed, and no password is shown."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import HumanMessage

from callboard import create_react_agent
from callboard.testing import ScriptedModel
from tests.agent._postgres import Server, running_postgres

from ._commands import Project

pytestmark = pytest.mark.real_clock


class Question(HumanMessage):
    """User-defined message type."""


def store_conversation(db: str, message: Any, thread: str = "oslo") -> None:
    url = db if "://" in db else f"sqlite:///{db}"
    agent = create_react_agent(ScriptedModel(["Hello."]), [], checkpointer=url, stored_types=[Question])
    agent.invoke({"messages": [message]}, {"configurable": {"thread_id": thread}})


def test_a_message_of_a_type_that_is_not_here_is_shown_as_a_message(project: Project) -> None:
    """The text is shown without importing the missing type."""
    store_conversation(project.db, Question("Where is it?"))

    result = project.call("show", "oslo", "--db", project.db)

    assert (result.exit_code, result.stderr) == (0, "")
    assert "Where is it?" in result.stdout


@pytest.mark.parametrize("arguments", [["threads"], ["show", "oslo"], ["show", "oslo", "--history"]])
def test_what_a_database_names_is_not_run(arguments: list[str], project: Project, tmp_path: Path) -> None:
    """An untrusted file may name any function, and looking at the file must not run it."""
    store_conversation(project.db, ("user", "hi"))
    written = tmp_path / "written"
    code = ormsgpack.Ext(0, ormsgpack.packb(("builtins", "exec", f"open({str(written)!r}, 'w')")))
    with closing(sqlite3.connect(project.db)) as connection, connection:
        connection.execute(
            "INSERT INTO writes SELECT thread_id, checkpoint_ns, checkpoint_id, 't', '', 0, 'other', 'msgpack', ? "
            "FROM checkpoints",
            (ormsgpack.packb([code]),),
        )

    result = project.call(*arguments, "--db", project.db)

    assert not written.exists()
    assert result.exit_code in (0, 2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_postgres() as started:
        yield started


@pytest.mark.exhaustive
def test_conversations_on_a_server_are_listed_and_shown(server: Server, project: Project) -> None:
    url = server.new_database()
    store_conversation(url, ("user", "Where is it?"))

    listed = project.call("threads", "--db", url)
    conversation = project.call("show", "oslo", "--db", url)

    assert (listed.exit_code, listed.stderr, conversation.exit_code, conversation.stderr) == (0, "", 0, "")
    assert "oslo" in listed.stdout
    assert "Where is it?" in conversation.stdout


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db",
        "postgresql:/me:s3cret@127.0.0.1/db",
        "redis://me:s3cret@127.0.0.1/db",
        "postgresql://me:s3cret%@127.0.0.1/db",
        "postgresql://127.0.0.1:1/db?password=s3cret",
    ],
)
@pytest.mark.parametrize("arguments", [["threads"], ["show", "oslo"]])
def test_a_server_that_cannot_be_reached_is_one_line_without_the_password(
    arguments: list[str], url: str, project: Project
) -> None:
    """Terminals are shared and keep their scroll-back, so the error must not show the password."""
    result = project.call(*arguments, "--db", url)

    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "s3cret" not in result.output + result.stderr
