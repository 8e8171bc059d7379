"""`callboard run` at a terminal: the questions to a person, and the effects of the answers."""

import signal
import sys

import pytest

from ._agents import AGENT, log
from ._commands import Project

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals"),
]

PAYING = (
    AGENT
    + """
    import anyio

    HERE = Path(__file__).parent

    def pay(amount: int, to: str = "") -> str:
        '''Pay.'''
        note(f"pay {amount} {to}")
        return f"paid {amount}"

    async def slow() -> str:
        '''Wait for the test.'''
        while not (HERE / "go").exists():
            await anyio.sleep(0.02)
        return "went"

    def paying(*asked, allow=("accept", "edit", "response", "ignore"), **options):
        def reply(messages):
            results = [message.text for message in messages if message.type == "tool"]
            return f"I see: {'; '.join(results)}." if results else calls(*asked)

        node = ToolNode([pay, ask, slow], middleware=[RequireApproval(["pay"], allow=allow)])
        return create_react_agent(ScriptedModel([reply], loop=True), node, **options)

    one = paying(("pay", {"amount": 3}))
    three = paying(("pay", {"amount": 1}), ("pay", {"amount": 2}), ("ask", {"question": "How?"}))
    strict = paying(("pay", {"amount": 3}), allow=["accept", "ignore"])
    evil = paying(("pay", {"amount": 3, "to": "\\x1b[2Kme\\u202eyou"}))
    slowly = paying("slow")
    gated = paying("slow", interrupt_before=["tools"])
"""
)

CLEAR = "\x01\x0b"
"""Ctrl-A, Ctrl-K: clear the line."""


@pytest.fixture
def agents(project: Project) -> str:
    return project.module(PAYING)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_accepted_call_runs_as_it_was_shown(project: Project, agents: str, backend: str) -> None:
    with project.terminal("run", f"{agents}:one", "Pay!", "--backend", backend) as terminal:
        prompt = terminal.until("accept/edit/respond/ignore? ")
        assert "pay\n" in prompt
        assert '"amount": 3' in prompt
        terminal.type("accept")
        terminal.until("I see: paid 3.")
        assert terminal.end() == 0

    assert log(project) == ["pay 3 "]


def test_an_edited_call_runs_with_the_arguments_of_the_person(project: Project, agents: str) -> None:
    with project.terminal("run", f"{agents}:one", "Pay!") as terminal:
        terminal.play("ignore? ", "e", 'arguments (nothing: go back): {"amount": 3}', CLEAR)
        terminal.play("ignore? ", "e", '{"amount": 3}', f"{CLEAR}{{amount: 4", "That is no JSON")
        terminal.play("{amount: 4", f"{CLEAR}[4]", "The arguments are a JSON object")
        terminal.play("[4]", f'{CLEAR}{{"amount": "many"}}', "That answer was refused")
        terminal.play("ignore? ", "edit", '{"amount": 3}', f'{CLEAR}{{"amount": 4}}', "I see: paid 4.")
        assert terminal.end() == 0

    assert log(project) == ["pay 4 "]


def test_a_text_may_stand_for_the_result(project: Project, agents: str) -> None:
    with project.terminal("run", f"{agents}:one", "Pay!") as terminal:
        terminal.play("ignore? ", "respond", "text: ", "", "text: ", "it is paid already", "I see: it is paid already.")
        assert terminal.end() == 0

    assert log(project) == []


def test_only_what_the_question_allows_is_an_answer(project: Project, agents: str) -> None:
    """Other input is asked for again. A rejection may have a reason, which the model reads."""
    with project.terminal("run", f"{agents}:strict", "Pay!") as terminal:
        prompt = terminal.until("accept/ignore? ")
        assert "edit" not in prompt
        for wrong in ("edit", "yes", ""):
            terminal.type(wrong)
            terminal.until("Answer with accept or ignore")
        terminal.type("I")
        terminal.play("reason (or nothing): ", "too much", "with reason: too much")
        assert terminal.end() == 0

    assert log(project) == []


def test_questions_are_asked_one_after_the_other_and_answered_together(project: Project, agents: str) -> None:
    with project.terminal("run", f"{agents}:three", "Pay!") as terminal:
        assert '"amount": 1' in terminal.until("ignore? ")
        assert log(project) == []
        terminal.type("a")
        assert "Question 2 of 3" in terminal.until("ignore? ")
        assert log(project) == []
        terminal.type("i")
        terminal.play("reason", "")
        assert "Question 3 of 3\nHow?" in terminal.until("answer (JSON, or text): ")
        terminal.type('{"by": ["card"]}')
        terminal.until("I see: paid 1; User rejected the tool call for `pay`")
        terminal.until("they said {'by': ['card']}")
        assert terminal.end() == 0

    assert log(project) == ["pay 1 "]


