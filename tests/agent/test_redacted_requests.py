"""`Redact(models=True)`: a model gets tokens in place of secrets in messages and in the system prompt."""

import re
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool

from callboard import create_agent
from callboard.guards import Detector, MemoryVault, Redact, RedactedError
from callboard.middleware import Retry
from callboard.testing import ScriptedModel, calls

from ._savers import AT, say
from ._savers import run as plain_run

# A model of LangChain needs asyncio: on trio it runs on a loop in another thread.
pytestmark = pytest.mark.real_clock

ANN = "ann@example.com"
GO = say(f"I am {ANN}.")
TOKEN = re.compile(r"<email:[0-9a-f]{12}>")


async def run(agent: Any, agent_input: Any = GO, *, door: str = "ainvoke", config: Any = AT) -> list[Any]:
    return list((await plain_run(agent, agent_input, config, door=door))["messages"])


def text_of(model: ScriptedModel, number: int = -1) -> str:
    """Return all that a model has read in a request."""
    return repr(model.requests[number])


@pytest.mark.parametrize("door", ["ainvoke", "invoke"])
async def test_the_model_gets_tokens_and_the_thread_keeps_its_messages(door: str) -> None:
    model, redact = ScriptedModel(["done"]), Redact(models=True)
    agent = create_agent(model, [], middleware=[redact], system_prompt="Mail bob@example.com.", checkpointer="memory")
    async with agent:
        messages = await run(agent, door=door)
        assert "example.com" not in text_of(model)
        assert len(TOKEN.findall(text_of(model))) == 2
        assert messages[0].content == f"I am {ANN}."
        state = await agent.aget_state(AT)
        assert state.values["messages"][0].content == f"I am {ANN}."


async def test_a_reply_keeps_its_tokens_and_can_be_restored() -> None:
    """A value in a reply could leave by a link that the model was tricked to write; the application decides."""
    model, redact = (
        ScriptedModel([lambda request: f"You are {TOKEN.findall(str(request[0].content))[0]}."]),
        Redact(models=True),
    )
    answer = (await run(create_agent(model, [], middleware=[redact])))[-1].content
    assert TOKEN.search(answer)
    assert await redact.restore(answer, thread_id="1") == f"You are {ANN}."
    assert await redact.restore(answer, thread_id="2") == answer


async def test_a_call_with_tokens_reveals_them_to_chosen_tools() -> None:
    got: list[str] = []

    @tool
    async def mail(to: str) -> str:
        """Send."""
        got.append(to)
        return f"sent to {to}"

    @tool
    async def log(text: str) -> str:
        """Log."""
        got.append(text)
        return text

    def both(request: list[Any]) -> AIMessage:
        (token,) = TOKEN.findall(str(request[0].content))
        return calls(("mail", {"to": token}), ("log", {"text": token}))

    model, redact = ScriptedModel([both, "done"]), Redact(models=True, reveal=["mail"])
    messages = await run(create_agent(model, [mail, log], middleware=[redact]))
    revealed, hidden = sorted(got)[::-1]
    assert revealed == ANN
    assert TOKEN.fullmatch(hidden)
    assert ANN not in repr(messages[1:]) + text_of(model)


async def test_earlier_replies_calls_and_results_get_tokens() -> None:
    """A thread may be older than the middleware."""
    call = {"name": "mail", "args": {"to": ANN}, "id": "c1", "type": "tool_call"}
    agent_input = {"messages": [("user", "go"), AIMessage(f"To {ANN}", tool_calls=[call]), ("user", ANN)]}
    model = ScriptedModel(["done"])
    await run(create_agent(model, [], middleware=[Redact(models=True)]), agent_input)
    assert ANN not in text_of(model)
    assert model.requests[0][1].tool_calls[0]["id"] == "c1"  # type: ignore[attr-defined]


async def test_a_signed_thought_stays_as_it_is() -> None:
    """A provider refuses a conversation with a changed thought, and then the thread could never go on."""
    thought = {"type": "thinking", "thinking": f"like {ANN}", "signature": "x"}
    agent_input = {"messages": [("user", "go"), AIMessage([thought, {"type": "text", "text": ANN}]), ("user", "go on")]}
    model = ScriptedModel(["done"])
    await run(create_agent(model, [], middleware=[Redact(models=True)]), agent_input)
    first, second = model.requests[0][1].content
    assert first == thought
    assert TOKEN.fullmatch(second["text"])  # type: ignore[index]


async def test_only_the_thoughts_of_a_model_stay() -> None:
    agent_input = {"messages": [HumanMessage([{"type": "thinking", "thinking": ANN}])]}
    model = ScriptedModel(["done"])
    await run(create_agent(model, [], middleware=[Redact(models=True)]), agent_input)
    assert ANN not in text_of(model)


async def test_equal_values_have_one_token_in_a_thread() -> None:
    model = ScriptedModel(["done"], loop=True)
    agent = create_agent(model, [], middleware=[Redact(models=True)])
    for thread in ("1", "1", "2"):
        await run(agent, config={"configurable": {"thread_id": thread}})
    first, second, third = [TOKEN.findall(text_of(model, number)) for number in range(3)]
    assert first == second != third


async def test_an_error_of_a_request_shows_no_secret() -> None:
    model = ScriptedModel([ConnectionError(f"wrong key of {ANN}"), "done"])
    agent = create_agent(model, [], middleware=[Redact(models=True)])
    with pytest.raises(ConnectionError, match=TOKEN) as caught:
        await run(agent)
    assert caught.value.__context__ is None
    retrying_agent = create_agent(
        ScriptedModel([ConnectionError(ANN), "done"]), [], middleware=[Retry(2), Redact(models=True)]
    )
    assert (await run(retrying_agent))[-1].content == "done"


async def test_nothing_is_sent_if_a_detector_fails() -> None:
    def broken(text: str) -> Any:
        raise ValueError(text)

    model = ScriptedModel(["done"])
    with pytest.raises(RedactedError, match="a detector failed"):
        await run(create_agent(model, [], middleware=[Redact([Detector("broken", broken)], models=True)]))
    assert model.requests == []


async def test_a_vault_that_fails_costs_no_request() -> None:
    class Broken(MemoryVault):
        async def put(self, thread_id: str, values: Any) -> None:
            raise ConnectionError("away")

    model = ScriptedModel(["done"])
    await run(create_agent(model, [], middleware=[Redact(models=True, vault=Broken())]))
    assert ANN not in text_of(model)


async def test_a_long_conversation_is_searched() -> None:
    model = ScriptedModel(["done"])
    await run(create_agent(model, [], middleware=[Redact(models=True)]), say("a " * 20_000 + ANN))
    assert ANN not in text_of(model)


async def test_redaction_of_tools_is_not_around_models() -> None:
    model = ScriptedModel(["done"])
    await run(create_agent(model, [], middleware=[Redact()]))
    assert ANN in text_of(model)
    assert not hasattr(Redact(), "awrap_model_call")


def test_an_option_that_makes_no_sense_is_named() -> None:
    with pytest.raises(TypeError, match=r"Redact\(models=\.\.\.\) takes bool"):
        Redact(models="yes")  # type: ignore[arg-type]
