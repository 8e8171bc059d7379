"""An application: a coding agent that reads and edits files, runs tests, and asks a person before it does harm.

python coding_agent.py                                               runs the example with a scripted model
python coding_agent.py --model openai:gpt-5.1 "Fix the tests."       a real model; you approve at the terminal
python coding_agent.py --record runs/coding.jsonl                    also records the run, for a test that replays it
callboard run coding_agent:agent "Fix the tests." --live --db my.db  the same agent, watched live; $MODEL names a model

The project is a folder: $PROJECT, or with `--model` also `--project`. The example without a model makes one with a bug.
Commands run confined by the kernel: they read and write the project, and have no network. Each edit of a file waits for
a person, and so does each command that does not begin like a harmless one. The scripted model wants to remove a
failing test; the person declines, and the model repairs the code.
"""

import argparse
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import anyio
from commands import policy_of, run_command
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.types import Command

from callboard import Agent, CallPolicy, ToolCallRequest, ToolNode, create_react_agent
from callboard.middleware import RequireApproval
from callboard.telemetry import RecordingWriter
from callboard.testing import ScriptedModel, calls

FOLDER = Path(os.environ.get("PROJECT", "."))
TASK = "Make the tests pass."
PROMPT = "You work on a Python project. Its tests run with `python -m unittest`. Read a file before you edit it."
PROGRAMS = ("ls", "grep", "python", "rm", "mv", "mkdir")
HARMLESS = (("ls",), ("grep",), ("python", "-m", "unittest"))
"""Beginnings of commands that need no approval; they are confined, too."""
MAX_CHARACTERS, MAX_EDITED = 20_000, 1_000_000


# The agent: `callboard run coding_agent:agent "Make the tests pass."`


def agent(model: str | BaseChatModel | None = None, folder: Path = FOLDER) -> Agent:
    """Return the agent of the project in a folder."""
    if unwanted := [name for name in (".git", ".venv", ".envrc") if (folder / name).exists()]:
        # A confined test may write there too, for example a hook that runs unconfined at your next commit.
        raise ValueError(
            f"{folder} contains {', '.join(unwanted)}: let the agent work on a copy without them, made by `git archive`"
        )
    python = Path(sys.executable)
    commands = policy_of(
        folder, PROGRAMS, read=[sys.prefix, sys.base_prefix], path=f"{python.parent}:{os.defpath}", timeout=120.0
    )
    node = ToolNode(
        [*file_tools(folder), run_command],
        middleware=[approval()],
        handle_tool_errors=True,  # no command of a model may end the run
        policies={"read_file": CallPolicy(idempotent=True), "run_command": commands},
    )
    model = model or os.environ.get("MODEL") or script()
    return create_react_agent(model, node, prompt=PROMPT, checkpointer="memory", name="coder", budget=900.0)


def approval() -> RequireApproval:
    """Return the middleware that asks a person before edits, and before commands that may do harm."""
    return RequireApproval({"edit_file": True, "run_command": may_harm})


def may_harm(request: ToolCallRequest) -> bool:
    """Return whether a command begins like none of the harmless ones."""
    arguments = request.tool_call["args"].get("arguments")
    if not isinstance(arguments, list):
        return True
    command = (request.tool_call["args"].get("program"), *arguments)
    return not any(command[: len(beginning)] == beginning for beginning in HARMLESS)


def open_in(folder: Path, name: str, mode: str) -> IO[str]:
    """Open a file of the project; raise an error for the model if it is elsewhere, or no regular file."""
    with suppress(OSError, ValueError):
        file = open(folder / name, mode, encoding="utf-8", opener=open_without_links)  # noqa: SIM115
        # The open file is checked and not its path, where a command that runs may put a link at any moment.
        path = Path(f"/proc/self/fd/{file.fileno()}").readlink()
        if path.is_relative_to(folder.resolve()) and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    raise ToolException(f"The project has no file {name!r}; list_files names its files.")


def open_without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe must not block