def test_who_leaves_a_question_can_come_back_to_it(project: Project, agents: str) -> None:
    options = ("--db", project.db, "--thread", "1")
    with project.terminal("run", f"{agents}:three", "Pay!", *options) as terminal:
        terminal.play("ignore? ", "a", "ignore? ")
        terminal.press("\x04")
        terminal.until("Waiting for a person. To go on: callboard run")
        assert terminal.end() == 3
    assert log(project) == []

    with project.terminal("run", f"{agents}:three", *options, "--resume") as terminal:
        terminal.play("ignore? ", "a", "ignore? ", "a", "text): ", "by card", "they said 'by card'")
        assert terminal.end() == 0
    assert sorted(log(project)) == ["pay 1 ", "pay 2 "]


def test_ctrl_c_at_a_question_leaves_it_open(project: Project, agents: str) -> None:
    options = ("--db", project.db, "--thread", "1")
    with project.terminal("run", f"{agents}:one", "Pay!", *options) as terminal:
        terminal.until("ignore? ")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("Stopped. To go on: callboard run")
        assert terminal.end() == 130

    assert "waits for a person: 1 question" in project.call("show", "1", "--db", project.db).stdout
    assert project.call("run", f"{agents}:one", *options, "--resume", "--yes").exit_code == 0
    assert log(project) == ["pay 3 "]


def test_ctrl_c_is_not_lost_while_a_prompt_is_printed(project: Project, agents: str) -> None:
    module = project.module(
        f"""
        import ctypes, functools, readline, signal
        from {agents} import one

        strike = functools.partial(ctypes.CDLL(None)["raise"], signal.SIGINT)  # Python has no turn after it
        readline.set_pre_input_hook(strike)  # called when the prompt is there, before the wait
        """
    )
    with project.terminal("run", f"{module}:one", "Pay!", "--db", project.db, "--thread", "1") as terminal:
        terminal.until("ignore? ")
        terminal.until("Stopped. To go on: callboard run")
        assert terminal.end() == 130

    assert log(project) == []


def test_yes_leaves_only_what_it_cannot_answer_to_the_person(project: Project, agents: str) -> None:
    with project.terminal("run", f"{agents}:three", "Pay!", "--yes") as terminal:
        assert "ignore?" not in terminal.until("answer (JSON, or text): ")
        terminal.type("by card")
        assert terminal.end() == 0

    assert sorted(log(project)) == ["pay 1 ", "pay 2 "]


def test_arguments_cannot_act_on_the_terminal(project: Project, agents: str) -> None:
    with project.terminal("run", f"{agents}:evil", "Pay!") as terminal:
        prompt = terminal.until("ignore? ")
        assert r"\u001b[2Kme\u202eyou" in prompt
        assert "\u202e" not in prompt
        terminal.type("e")
        terminal.play(r"\u001b[2Kme\u202eyou", "")
        assert terminal.end() == 0

    assert log(project) == ["pay 3 \x1b[2Kme\u202eyou"]


def test_a_stop_before_the_tools_is_confirmed(project: Project, agents: str) -> None:
    options = ("--db", project.db, "--thread", "1")
    with project.terminal("run", f"{agents}:gated", "Go!", *options) as terminal:
        assert "slow()" in terminal.until("Stopped before tools. Go on? [yes/no] ")
        terminal.type("perhaps")
        terminal.play("[yes/no] ", "n")
        assert terminal.end() == 3
    (project.directory / "go").touch()
    with project.terminal("run", f"{agents}:gated", "Go!", "--db", project.db) as terminal:
        terminal.play("[yes/no] ", "y", "I see: went.")
        assert terminal.end() == 0


def test_json_goes_to_stdout_and_the_questions_to_the_terminal(project: Project, agents: str) -> None:
    with (
        (project.directory / "out.json").open("w") as out,
        project.terminal("run", f"{agents}:one", "Pay!", "--json", stdout=out) as terminal,
    ):
        terminal.until("ignore? ")
        terminal.type("a")
        assert terminal.end() == 0

    assert '"content": "I see: paid 3."' in (project.directory / "out.json").read_text()
