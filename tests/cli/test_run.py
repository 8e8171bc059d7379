"""`callboard run` without a terminal: its output, its stored threads and its exit codes."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from langchain_core.messages import AIMessage, ToolMessage, convert_to_messages

from callboard._cli import main

from ._agents import AGENT, log
from ._commands import PATIENCE, Project


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_agent_answers_and_its_calls_are_told(project: Project, agents: str, backend: str) -> None:
    result = project.call("run", f"{agents}:sunny", "What is it like?", "--backend", backend)

    assert (result.exit_code, result.stderr) == (0, "")
    reply, call_line, done, answer = result.stdout.splitlines()
    assert (reply, answer) == ("Let me see.", "Sun, it says.")
    assert call_line.split() == ["call", "weather(city='Oslo')"]
    assert re.fullmatch(r"done    weather\(city='Oslo'\)  [\d.]+ m?s  sun in Oslo", done)


def test_a_thread_goes_on_where_it_was(project: Project, agents: str) -> None:
    options = ("--db", project.db, "--thread", "oslo")
    project.call("run", f"{agents}:echo", "one", *options)
    result = project.call("run", f"{agents}:echo", "two", *options)

    assert result.stdout == "thread oslo\nI have heard 2: one, two.\n"


def test_a_new_thread_has_a_new_name_which_is_printed(project: Project, agents: str) -> None:
    """Runs without `--thread` are separate conversations, and the printed names let users continue them."""
    first = project.call("run", f"{agents}:echo", "one", "--db", project.db).stdout.splitlines()
    second = project.call("run", f"{agents}:echo", "two", CALLBOARD_DB=project.db).stdout.splitlines()
    assert first[0] != second[0]
    assert second[1] == "I have heard 1: two."

    name = first[0].removeprefix("thread ")
    third = project.call("run", f"{agents}:echo", "three", "--db", project.db, "--thread", name).stdout
    assert third.splitlines()[1] == "I have heard 2: one, three."


def test_without_a_database_nothing_is_kept(project: Project, agents: str) -> None:
    """No thread name is printed, because it could not be resumed."""
    result = project.call("run", f"{agents}:echo", "one", "--thread", "oslo")

    assert result.stdout == "I have heard 1: one.\n"
    assert not list(project.directory.glob("*.db"))


def test_the_agents_own_checkpointer_is_used_without_a_database(project: Project) -> None:
    """`--db` replaces the agent's own checkpointer for this run only."""
    module = project.module(
        AGENT + f"    kept = agent_of(heard, checkpointer='sqlite:///{project.directory}/own.db')\n"
    )
    project.call("run", f"{module}:kept", "one", "--thread", "1")

    second_result = project.call("run", f"{module}:kept", "two", "--thread", "1")
    elsewhere = project.call("run", f"{module}:kept", "three", "--thread", "1", "--db", project.db)

    assert second_result.stdout == "thread 1\nI have heard 2: one, two.\n"
    assert elsewhere.stdout == "thread 1\nI have heard 1: three.\n"
    assert project.call("run", f"{module}:kept", "four", "--thread", "1").stdout.endswith("3: one, two, four.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say something to the agent, or --resume a thread"),
        (["hi", "--resume", "--thread", "1"], "a message or --resume, not both"),
        (["--resume"], "--resume needs --thread"),
        (["hi", "--thread", "\udcff"], "--thread '\\udcff' is no text in UTF-8"),
        (["--resume", "--thread", "1", "--db", "threads.db"], "there is no database 'threads.db'"),
        (["--resume", "--thread", "1"], "there is no thread '1' to resume"),
        (["hi", "--db", "mysql://here/x"], "--db mysql://here/x: There is no database 'mysql://here/x'; known are"),
        (["hi", "--db", "no/such/folder/x.db"], "there is no directory"),
        (["hi", "--db", "."], "is a directory; name a file in it"),
        (["hi", "--db", "log"], "is none: the file holds something else"),
    ],
)
def test_a_wrong_command_line_is_told(project: Project, agents: str, arguments: list[str], message: str) -> None:
    (project.directory / "log").write_text("no database")
    result = project.call("run", f"{agents}:echo", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert log(project) == ["no database"]
    assert not (project.directory / "threads.db").exists()


def test_without_a_terminal_questions_stay_open_and_the_way_on_is_printed(project: Project, agents: str) -> None:
    waiting = project.call("run", f"{agents}:careful", "Pay!", "--db", project.db, "--thread", "my thread")
    assert waiting.exit_code == 3
    assert log(project) == ["weather Oslo"]
    assert "waits   approve pay(amount=3)" in waiting.stdout

    command = waiting.stdout.splitlines()[-1].partition(": callboard ")[2]
    second_result = project.call(*shlex.split(command))
    paid = project.call(*shlex.split(command), "--yes")

    assert (second_result.exit_code, paid.exit_code) == (3, 0)
    assert "\ndone    pay(amount=3)  " in paid.stdout
    assert paid.stdout.endswith("  paid 3\nPaid.\n")
    assert log(project) == ["weather Oslo", "pay 3"]


def test_without_a_database_a_question_cannot_be_answered_later(project: Project, agents: str) -> None:
    """The output says that the question is lost without a database."""
    result = project.call("run", f"{agents}:careful", "Pay!")

    assert result.exit_code == 3
    assert result.stdout.endswith("Nothing is kept without a database: give --db next time.\n")


def test_yes_accepts_what_can_be_accepted_and_nothing_else(project: Project, agents: str) -> None:
    result = project.call("run", f"{agents}:asking", "Pay!", "--db", project.db, "--thread", "1", "--yes")

    assert result.exit_code == 3
    assert "done    pay(amount=3)" in result.stdout
    assert "waits   How?" in result.stdout
    assert log(project) == ["pay 3"]


def test_yes_does_not_accept_where_acceptance_is_no_answer(project: Project) -> None:
    """The tool allows only edits, so `--yes` has no valid answer."""
    module = project.module(
        AGENT + "    strict = agent_of(calls(('pay', {'amount': 3})), middleware=[RequireApproval(allow=['edit'])])\n"
    )
    result = project.call("run", f"{module}:strict", "Pay!", "--yes")

    assert result.exit_code == 3
    assert log(project) == []


def test_a_message_takes_the_place_of_open_questions(project: Project, agents: str) -> None:
    """The output says that the open question was dropped, and its call never runs."""
    options = ("--db", project.db, "--thread", "1")
    project.call("run", f"{agents}:careful", "Pay!", *options)
    result = project.call("run", f"{agents}:echo", "Never mind.", *options)

    assert result.exit_code == 0
    assert "1 question left unanswered: the message takes their place" in result.stdout
    assert result.stdout.endswith("I have heard 2: Pay!, Never mind..\n")
    assert log(project) == ["weather Oslo"]


def test_an_agent_that_stops_before_its_tools_goes_on_when_it_is_told_to(project: Project, agents: str) -> None:
    options = ("--db", project.db, "--thread", "1")
    stopped = project.call("run", f"{agents}:gated", "Pay!", *options)
    assert (stopped.exit_code, log(project)) == (3, [])
    assert "call    pay(amount=3)\nWaiting for a person." in stopped.stdout

    assert project.call("run", f"{agents}:gated", *options, "--resume").exit_code == 0
    assert log(project) == ["pay 3"]


def test_yes_goes_through_every_stop(project: Project, agents: str) -> None:
    result = project.call("run", f"{agents}:gated", "Pay!", "--yes")

    assert (result.exit_code, log(project)) == (0, ["pay 3"])
    assert result.stdout.endswith("Paid.\n")


def test_a_complete_thread_has_nothing_to_resume(project: Project, agents: str) -> None:
    """`--resume` of a complete thread is no error, so a script may repeat it until the thread is complete."""
    options = ("--db", project.db, "--thread", "1")
    project.call("run", f"{agents}:sunny", "hi", *options)
    result = project.call("run", f"{agents}:sunny", *options, "--resume")

    assert result.exit_code == 0
    assert result.stdout == "thread 1\nnothing to resume: the last turn is complete\n"
    assert log(project) == ["weather Oslo"]


def test_json_is_the_only_thing_on_stdout(project: Project, agents: str) -> None:
    result = project.call("run", f"{agents}:sunny", "hi", "--json", "--db", project.db, "--thread", "1")

    assert result.exit_code == 0
    output = json.loads(result.stdout)
    assert (output["thread"], output["next"], output["questions"]) == ("1", [], [])
    kinds = [type(message) for message in convert_to_messages(output["state"]["messages"])]
    assert kinds[1:] == [AIMessage, ToolMessage, AIMessage]
    assert output["state"]["messages"][-1]["content"] == "Sun, it says."
    assert "sun in Oslo" in result.stderr


def test_json_has_escapes_for_characters_that_the_output_does_not_have(project: Project) -> None:
    """On Windows, a file gets the code page of the system; the command failed after the run, without its result."""
    module = project.module(AGENT + "    agent = agent_of('Sun \u2603 \U0001f600 \xfc')\n")

    result = project.call("run", f"{module}:agent", "hi", "--json", charset="latin-1")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"]["messages"][-1]["content"] == "Sun \u2603 \U0001f600 \xfc"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("streams", [["stdin"], ["stdin", "stdout", "stderr"]])
def test_an_agent_answers_without_standard_streams(
    project: Project, agents: str, monkeypatch: pytest.MonkeyPatch, streams: list[str], backend: str
) -> None:
    """Schedulers and daemons close them, and Python then has `None`; the run failed before it began."""
    monkeypatch.chdir(project.directory)
    monkeypatch.setattr(sys, "path", list(sys.path))
    line = ["callboard", "run", f"{agents}:sunny", "hi", "--db", project.db, "--thread", "1", "--backend", backend]
    monkeypatch.setattr(sys, "argv", line)
    for stream in streams:
        monkeypatch.setattr(sys, stream, None)

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 0
    assert log(project) == ["weather Oslo"]


def test_json_has_the_open_questions(project: Project, agents: str) -> None:
    """The questions have their ids, so that a program can answer them."""
    result = project.call("run", f"{agents}:asking", "hi", "--json", "--db", project.db)

    output = json.loads(result.stdout)
    assert result.exit_code == 3
    assert [len(question["id"]) for question in output["questions"]] == [32, 32]
    assert output["questions"][1]["value"] == "How?"
    assert set(output["next"]) == {"tools"}


def test_a_structured_response_is_printed(project: Project) -> None:
    module = project.module(
        AGENT
        + """
    from langchain_core.runnables import RunnableLambda
    from pydantic import BaseModel

    class Weather(BaseModel):
        sky: str

    class Model(ScriptedModel):
        def with_structured_output(self, schema, **options):
            return RunnableLambda(lambda _: Weather(sky="blue"))

    agent = create_react_agent(Model(["It is blue."]), [weather], response_format=Weather)
    """
    )
    result = project.call("run", f"{module}:agent", "hi")

    assert result.stdout == 'It is blue.\n{\n  "sky": "blue"\n}\n'


def test_a_failed_run_says_why_and_the_thread_goes_on(project: Project, agents: str) -> None:
    options = ("--db", project.db, "--thread", "1")
    failed = project.call("run", f"{agents}:failing", "hi", *options)
    resumed = project.call("run", f"{agents}:failing", *options, "--resume")
    after = project.call("run", f"{agents}:echo", "again", *options)

    assert (failed.exit_code, resumed.exit_code, after.exit_code) == (1, 1, 0)
    assert failed.stderr == "Error: the run failed: ValueError: the tool is broken\n"
    assert "--thread 1 --resume" in failed.stdout
    assert after.stdout.endswith("I have heard 2: hi, again.\n")


def test_what_others_wrote_cannot_act_on_the_terminal(project: Project) -> None:
    module = project.module(
        AGENT
        + r"""
    PLAIN = "plain \U0001f469\u200d\U0001f680"
    EVIL = "\x1b[2K\x1b]0;title\x07\u202egnp.exe\x9b"
    evil = agent_of(
        calls(("weather", {"city": EVIL}), ("ask", {"question": EVIL}), content=EVIL + "\n" + PLAIN),
    )
    """
    )
    result = project.call("run", f"{module}:evil", EVIL, "--db", project.db, "--thread", EVIL)

    assert result.exit_code == 3
    assert not set("\x1b\x07\x9b\u202e") & set(result.stdout)
    assert result.stdout.count(r"\u001b[2K") >= 4
    assert "plain \U0001f469\u200d\U0001f680" in result.stdout


EVIL = "\x1b[2K\x1b]0;title\x07\u202egnp.exe\x9b"


def test_of_very_many_calls_only_those_that_fail_are_told_one_by_one(project: Project) -> None:
    module = project.module(
        AGENT
        + """
    def pick(n: int) -> str:
        '''Pick.'''
        if n == 7:
            raise ValueError("no 7")
        return str(n)

    node = ToolNode([pick], handle_tool_errors=True)
    agent = create_react_agent(ScriptedModel([calls(*[("pick", {"n": n}) for n in range(50)]), "Done."]), node)
    """
    )
    result = project.call("run", f"{module}:agent", "hi")

    lines = result.stdout.splitlines()
    assert lines[0] == "calls   50: 50 of pick"
    assert lines[1].startswith("failed  pick(n=7)")
    assert lines[2:] == ["Done."]


INNER = """
    inner = ScriptedModel(["INNER THOUGHTS"], loop=True)

    async def think() -> str:
        '''Think.'''
        return (await inner.ainvoke("x")).text.lower()

    async def before(state):
        await inner.ainvoke("x")
        return {}

    in_tool = create_react_agent(ScriptedModel([calls("think"), "Done."]), [think])
    in_hook = create_react_agent(ScriptedModel([calls("think"), "Done."]), [think], pre_model_hook=before)
"""


@pytest.mark.parametrize("name", ["in_tool", "in_hook"])
def test_models_inside_of_tools_and_hooks_do_not_talk_to_the_user(project: Project, name: str) -> None:
    """Tokens of inner models come through the same stream, and must not be printed."""
    result = project.call("run", f"{project.module(AGENT + INNER)}:{name}", "hi")

    assert result.exit_code == 0, result.stderr
    assert "INNER" not in result.stdout
    assert "inner thoughts" in result.stdout


@pytest.mark.exhaustive
def test_a_stream_that_cannot_have_every_character_gets_what_it_can(project: Project) -> None:
    module = project.module(AGENT + "    agent = agent_of('caf\\u00e9 \\u2603')\n")
    finished = project.call("run", f"{module}:agent", "hi", charset="ascii")

    assert (finished.exit_code, finished.stderr_bytes) == (0, b"")
    assert finished.stdout_bytes == rb"caf\xe9 \u2603" + b"\n"


def test_the_command_needs_no_agent_of_its_own_to_start(project: Project) -> None:
    """`callboard --help` must be fast, so it does not import LangGraph."""
    program = "import sys; from callboard._cli._app import app; sys.exit('langgraph' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=False).returncode == 0
