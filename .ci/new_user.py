"""The first two minutes and the first hour of a new user, with the wheels: `python .ci/new_user.py FOLDER_OF_WHEELS`.

Both begin in an empty folder, with an environment of Python in it. Each step takes its commands and its code from the
README or from a page of the documentation, and prints its result and its seconds.
Servers listen on 127.0.0.1 only. Every wait has an end, and every process that a step starts has ended after it.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Timer
from urllib.request import urlopen

DOCS = Path(__file__).parents[1] / "docs"
README = "../README.md"
PATIENCE = 120.0
"""Seconds for each command, server and answer. A quiet machine needs a tenth of it."""

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class StumbleError(Exception):
    """A step did not do what the page says."""


def expect(holds: bool, expectation: str, actual: object) -> None:
    """Raise `StumbleError` with the text that was found instead."""
    if not holds:
        raise StumbleError(f"{expectation}, but found:\n{actual}")


# The pages


def code(page: str, until: str = "") -> str:
    """Return the Python blocks of a page, down to a heading, as one program."""
    text = (DOCS / page).read_text()
    end = text.find(f"\n{until}\n") if until else len(text)
    expect(end >= 0, f"{page} has the heading {until!r}", "no such heading")
    return "\n".join(fence["code"] for fence in _FENCE.finditer(text[:end]) if fence["info"] == "python")


def block(page: str, part: str) -> str:
    """Return the block of a page that contains a text."""
    blocks = [fence["code"] for fence in _FENCE.finditer((DOCS / page).read_text()) if part in fence["code"]]
    expect(len(blocks) == 1, f"{page} has one block with {part!r}", len(blocks))
    return blocks[0]


def replace_texts(text: str, *pairs: tuple[str, str]) -> str:
    """Return the text with replacements, each of which must be possible."""
    for old, new in pairs:
        expect(old in text, f"a block has {old!r}", text)
        text = text.replace(old, new)
    return text


# The machine of the new user


class Desk:
    """A folder, an environment of Python in it, and the project that `callboard init` writes."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        [self.core], [self.actors] = wheels.glob("callboard-*.whl"), wheels.glob("callboard_actors-*.whl")
        self.project = folder / "trip"
        own_variables = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "AGENT_MODEL", "CALLBOARD_DB"}
        scripts = folder / "env" / "bin"
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in own_variables and not name.endswith("_API_KEY")
        }
        self.environment |= {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Run a command and return its output; raise `StumbleError` if it fails or does not end."""
        try:
            done = subprocess.run(
                command,
                cwd=folder or self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StumbleError(f"$ {' '.join(command)}\ndid not end in {PATIENCE:.0f} s:\n{error.stdout}") from error
        expect(done.returncode == 0, f"$ {' '.join(command)}\nhas to end with exit code 0", done.stdout)
        return done.stdout

    def run_code(self, name: str, text: str) -> str:
        """Run a program in a file of the folder."""
        (self.folder / name).write_text(text)
        return self.run("python", name)

    @contextmanager
    def start_command(self, *command: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
        """Start a command, and kill it if it still runs at the end of the block, or after a time."""
        with subprocess.Popen(
            command,
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            watch = Timer(PATIENCE, process.kill)
            watch.start()
            try:
                yield process
            finally:
                watch.cancel()
                process.kill()


# The steps of the two minutes


def pip_install(desk: Desk) -> str:
    """README.md, "Install": its command, with the wheel in place of the clone."""
    desk.run("uv", "venv", "--quiet", "--seed", "--python", sys.executable, "env")
    [command] = block(README, "pip install './callboard[").splitlines()
    # The folder stands in one word with the extras: './callboard[cli,langchain]'.
    desk.run(*shlex.split(replace_texts(command, ("./callboard", str(desk.core)))))
    return replace_texts(command, ("./callboard", desk.core.name))


def first_program(desk: Desk) -> str:
    """README.md, "Your first agent": the program prints what the next block shows."""
    output = desk.run_code("agent.py", block(README, "from callboard import create_agent"))
    expect(output == block(README, "tool: Sunny in Rome."), "agent.py prints the README's output", output)
    return "agent.py prints the three lines of the README"


def node_and_actor(desk: Desk) -> str:
    """README.md, "I have an agent" and "My tools have state": each block prints what its comments say."""
    actor = block(README, "async with running(")
    on_trio = replace_texts(actor, ("anyio.run(main)", 'anyio.run(main, backend="trio")'))
    programs = {"node.py": block(README, "ToolNode([fetch]"), "actor.py": actor, "actor_on_trio.py": on_trio}
    for name, program in programs.items():
        comments = re.findall(r"^ *print\(.*\)  # (.+)$", program, re.MULTILINE)
        output = desk.run_code(name, program).splitlines()
        expect(bool(comments) and output == comments, f"{name} prints {comments}", output)
    return "the node, and the actor on asyncio and on trio, print what their comments say"


# The steps of the first hour


def install(desk: Desk) -> str:
    """docs/how-to/install.md: the command for wheels, with `uv pip`, and the check."""
    desk.run("uv", "venv", "--quiet", "--python", sys.executable, "env")
    command = block("how-to/install.md", "uv build").partition("$ python -m pip")[2]
    [extras] = re.findall(r"\[[a-z,]+\]", command)
    add(desk, f"{desk.core}{extras}", str(desk.actors))
    desk.run_code("check.py", code("how-to/install.md"))
    return f"callboard{extras} and callboard-actors; a batch on asyncio and trio"


def add(desk: Desk, *requirements: str) -> None:
    """Install packages into the environment of the new user."""
    # Compiled at once: each of the steps would do it again.
    desk.run("uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", "env/bin/python", *requirements)


def doctor(desk: Desk) -> str:
    """docs/reference/cli.md."""
    output = desk.run("callboard", "doctor")
    expect("All required parts work." in output, "the doctor finds that all required parts work", output)
    return "all required parts work"


def init(desk: Desk) -> str:
    """docs/tutorial/first-steps.md: `callboard init trip`, and the steps that it prints."""
    output = desk.run("callboard", "init", "trip")
    steps = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    expected_steps = [
        "cd trip",
        'callboard run trip:agent "What is it like in Oslo?"',
        "python -m pip install pytest",
        "pytest",
    ]
    expect(steps == expected_steps, f"the steps are {expected_steps}", output)
    return ", ".join(sorted(path.name for path in desk.project.iterdir()))


def first_agent(desk: Desk) -> str:
    """The steps of `callboard init`, with a database; docs/tutorial/first-steps.md."""
    command = ("callboard", "run", "trip:agent", "What is it like in Oslo?", "--db", "trip.db", "--thread", "first")
    for backend in ("asyncio", "trio"):
        output = desk.run(*command, "--backend", backend, folder=desk.project)
        expect(output.endswith("There is sun in Oslo and in Rome.\n"), f"the agent answers on {backend}", output)
    desk.run_code("first_steps.py", code("tutorial/first-steps.md"))
    return "two runs of one conversation, on asyncio and on trio; the tutorial's code runs"


def timeout(desk: Desk) -> str:
    """docs/how-to/timeouts-and-budgets.md, down to progress."""
    desk.run_code("timeouts.py", code("how-to/timeouts-and-budgets.md", "## Progress and idle timeout"))
    return "a timeout and a budget end calls, and are read as messages and as errors"


def limit(desk: Desk) -> str:
    """docs/how-to/limits.md, down to the limit of one run."""
    desk.run_code("limits.py", code("how-to/limits.md", "## Limit one run"))
    return "two calls at once, one for each host; a full queue rejects"


def trace(desk: Desk) -> str:
    """docs/how-to/read-a-trace.md: at the terminal, as a file, and while a run goes on."""
    output = desk.run("callboard", "trace", "first", "--db", "trip.db", folder=desk.project)
    expect(output.count("thread first") == 2 and output.count(" ok ") >= 4, "the trace has two runs", output)
    message = ("Well?", "--thread", "second", "--record-to", "runs", "--web", "--wait")
    with desk.start_command("callboard", "run", "trip:agent", *message, folder=desk.project) as run:
        assert run.stdout is not None
        address = next((line for line in run.stdout if line.startswith("page http://127.0.0.1:")), "")
        expect(bool(address), "the command prints the address of a page", "no address")
        with urlopen(address.split()[1].partition("#")[0], timeout=PATIENCE) as page:  # noqa: S310 - loopback
            live = page.read().decode()
        expect("<script" in live, "the address has a page", live[:500])
        lines = []
        for line in run.stdout:
            lines.append(line)
            if line.startswith("The page stays."):
                break
        expect("There is sun in Oslo and in Rome.\n" in lines, "the agent answers, and the page stays", "".join(lines))
        run.send_signal(signal.SIGINT)
        code_at_end = run.wait(PATIENCE)
        expect(code_at_end == 0, "the exit code after Ctrl-C on the page is that of the run, 0", code_at_end)
    desk.run("callboard", "trace", "runs/second.jsonl", "--html", "second.html", folder=desk.project)
    size = (desk.project / "second.html").stat().st_size
    return f"at the terminal, live in a browser, and as a page of {size / 1000:.0f} kB"


def test(desk: Desk) -> str:
    """The test of `callboard init`, and docs/how-to/test-your-agents.md down to the test with an MCP server."""
    add(desk, "pytest")
    page = code("how-to/test-your-agents.md", "## Test with an MCP server")
    (desk.project / "test_page.py").write_text(page)
    output = desk.run("pytest", "-q", "-p", "no:cacheprovider", folder=desk.project)
    expect("5 passed" in output, "five tests pass: two of them on asyncio and trio", output)
    return "the agent's test and an hour in no time on asyncio and trio, and faked tools"


def service(desk: Desk) -> str:
    """docs/how-to/web-service.md, served and drained as docs/how-to/shut-down.md says."""
    add(desk, "starlette", "uvicorn", "hypercorn")
    # A tool that takes a while, so that the signal comes in the middle of a turn.
    slow = ('    progress("3 of 10 shelves")\n', '    progress("3 of 10 shelves")\n    await anyio.sleep(2)\n')
    (desk.folder / "service.py").write_text(replace_texts(code("how-to/web-service.md", "## Try it"), slow))
    page = "how-to/shut-down.md"
    port = free_port()
    on_uvicorn = replace_texts(block(page, "uvicorn.run(app)"), ("uvicorn.run(app)", f"uvicorn.run(app, port={port})"))
    converse_and_drain(desk, "on_uvicorn.py", on_uvicorn, port)
    on_trio = replace_texts(
        block(page, "hypercorn.config"),
        ("from hypercorn.asyncio import", "from hypercorn.trio import"),
        ("0.0.0.0:8000", f"127.0.0.1:{port}"),
        ("anyio.run(run)", 'anyio.run(run, backend="trio")'),
    )
    converse_and_drain(desk, "on_trio.py", on_trio, port)
    return "uvicorn on asyncio, hypercorn on trio: SIGTERM in the middle of a turn, which ends; exit code 0"


def converse_and_drain(desk: Desk, name: str, program: str, port: int) -> None:
    """Start a server, ask and answer, then send SIGTERM while the server streams another turn."""
    (desk.folder / name).write_text(program)
    with desk.start_command("python", name, folder=desk.folder) as server:
        try:
            wait_for(server, port)
            first = list(stream(port, "/threads/ann.1/messages", {"text": "A book about tea, please."}))
            kinds = [kind for kind, _ in first]
            expect(kinds == ["progress", "result", "question", "end"], "a turn ends with a question", first)
            [question] = first[2][1]
            answer = list(stream(port, "/threads/ann.1/answers", {question: "yes"}))
            answer_text = "".join(data for kind, data in answer if kind == "token")
            expect(answer_text == "It is on its way.", "the answer arrives in tokens", answer)

            events = stream(port, "/threads/ann.2/messages", {"text": "Another one, please."})
            expect(next(events)[0] == "progress", "the tool reports its progress", "something else")
            server.send_signal(signal.SIGTERM)
            kinds = [kind for kind, _ in events]
            expect(kinds == ["result", "question", "end"], "the turn goes on after SIGTERM", kinds)
            code_at_end = server.wait(PATIENCE)
            expect(code_at_end == 0, f"{name} ends with exit code 0", code_at_end)
        except (StumbleError, OSError, ValueError, StopIteration, subprocess.TimeoutExpired) as error:
            server.kill()
            raise StumbleError(f"{error}\nThe output of {name}:\n{server.communicate()[0]}") from error


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(server: "subprocess.Popen[str]", port: int) -> None:
    """Wait until the server accepts connections."""
    end = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise StumbleError("the server does not accept connections")


def stream(port: int, path: str, body: object) -> Iterator[tuple[str, object]]:
    """Send a request, and yield the server-sent events of the response as they arrive."""
    client = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        headers = {"content-type": "application/json", "authorization": "Bearer the-key-of-ann"}
        client.request("POST", path, json.dumps(body), headers)
        response = client.getresponse()
        expect(response.status == 200, f"POST {path} has status 200", response.status)
        kind = ""
        for line in response:
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)
    finally:
        client.close()


STAGES: dict[str, list[Callable[[Desk], str]]] = {
    "two minutes": [pip_install, first_program, node_and_actor],
    "first hour": [install, doctor, init, first_agent, timeout, limit, trace, test, service],
}


def run_stage(stage: str, wheels: Path) -> bool:
    """Run the steps of a stage in an empty folder, and return whether all of them work."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="new-user-"))
    try:
        desk = Desk(folder, wheels)
        for step in STAGES[stage]:
            start = time.monotonic()
            name = step.__name__.replace("_", " ")
            try:
                result = step(desk)
            except (StumbleError, OSError, subprocess.TimeoutExpired) as error:
                print(f"{name:<14} FAILED after {time.monotonic() - start:.1f} s: {error}\n\nSteps of: {step.__doc__}")
                return False
            print(f"{name:<14} {time.monotonic() - start:5.1f} s  {result}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    print(f"Python {sys.version.split()[0]}: all steps of the {stage} work, in {seconds:.0f} s\n", flush=True)
    return True


if __name__ == "__main__":
    folder_of_wheels = Path(sys.argv[1]).resolve()
    sys.exit(0 if all(run_stage(stage, folder_of_wheels) for stage in STAGES) else 1)
