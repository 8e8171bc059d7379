"""`callboard run MODULE:AGENT`: what an agent may be, and the errors if it cannot be used."""

import pytest

from ._agents import AGENT, log
from ._commands import Project


def test_a_function_may_return_the_agent(project: Project) -> None:
    """The function may be sync or async, and an attribute of an object."""
    module = project.module(
        AGENT
        + """
    def make(name="x"):
        return agent_of(f"made")

    async def make_later():
        return make()

    class Family:
        member = staticmethod(make)
    """
    )
    for name in ("make", "make_later", "Family.member"):
        result = project.call("run", f"{module}:{name}", "hi", "--backend", "trio")
        assert (result.exit_code, result.stdout) == (0, "made\n"), result.stderr


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_function_may_open_the_agent(project: Project, backend: str) -> None:
    module = project.module(
        AGENT
        + """
    from contextlib import asynccontextmanager
    import anyio

    @asynccontextmanager
    async def opened():
        note("open")
        async with anyio.create_task_group():
            yield sunny
        note("closed")

    @asynccontextmanager
    async def nothing():
        yield 5

    @asynccontextmanager
    async def shut():
        raise ConnectionError("no server")
        yield

    @asynccontextmanager
    async def stuck():
        yield sunny
        raise ConnectionError("no server any more")
    """
    )

    result = project.call("run", f"{module}:opened", "hi", "--backend", backend)
    assert result.exit_code == 0, result.stderr
    assert log(project) == ["open", "weather Oslo", "closed"]

    result = project.call("run", f"{module}:nothing", "hi", "--backend", backend)
    assert f"{module}:nothing is no agent, but int" in result.stderr
    result = project.call("run", f"{module}:shut", "hi", "--backend", backend)
    assert f"{module}:shut could not be made: ConnectionError: no server" in result.stderr
    result = project.call("run", f"{module}:stuck", "hi", "--backend", backend)
    assert (result.exit_code, "sun" in result.stdout.lower()) == (2, True)
    assert result.stderr.endswith(f"{module}:stuck could not be closed: ConnectionError: no server any more\n")


GRAPHS = """
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langgraph.prebuilt import create_react_agent
    from callboard.testing import ScriptedModel, calls

    def weather(city: str) -> str:
        '''Tell the weather.'''
        return f"sun in {city}"

    def script():
        return ScriptedModel([calls(("weather", {"city": "Oslo"})), "Sun."], loop=True)

    def react():
        return create_react_agent(script(), [weather])

    def approved():
        return create_agent(script(), [weather], middleware=[HumanInTheLoopMiddleware({"weather": True})])
"""


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_graphs_of_langgraph_run_too(project: Project) -> None:
    module = project.module(GRAPHS)
    options = ("--db", project.db, "--thread")

    react = project.call("run", f"{module}:react", "hi", *options, "1")
    waiting = project.call("run", f"{module}:approved", "hi", *options, "2")
    approved = project.call("run", f"{module}:approved", *options, "2", "--resume", "--yes")

    assert (react.exit_code, waiting.exit_code, approved.exit_code) == (0, 3, 0)
    assert "done    weather(city='Oslo')  sun in Oslo\nSun.\n" in react.stdout
    assert "waits   approve weather(city='Oslo')" in waiting.stdout
    assert approved.stdout.endswith("sun in Oslo\nSun.\n")


def test_graphs_of_langgraph_do_not_run_on_trio(project: Project) -> None:
    """The command prints one line instead of LangGraph's own error."""
    result = project.call("run", f"{project.module(GRAPHS)}:approved", "hi", "--backend", "trio")

    assert result.exit_code == 2
    assert result.stderr.endswith(":approved is a graph of LangGraph's, which runs on asyncio only\n")