def file_tools(folder: Path) -> list[BaseTool]:
    @tool
    def list_files() -> str:
        """List the files of the project."""
        files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        names = "\n".join(sorted(str(path) for path in files if "__pycache__" not in path.parts))
        return names if len(names) <= MAX_CHARACTERS else f"{names[:MAX_CHARACTERS]}\n[and more; use ls.]"

    @tool
    def read_file(path: str) -> str:
        """Read a text file of the project."""
        with open_in(folder, path, "r") as file:
            text = file.read(MAX_CHARACTERS + 1)
        return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}\n[and more; use grep.]"

    @tool
    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text of a file, which must occur exactly once there, by a new text."""
        with open_in(folder, path, "r+") as file:
            text = file.read(MAX_EDITED + 1)
            if len(text) > MAX_EDITED:
                raise ToolException(f"{path} has more than {MAX_EDITED:,} characters, and cannot be edited.")
            if text.count(old) != 1:
                raise ToolException(f"{path} has the old text {text.count(old)} times; it must be there once.")
            file.seek(0)
            file.write(text.replace(old, new))
            file.truncate()
        return f"Edited {path}."

    return [list_files, read_file, edit_file]


Decide = Callable[[Mapping[str, Any]], dict[str, Any]]


async def work(task: str, model: str | BaseChatModel, folder: Path, decide: Decide) -> dict[str, Any]:
    """Run the agent until it has no further question, and return its last state."""
    config: Any = {"configurable": {"thread_id": "work"}}
    turn_input: Any = {"messages": [("user", task)]}
    async with agent(model, folder) as opened:
        while True:
            state = await opened.ainvoke(turn_input, config)
            questions = state.get("__interrupt__", ())
            if not questions:
                return state
            turn_input = Command(resume={item.id: decide(item.value[0]["action_request"]) for item in questions})


def at_terminal(question: Mapping[str, Any]) -> dict[str, Any]:
    print(f"\n{question['action']}", *(f"{name}: {value}" for name, value in question["args"].items()), sep="\n  ")
    reply = input("May it? [y, or a reason why not] ")
    return {"type": "accept"} if reply.strip() in ("y", "yes") else {"type": "ignore", "args": reply or "No."}


# The rest of the example: a project with a bug, a script for the model, and one for the person

PROJECT = {
    "price.py": '''"""Prices of tea."""


def total(prices: list[int], discount: int) -> int:
    """Return the sum of prices, less a discount in percent."""
    return sum(prices) * discount // 100
''',
    "test_price.py": """import unittest

from price import total


class Total(unittest.TestCase):
    def test_half_price(self) -> None:
        self.assertEqual(total([40, 60], 50), 50)

    def test_a_small_discount(self) -> None:
        self.assertEqual(total([40, 60], 10), 90)
""",
}
REPAIR = {
    "path": "price.py",
    "old": "sum(prices) * discount // 100",
    "new": "sum(prices) * (100 - discount) // 100",
}


def make_project(folder: Path) -> None:
    for name, text in PROJECT.items():
        (folder / name).write_text(text)


def script() -> ScriptedModel:
    tests = {"program": "python", "arguments": ["-m", "unittest"]}
    return ScriptedModel(
        [
            calls("list_files", ("run_command", tests)),
            calls(("read_file", {"path": "price.py"}), ("read_file", {"path": "test_price.py"})),
            calls(("run_command", {"program": "rm", "arguments": ["test_price.py"]})),
            calls(("edit_file", REPAIR)),
            calls(("run_command", tests)),
            "The discount was taken instead of the rest. The tests pass now.",
        ]
    )


def person(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a person who wants the tests to stay."""
    if question["action"] == "edit_file":
        return {"type": "accept"}
    return {"type": "ignore", "args": "The tests stay."}


def story(folder: Path, backend: str) -> None:
    make_project(folder)
    actions: list[str] = []

    def decide(question: Mapping[str, Any]) -> dict[str, Any]:
        actions.append(question["action"])
        return person(question)

    state = anyio.run(work, TASK, script(), folder, decide, backend=backend)
    results = [message.text for message in state["messages"] if message.type == "tool"]
    print(*results, state["messages"][-1].text, sep="\n\n")
    files, failed, _, _, declined, edited, passed = results
    assert files == "price.py\ntest_price.py"
    assert failed.startswith("Exit code 1.")
    assert "AssertionError: 10 != 90" in failed
    assert "The tests stay." in declined
    assert edited == "Edited price.py."
    assert passed.startswith("Exit code 0.")
    assert actions == ["run_command", "edit_file"]
    assert (folder / "test_price.py").read_text() == PROJECT["test_price.py"]


def main() -> None:
    parser = argparse.ArgumentParser(description="A coding agent that asks before it does harm")
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model", help="such as openai:gpt-5.1; without it, a script plays the model and the person")
    parser.add_argument("--project", type=Path, default=FOLDER, help="folder for --model, by default $PROJECT or here")
    parser.add_argument("--record", metavar="FILE", help="record the run with its contents, without secrets")
    options = parser.parse_args()
    with RecordingWriter(options.record, capture=True) if options.record else nullcontext():
        if options.model is not None:
            state = anyio.run(work, options.task, options.model, options.project, at_terminal)
            print(state["messages"][-1].text)
            return
        for backend in ("asyncio",) if options.record else ("asyncio", "trio"):
            with tempfile.TemporaryDirectory() as name:
                story(Path(name), backend)


if __name__ == "__main__":
    main()
