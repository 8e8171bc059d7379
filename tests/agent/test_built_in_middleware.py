"""Each built-in middleware of LangChain in `create_agent`: interrupted, resumed, and still doing its work."""

import gc
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import middleware as built_in
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command, Interrupt, interrupt

from callboard import create_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import AT, contents

# Code of LangChain runs on a loop in another thread, which a virtual clock would not wait for.
pytestmark = pytest.mark.real_clock

WAIT = 20
ADD, ASK = tool_call("add", a=1, b=2), tool_call("ask", question="may I?")
COVERED: set[str] = set()


def scenario_of(*names: str) -> pytest.MarkDecorator:
    """Mark the scenario of these middlewares; skip it with a version of LangChain that does not have them all."""
    COVERED.update(names)
    missing = [name for name in names if not hasattr(built_in, name)]
    return pytest.mark.skipif(bool(missing), reason=f"this version of LangChain has no {', '.join(missing)}")


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def ask(question: str) -> str:
    """Ask a person."""
    return str(interrupt(question))


async def run_and_resume(
    model: ScriptedModel,
    *middleware: AgentMiddleware[Any, Any, Any],
    tools: Sequence[Callable[..., Any]] = (add, ask),
    url: str = "memory",
    text: str = "go",
    answer: Callable[[Interrupt], Any] = lambda question: "yes",
    **options: Any,
) -> dict[str, Any]:
    """Run an agent until it is interrupted, resume it, and return the final state.

    With a database another agent resumes, as another process would do.
    """

    def make_agent() -> Any:
        return create_agent(model, list(tools), middleware=middleware, checkpointer=url, **options)

    agent = make_agent()
    stopped = await agent.ainvoke({"messages": [HumanMessage(text)]}, AT)
    agent = agent if url == "memory" else make_agent()
    assert (await agent.aget_state(AT)).next, "the run was not interrupted"
    questions = stopped.get("__interrupt__", ())
    answers = Command(resume={question.id: answer(question) for question in questions}) if questions else None
    done: dict[str, Any] = await agent.ainvoke(answers, AT)
    state = await agent.aget_state(AT)
    assert not state.next
    call_ids = [call["id"] for message in done["messages"] for call in getattr(message, "tool_calls", ())]
    assert [message.tool_call_id for message in results(done)] == sorted(call_ids), "each call has one message"
    return done


def results(state: dict[str, Any]) -> list[ToolMessage]:
    """Return the results in the order of their calls, whose ids are numbered."""
    tool_messages = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    return sorted(tool_messages, key=lambda message: message.tool_call_id)


def answers_of(state: dict[str, Any]) -> list[Any]:
    return contents(results(state))


def asking_model(*replies: Any) -> ScriptedModel:
    """Return a model whose first reply asks a person, and whose others are `replies`."""
    return ScriptedModel([calls(ASK), *replies])


def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'db'}"


def classifier(**answers: Any) -> Any:
    """Return a decision model with one answer to every question."""
    from langchain_core.decisions import BaseDecisionModel, ClassifierResponse

    class Decides(BaseDecisionModel):
        @property
        def _provider(self) -> str:
            return "scripted"

        def _classify(self, state: Any, questions: Any) -> ClassifierResponse:
            return ClassifierResponse.model_validate(
                {"model": "scripted", "answers": dict.fromkeys(questions, answers)}
            )

    return Decides(model="scripted")


def test_every_built_in_middleware_has_a_scenario() -> None:
    """A new release of LangChain may add one, which then needs a scenario here."""
    public = {name: getattr(built_in, name) for name in built_in.__all__}
    classes = {
        name
        for name, kind in public.items()
        if inspect.isclass(kind) and issubclass(kind, AgentMiddleware) and kind is not AgentMiddleware
    }
    assert classes <= COVERED


@scenario_of("ModelCallLimitMiddleware")
async def test_the_limit_of_model_calls_counts_across_a_resume(tmp_path: Path) -> None:
    model = asking_model(calls(ADD))
    done = await run_and_resume(model, built_in.ModelCallLimitMiddleware(thread_limit=2), url=database(tmp_path))
    assert answers_of(done) == ["yes", "3"]
    assert done["messages"][-1].content == "Model call limits exceeded: thread limit (2/2)"
    assert len(model.requests) == 2


@scenario_of("ToolCallLimitMiddleware")
async def test_the_limit_of_tool_calls_blocks_calls_after_a_resume(tmp_path: Path) -> None:
    limit = built_in.ToolCallLimitMiddleware(thread_limit=2)
    done = await run_and_resume(asking_model(calls(ADD, ADD), "done"), limit, url=database(tmp_path))
    assert [message.status for message in results(done)] == ["success", "success", "error"]
    assert "limit exceeded" in answers_of(done)[2]