LANGCHAINS = """
    from callboard import create_agent
    from callboard.testing import ScriptedModel, calls
    from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware, TodoListMiddleware

    def search(words: str) -> str:
        '''Search.'''
        return f"about {words}"

    def publish(text: str) -> str:
        '''Publish.'''
        return f"published {text}"

    asks = [calls(("search", {"words": "tea"})), calls(("publish", {"text": "tea"})), "Done."]
    summary = ScriptedModel(["THE SUMMARY"], loop=True)
    middleware = [
        TodoListMiddleware(),
        SummarizationMiddleware(summary, trigger=("messages", 3), keep=("messages", 2)),
        HumanInTheLoopMiddleware({"publish": True}, interrupt_mode="per_call"),
    ]
    agent = create_agent(ScriptedModel(asks), [search, publish], middleware=middleware)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_agent_of_create_agent_runs_with_langchains_middleware(project: Project, backend: str) -> None:
    """Only the agent's own model speaks to the user, and a summary does not tell the calls that it keeps again."""
    options = (f"{project.module(LANGCHAINS)}:agent", "--db", project.db, "--thread", "1", "--backend", backend)

    waiting = project.call("run", *options, "hi")
    approved = project.call("run", *options, "--resume", "--yes")

    assert (waiting.exit_code, approved.exit_code) == (3, 0), waiting.stderr
    *call_lines, question_line, _ = waiting.stdout.splitlines()
    assert [line.split("  ")[0] for line in call_lines] == ["thread 1", "call", "done", "call"]
    assert question_line == "waits   approve publish(text='tea')"
    assert approved.stdout.endswith("published tea\nDone.\n")
    assert "SUMMARY" not in waiting.stdout + approved.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{0}:nobody", "{0} has no 'nobody'; it has the agents echo, sunny, careful, asking, failing, gated"),
        ("{0}:echo.ear", "{0} has no 'echo.ear'; it has the agents"),
        ("{0}", "which agent of {0}? Write {0}:NAME; it has the agents echo, sunny"),
        ("{0}.py:echo", "'{0}.py:echo' is a path; write the module, such as {0}:agent, and --app-dir for its folder"),
        ("nowhere:agent", "there is no module 'nowhere'; looked in "),
        ("nowhere.inside:agent", "there is no module 'nowhere'; looked in "),
        ("two words:agent", "'two words' names no module; write module:agent, such as trip:agent"),
        ("{0}:weather", "{0}:weather is a function that needs city; callboard calls it without arguments"),
        ("{0}:approval", "{0}:approval is no agent, but list; it has the agents echo"),
        ("{0}:broken", "{0}:broken could not be made: ValueError: the tool is broken"),
        ("json:decoder", "json:decoder is no agent, but module; it has "),
    ],
)
def test_an_agent_that_is_not_there_is_told_with_what_is(
    project: Project, agents: str, name: str, message: str
) -> None:
    """The command prints one line with the agents of the module, without a traceback, and ends with exit code 2."""
    result = project.call("run", name.format(agents), "hi")

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Error: {message.format(agents)}" in result.stderr
    assert "_cli" not in result.stderr


def test_a_module_that_does_not_import_shows_where(project: Project) -> None:
    module = project.module("import nothing_of_the_kind\nagent = None\n")
    result = project.call("run", f"{module}:agent", "hi")

    assert result.exit_code == 2
    assert f'{module}.py", line 1' in result.stderr
    assert "_cli" not in result.stderr
    assert result.stderr.endswith("ModuleNotFoundError: No module named 'nothing_of_the_kind'\n")


def test_a_graph_that_is_not_compiled_is_told(project: Project) -> None:
    module = project.module(
        "from langgraph.graph import StateGraph, MessagesState\ngraph = StateGraph(MessagesState)\n"
    )

    assert "is a graph that is not compiled: call its compile()" in project.call("run", f"{module}:graph", "hi").stderr


def test_the_module_is_found_in_another_folder(project: Project, agents: str) -> None:
    folder = project.directory / "app"
    folder.mkdir()
    (project.directory / f"{agents}.py").rename(folder / f"{agents}.py")

    missing = project.call("run", f"{agents}:echo", "hi")
    result = project.call("run", f"{agents}:echo", "hi", "--app-dir", "app")

    assert (missing.exit_code, result.exit_code) == (2, 0)
