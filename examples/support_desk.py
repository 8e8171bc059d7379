"""An application: a support agent with one actor per customer, on several processes.

python support_desk.py --url URL          runs the example: two processes share the customers, and one is killed
python support_desk.py work --url URL     a process of the desk; --help lists its options

A URL is postgresql://user:password@host/database. Without one, the example runs in one process. The processes need the
same $CALLBOARD_FLEET_SECRET.
"""

import argparse
import json
import logging
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from callboard import Actor, Agent, child, create_agent, handler, observe
from callboard.extend import Fleet
from callboard.telemetry import RecordingWriter
from callboard.testing import ScriptedModel, calls

log = logging.getLogger("support_desk")


class Desk(Actor):
    """Notes and tickets of one customer. There is one owner of a customer in all processes."""

    async def start(self) -> None:
        self.notes: list[str] = []
        self.tickets: dict[int, str] = {}
        self.number = 0

    async def snapshot(self) -> dict[str, Any]:
        return {"notes": self.notes, "tickets": self.tickets, "number": self.number}

    async def restore(self, state: dict[str, Any]) -> None:
        self.notes, self.tickets, self.number = state["notes"], state["tickets"], state["number"]

    @handler
    async def open_ticket(self, problem: str) -> str:
        """Open a ticket for a problem of the customer."""
        self.number += 1
        self.tickets[self.number] = problem
        return f"ticket {self.number}: {problem}"

    @handler
    async def close_ticket(self, number: int) -> str:
        """Close a ticket."""
        return f"closed: {self.tickets.pop(number)}" if number in self.tickets else f"there is no ticket {number}"

    @handler
    async def note(self, text: str) -> str:
        """Note a fact about the customer."""
        self.notes.append(text)
        return f"noted: {text}"

    @handler(idempotent=True)
    async def overview(self) -> str:
        """Return the open tickets of the customer, and the notes about them."""
        tickets = [f"ticket {number}: {problem}" for number, problem in self.tickets.items()]
        return f"{self.key}: {'; '.join([*tickets, *self.notes]) or 'nothing'}"


def by_customer(call: Any, context: Any) -> str:
    """Return the customer of a call. It is part of the thread id, not an argument, so that no model can choose it."""
    return str(context.config["configurable"]["thread_id"]).partition("/")[0]


def agent_for(
    fleet: Fleet | None = None, model: str | BaseChatModel | None = None, checkpointer: str | None = "memory"
) -> Agent:
    """Return the agent; without a fleet, its actors live in this process."""
    return create_agent(
        model or script(),
        [child(Desk, key=by_customer, fleet=fleet, save="each_call", idle=600.0)],
        system_prompt="You are the support of a tea shop. Keep a ticket for each problem of the customer. Be brief.",
        checkpointer=checkpointer,
        name="support",
    )


def fleet_at(url: str | None, lease: float) -> Fleet | None:
    if url is None:
        return None
    from callboard_actors.postgres import PostgresFleet

    return PostgresFleet(url, lease=lease)


def script() -> ScriptedModel:
    """Return a model without a provider: it calls a tool for each sentence, and tells the results."""

    def reply(messages: list[BaseMessage]) -> Any:
        last_question = max(index for index, message in enumerate(messages) if message.type == "human")
        results = [message.text for message in messages[last_question + 1 :] if message.type == "tool"]
        return (
            f"{'; '.join(results)}."
            if results
            else calls(*map(request, re.split(r"[.?] *", messages[last_question].text)[:-1]))
        )

    return ScriptedModel([reply], loop=True)


def request(sentence: str) -> tuple[str, dict[str, Any]]:
    verb, _, details = sentence.partition(": ")
    match verb.lower(), details:
        case "note", text:
            return "note", {"text": text}
        case "close", number:
            return "close_ticket", {"number": int(number)}
        case "what is open", _:
            return "overview", {}
    return "open_ticket", {"problem": sentence}


# A process of the desk: it reads lines such as {"thread": "ann/1", "text": "My kettle leaks."} until its stdin ends.