@scenario_of("SummarizationMiddleware")
async def test_a_summary_replaces_the_older_messages(tmp_path: Path) -> None:
    summary = built_in.SummarizationMiddleware(
        ScriptedModel(["nothing new"]), trigger=("messages", 3), keep=("messages", 2)
    )
    model = asking_model("done")
    done = await run_and_resume(model, summary, url=database(tmp_path), text="a long story")
    assert "nothing new" in done["messages"][0].content
    assert answers_of(done) == ["yes"]
    assert not any("a long story" in text for text in contents(model.requests[1]))


@scenario_of("PIIMiddleware")
async def test_personal_data_is_redacted_in_messages_and_results() -> None:
    private = built_in.PIIMiddleware("email", apply_to_tool_results=True, apply_to_output=True)
    model = asking_model("write to bob@example.org")
    done = await run_and_resume(model, private, text="I am ann@example.org", answer=lambda _: "bob@example.org")
    hidden = "[REDACTED_EMAIL]"
    assert contents(done) == [f"I am {hidden}", "", hidden, f"write to {hidden}"]
    assert not any("@" in text for request in model.requests for text in contents(request))


@scenario_of("TodoListMiddleware")
async def test_todos_are_written_beside_a_call_that_waits(tmp_path: Path) -> None:
    todos = [{"content": "think", "status": "pending"}]
    model = ScriptedModel([calls(("write_todos", {"todos": todos}), ASK), "done"])
    done = await run_and_resume(model, built_in.TodoListMiddleware(), url=database(tmp_path))
    assert done["todos"] == todos
    assert "write_todos" in str(model.requests[1][0].content)


DECISIONS: tuple[dict[str, Any], ...] = (
    {"type": "approve"},
    {"type": "edit", "edited_action": {"name": "add", "args": {"a": 20, "b": 2}}},
    {"type": "reject", "message": "too dear"},
    {"type": "respond", "message": "eleven"},
)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@scenario_of("HumanInTheLoopMiddleware")
async def test_a_person_decides_about_each_call(mode: Any, tmp_path: Path) -> None:
    def answer(question: Interrupt) -> Any:
        if mode == "batched":
            assert len(question.value["action_requests"]) == len(DECISIONS)
            return {"decisions": list(DECISIONS)}
        return DECISIONS[question.value["args"]["a"]]

    human = built_in.HumanInTheLoopMiddleware({"add": True}, interrupt_mode=mode)
    model = ScriptedModel([calls(*(tool_call("add", a=number, b=2) for number in range(4))), "done"])
    done = await run_and_resume(model, human, url=database(tmp_path), answer=answer)
    approved, edited, rejected, answered = answers_of(done)
    assert (approved, answered) == ("2", "eleven")
    assert edited.endswith("22")
    assert "too dear" in rejected


@scenario_of("ContextEditingMiddleware")
async def test_results_are_cleared_in_requests_only() -> None:
    model = asking_model(calls(ADD), "done")
    edit = built_in.ClearToolUsesEdit(trigger=1, keep=1)
    done = await run_and_resume(model, built_in.ContextEditingMiddleware(edits=[edit]))
    assert answers_of(done) == ["yes", "3"]
    assert answers_of({"messages": model.requests[2]}) == ["[cleared]", "3"]


@scenario_of("ToolRetryMiddleware")
async def test_a_failed_call_runs_again_after_a_delay(tmp_path: Path) -> None:
    tries: list[str] = []

    async def flaky() -> str:
        """Fail once, then ask a person."""
        tries.append("flaky")
        if len(tries) == 1:
            raise ConnectionError("lost")
        return str(interrupt("may I?"))

    retry = built_in.ToolRetryMiddleware(initial_delay=0.01, jitter=False, retry_on=(ConnectionError,))
    model = ScriptedModel([calls("flaky"), "done"])
    done = await run_and_resume(model, retry, tools=[flaky], url=database(tmp_path))
    assert answers_of(done) == ["yes"]
    assert len(tries) == 3


@scenario_of("ModelRetryMiddleware")
async def test_a_failed_request_is_sent_again_after_a_delay() -> None:
    retry = built_in.ModelRetryMiddleware(initial_delay=0.01, jitter=False)
    model = ScriptedModel([ConnectionError("lost"), calls(ASK), ConnectionError("lost"), "done"])
    assert contents((await run_and_resume(model, retry))["messages"]) == ["go", "", "yes", "done"]
    assert len(model.requests) == 4


@scenario_of("ModelFallbackMiddleware")
async def test_another_model_answers_for_one_that_fails() -> None:
    first, second = ScriptedModel([ConnectionError("lost")], loop=True), asking_model("done")
    done = await run_and_resume(first, built_in.ModelFallbackMiddleware(second))
    assert contents(done) == ["go", "", "yes", "done"]
    assert len(first.requests) == len(second.requests) == 2


@scenario_of("LLMToolSelectorMiddleware")
async def test_a_model_selects_the_tools_of_each_request() -> None:
    selections = [calls(("ToolSelectionResponse", {"tools": [name]})) for name in ("ask", "add")]
    model = asking_model(calls(ADD), "done")
    selector = built_in.LLMToolSelectorMiddleware(model=ScriptedModel([*selections, selections[0]]))
    assert answers_of(await run_and_resume(model, selector)) == ["yes", "3"]
    assert model.requested_tools == [("ask",), ("add",), ("ask",)]


