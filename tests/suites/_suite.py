"""The suites, their sources and their dependencies."""

import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A library, the tests that come with it, and the names of LangGraph or LangChain that callboard replaces.

    Args:
        name: of the suite, and of the distribution unless `published_as` names another one.
        version: the version to which the explained differences apply.
        tests: the folder of the tests, in the library's folder.
        needs: dependencies of the tests besides the library.
        options: further arguments for pytest.
        folder: the library's folder in a checkout of its repository.
        published: whether the source distribution has the tests; otherwise a checkout is required.
        beside_others: whether building its sources needs other sources of its repository; then the published
            wheel is installed.
        published_as: name of the distribution, if the suite has another name.
        plugin: the module in `plugin` that replaces the names.
        on_trio: whether only the coroutine tests run: on asyncio without callboard, and on trio with it.
    """

    name: str
    version: str
    tests: str = "tests"
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    folder: str = "."
    published: bool = True
    beside_others: bool = False
    published_as: str = ""
    plugin: str = "callboard_in_place"
    on_trio: bool = False

    @property
    def distribution(self) -> str:
        return self.published_as or self.name


_ASYNC = ("pytest-asyncio>=1.3", "pytest-socket")
_SAVERS = ("langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite", "psycopg[binary,pool]")
_OF_LANGGRAPH = (*_SAVERS, "pytest-asyncio>=1.3", "pytest-mock", "syrupy")
"""Dependencies that several suites have."""

_LANGCHAIN = Suite(
    name="langchain",
    version="1.4.7",
    beside_others=True,
    tests="tests/unit_tests/agents",
    needs=(*_OF_LANGGRAPH, "blockbuster", "langchain-openai", "langchain-tests", "pytest-xdist"),
    options=("-p", "no:socket"),
)
_AGENTS = replace(_LANGCHAIN, name="langchain-create-agent", published_as="langchain", plugin="create_agent_in_place")
_NEWEST = replace(_AGENTS, name="langchain-newest-create-agent", version="1.5.2")
_DEEPAGENTS = Suite(
    name="deepagents",
    version="0.7.8",
    tests="tests/unit_tests",
    needs=(*_ASYNC, "av", "langchain-openai", "langchain-tests", "pillow", "pytest-benchmark", "pytest-cov"),
    # langchain-tests brings this plugin, and an option of the plugin has the name of one of the suite's options.
    options=("-p", "no:syrupy"),
    folder="libs/deepagents",
    published=False,
)

SUITES = (
    Suite(name="langgraph-supervisor", version="0.0.31", needs=("pytest-socket",)),
    Suite(name="langgraph-swarm", version="0.1.0", needs=("pytest-socket",)),
    Suite(name="langgraph-bigtool", version="0.0.3", tests="tests/unit_tests", needs=("numpy", *_ASYNC)),
    Suite(name="langgraph-prebuilt", version="1.1.2", beside_others=True, needs=_OF_LANGGRAPH),
    Suite(
        name="langgraph",
        version="1.2.22",
        beside_others=True,
        needs=(*_OF_LANGGRAPH, "langchain-core", "pycryptodome", "pytest-repeat", "pytest-xdist", "redis", "uvloop"),
        # Only the tests in which tools run; the other tests never use a name of langgraph.prebuilt.
        options=(
            "-k",
            "(react or prebuilt or tool or agent or message_graph or parent_command) and not postgres and not redis",
        ),
    ),
    _LANGCHAIN,
    _AGENTS,
    _NEWEST,
    replace(_NEWEST, name="langchain-newest-on-trio", on_trio=True),
    Suite(
        name="langchain-mcp-adapters",
        version="0.3.2",
        needs=(*_ASYNC, "dirty-equals", "langchain", "langgraph", "uvicorn", "websockets"),
    ),
    Suite(
        name="trustcall",
        version="0.0.39",
        tests="tests/unit_tests",
        needs=(*_ASYNC, "langchain-openai"),
        published=False,
    ),
    _DEEPAGENTS,
    replace(_DEEPAGENTS, name="deepagents-create-agent", published_as="deepagents", plugin="create_agent_in_place"),
)


def command(*words: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return its output; an error contains the output of a failed command."""
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def source_of(suite: Suite, into: Path, checkout: Path | None) -> Path | None:
    """Return the folder of a suite's library, from a checkout or its source distribution; None if there is neither."""
    if checkout is not None:
        return checkout / suite.folder
    if not suite.published:
        return None
    name = suite.distribution
    folder = into / f"{name.replace('-', '_')}-{suite.version}"
    if not folder.exists():
        pinned = f"{name}=={suite.version}"
        command("uvx", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, "--dest", into, pinned)
        with tarfile.open(next(into.glob(f"{folder.name}.tar.gz"))) as archive:
            archive.extractall(into, filter="data")
    return folder


def environment_for(suite: Suite, source: Path, into: Path) -> Path:
    """Return the Python of an environment with the library, the tests' dependencies, and this checkout of callboard."""
    folder = into / f"venv-{suite.distribution}-{suite.version}"
    python = folder / "bin" / "python"
    if not python.exists():
        command("uv", "venv", "--quiet", "--python", "3.11", folder)
    extras: Sequence[str] = ("pytest>=8.3", "pytest-timeout>=2.4", *suite.needs)
    library = f"{suite.distribution}=={suite.version}" if suite.beside_others else str(source)
    own_package = ("--editable", f"{REPOSITORY}[cli,langchain,sqlite]")
    command("uv", "pip", "install", "--quiet", "--python", python, *extras, library, *own_package)
    return python