async def work(options: argparse.Namespace) -> None:
    agent = agent_for(fleet_at(options.url, options.lease), options.model, options.db)

    at_once = anyio.CapacityLimiter(50)

    async def answer(line: str) -> None:
        thread = None
        try:
            request_data = json.loads(line)
            thread, text = str(request_data["thread"]), str(request_data["text"])
            async with at_once:
                config: Any = {"configurable": {"thread_id": thread}}
                result = await agent.ainvoke({"messages": [("user", text)]}, config)
            tell(thread=thread, said=result["messages"][-1].text)
        except Exception as error:  # such as ThreadBusyError: one message must not end the turns of the others
            log.warning("a message was not answered", exc_info=True)
            tell(thread=thread, error=f"{type(error).__name__}: {error}")

    def began(event: Any) -> None:
        if getattr(event, "phase", "") == "started":
            tell(owns=event.key)

    with observe(lambda _: None, actors=began):
        async with agent, anyio.create_task_group() as group:
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                group.start_soon(answer, line)


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def arguments(command_line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="support_desk.py work")
    parser.add_argument("--url", help="server of the fleet; without it, the actors live in this process")
    parser.add_argument("--lease", type=float, default=15.0, help="seconds after which a killed process loses its keys")
    parser.add_argument("--db", default="sqlite:///support.db", help="database of the conversations")
    parser.add_argument("--model", help="such as openai:gpt-5.1; without it, a script plays the model")
    parser.add_argument("--record", type=Path, help="file for a recording with contents, from which a test is made")
    parser.add_argument("--backend", default="asyncio", choices=["asyncio", "trio"])
    return parser.parse_args(command_line)


# The rest of the example: two processes, of which one is killed.


class Worker:
    """A process of the desk, and the customers whose actors it has started."""

    def __init__(self, name: str, *options: str) -> None:
        self.name = name
        self.owns: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, __file__, "work", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, thread: str, text: str) -> str:
        """Send a message of a customer to this process, and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"thread": thread, "text": text}) + "\n")
        self.process.stdin.flush()
        answer = next(line["said"] for line in self.lines() if "said" in line)
        print(f"{thread} at {self.name}: {text} -> {answer}")
        return str(answer)

    def lines(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line = json.loads(text)
            self.owns += [line["owns"]] if "owns" in line else []
            yield line

    def end(self) -> int:
        self.process.communicate(timeout=30)  # closes its stdin
        return self.process.returncode


def story(folder: Path, url: str | None) -> None:
    os.environ.setdefault("CALLBOARD_FLEET_SECRET", secrets.token_hex(16))
    options = ["--db", f"sqlite:///{folder / 'support.db'}"]
    if url is None:
        print("without PostgreSQL, there is one process")
        first = second = Worker("A", *options)
    else:
        options += ["--url", url, "--lease", "1"]
        first, second = Worker("A", *options), Worker("B", *options, "--backend", "trio")

    assert first.say("ann/1", "My kettle leaks.") == "ticket 1: My kettle leaks."
    assert second.say("bob/1", "My cup is broken.") == "ticket 1: My cup is broken."
    second.say("ann/2", "Note: call after five.")  # another conversation, in the other process: the same actor
    if first is not second:
        assert (first.owns, second.owns) == (["ann"], ["bob"])
        first.process.kill()
        print("A is killed, exit code", first.end())
    assert second.say("ann/1", "What is open?") == "ann: ticket 1: My kettle leaks; call after five."
    assert second.say("bob/1", "Close: 1.") == "closed: My cup is broken."
    print(f"{second.name} has owned {', '.join(second.owns)}; exit code", second.end())
    assert {"ann", "bob"} <= {*second.owns}
    assert second.process.returncode == 0


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        options = arguments(sys.argv[2:])
        with RecordingWriter(options.record, append=True, capture=True) if options.record else nullcontext():
            anyio.run(work, options, backend=options.backend)
        return
    parser = argparse.ArgumentParser(description="A support desk on several processes")
    parser.add_argument("--url", help="PostgreSQL, by which two processes share the customers")
    url = parser.parse_args().url
    with tempfile.TemporaryDirectory() as name:
        story(Path(name), url)


if __name__ == "__main__":
    main()