@scenario_of("LLMToolEmulator")
async def test_a_model_answers_in_place_of_a_tool(tmp_path: Path) -> None:
    emulator = built_in.LLMToolEmulator(tools=["add"], model=ScriptedModel(["about three"]))
    done = await run_and_resume(ScriptedModel([calls(ADD, ASK), "done"]), emulator, url=database(tmp_path))
    assert answers_of(done) == ["about three", "yes"]


@scenario_of("FilesystemFileSearchMiddleware")
async def test_files_are_found_by_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("tiger, tiger", encoding="utf-8")
    search = built_in.FilesystemFileSearchMiddleware(root_path=str(tmp_path))
    searches = calls(("glob_search", {"pattern": "*.txt"}), ("grep_search", {"pattern": "tiger"}))
    done = await run_and_resume(ScriptedModel([searches, "done"]), search, interrupt_before=["tools"])
    assert answers_of(done) == ["/poem.txt", "/poem.txt"]


@scenario_of("ShellToolMiddleware")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # LangChain leaves the pipes of a session to the collector
async def test_a_shell_session_runs_commands_in_its_folder(tmp_path: Path) -> None:
    shell = built_in.ShellToolMiddleware(
        tmp_path / "work",
        startup_commands=["echo $$ >> pids", "note=kept"],
        execution_policy=built_in.HostExecutionPolicy(command_timeout=WAIT),
    )
    commands = [calls(("shell", {"command": command})) for command in ("echo $note > file", "cat file")]
    model = ScriptedModel([commands[0], calls(ASK), commands[1], "done"])
    done = await run_and_resume(model, shell, url=database(tmp_path))
    assert [str(text).strip() for text in answers_of(done)] == ["<no output>", "yes", "kept"]
    gc.collect()  # a session whose run was interrupted ends with its last reference
    for pid in (tmp_path / "work" / "pids").read_text(encoding="utf-8").split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@scenario_of("ProviderToolSearchMiddleware")
async def test_the_provider_searches_the_deferred_tools() -> None:
    class OfOpenAI(ScriptedModel):
        def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
            return {"ls_provider": "openai"}

    model = OfOpenAI([calls(ASK), calls(ADD), "done"])
    search = built_in.ProviderToolSearchMiddleware(searchable_tools=["add"])
    assert answers_of(await run_and_resume(model, search)) == ["yes", "3"]
    assert model.requested_tools == [("add", "ask", "None")] * 3


@scenario_of("ToolErrorMiddleware")
async def test_an_error_of_a_tool_becomes_a_message() -> None:
    fails = Recorder().tool("fails", raises=ConnectionError("lost"))
    errors = built_in.ToolErrorMiddleware(lambda error, request: f"{request.tool_call['name']}: {error}")
    done = await run_and_resume(ScriptedModel([calls("fails", ASK), "done"]), errors, tools=[fails, ask])
    assert answers_of(done) == ["fails: lost", "yes"]
    assert [message.status for message in results(done)] == ["error", "success"]


@scenario_of("AutoModeMiddleware")
async def test_a_call_that_is_classified_as_risky_is_blocked(tmp_path: Path) -> None:
    auto = built_in.AutoModeMiddleware(tools=["add"], classifier=classifier(type="noul", noul=0.9))
    done = await run_and_resume(ScriptedModel([calls(ADD, ASK), "done"]), auto, url=database(tmp_path))
    blocked, passed = results(done)
    assert (blocked.status, passed.content) == ("error", "yes")
    assert "classified as risky" in blocked.content


@scenario_of("ModelRefusalMiddleware", "ModelFallbackMiddleware")
async def test_another_model_answers_for_one_that_refuses() -> None:
    refusal = AIMessage([{"type": "refusal", "refusal": "I will not"}])
    first, second = ScriptedModel([refusal], loop=True), asking_model("done")
    done = await run_and_resume(first, built_in.ModelFallbackMiddleware(second), built_in.ModelRefusalMiddleware())
    assert contents(done) == ["go", "", "yes", "done"]


@scenario_of("ModelRouterMiddleware")
@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_a_route_is_chosen_once_and_kept_for_the_resume(tmp_path: Path) -> None:
    chosen = classifier(type="choice", choice="strong", probabilities={"strong": 1.0}, confidence=1.0)
    strong, weak = asking_model("done"), ScriptedModel([])
    choices = {name: built_in.ModelChoice(model, name) for name, model in (("strong", strong), ("weak", weak))}
    router = built_in.ModelRouterMiddleware(choices=choices, instructions="which?", classifier=chosen)
    done = await run_and_resume(weak, router, url=database(tmp_path))
    assert contents(done) == ["go", "", "yes", "done"]
    assert done["model_route"].choice == "strong"
