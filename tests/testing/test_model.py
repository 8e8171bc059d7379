"""`ScriptedModel`, and the helpers that write its scripts."""

import time
from typing import Any, cast

import anyio
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel

from callboard import tool_call
from callboard.testing import ScriptedModel, ScriptEndedError, calls


@tool
def search(query: str) -> str:
    """Search for something."""
    return query


class Weather(BaseModel):
    """What the weather is like."""

    sunny: bool


async def collect(model: ScriptedModel, text: str = "hi") -> list[AIMessageChunk]:
    """Stream one reply from the model directly: LangChain's `astream` needs asyncio."""
    with anyio.fail_after(10_000):
        return [cast(AIMessageChunk, chunk.message) async for chunk in model._astream([HumanMessage(text)])]


def join_chunks(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    """Put the chunks of one reply together."""
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    return total


@pytest.mark.backends("asyncio")
async def test_it_replays_texts_messages_calls_and_functions_in_order() -> None:
    """A script may mix all convenient forms."""
    calls_search = [tool_call("search", query="three")]
    script = ["one", AIMessage("two", id="mine"), calls_search, lambda messages: f"four after {messages[-1].content}"]
    model = ScriptedModel(script)
    with anyio.fail_after(5):
        replies = [await model.ainvoke("go") for _ in range(4)]
    assert [reply.content for reply in replies] == ["one", "two", "", "four after go"]
    assert replies[2].tool_calls == [tool_call("search", "call_1", query="three")]
    assert [reply.id for reply in replies] == ["reply_1", "mine", "reply_2", "reply_3"]


def test_it_replays_from_sync_code() -> None:
    model = ScriptedModel(["one", calls("search")])
    assert model.invoke("hi").content == "one"
    assert model.invoke("hi").tool_calls[0]["name"] == "search"


def test_it_raises_the_errors_of_its_script() -> None:
    model = ScriptedModel([ConnectionError("no route"), "better"])
    with pytest.raises(ConnectionError, match="no route"):
        model.invoke("hi")
    assert model.invoke("hi").content == "better"


@pytest.mark.parametrize(("script", "many"), [([], "0 replies"), (["a"], "1 reply"), (["a", "b"], "2 replies")])
def test_it_says_how_long_its_script_was_when_it_is_over(script: list[str], many: str) -> None:
    model = ScriptedModel(script)
    for _ in script:
        model.invoke("hi")
    with pytest.raises(ScriptEndedError, match=f"the script has {many}, and"):
        model.invoke("hi")


def test_it_starts_again_when_it_loops() -> None:
    model = ScriptedModel([calls("search"), "done"], loop=True)
    replies = [model.invoke("hi") for _ in range(4)]
    assert [reply.content for reply in replies] == ["", "done", "", "done"]
    assert [reply.tool_calls[0]["id"] for reply in replies[::2]] == ["call_1", "call_2"]
    assert len({reply.id for reply in replies}) == 4


def test_it_records_what_each_request_got() -> None:
    model = ScriptedModel(["one", "two"])
    model.invoke([HumanMessage("first")])
    model.invoke([HumanMessage("second"), AIMessage("then"), HumanMessage("third")])
    contents_by_request = [[message.content for message in request] for request in model.requests]
    assert contents_by_request == [["first"], ["second", "then", "third"]]
    assert model.requested_tools == [(), ()]


def test_bound_models_record_the_tools_and_share_the_script() -> None:
    """Binding returns a new model with the same script, as `create_react_agent` needs it."""
    model = ScriptedModel(["one", "two"])
    bound: Any = model.bind_tools([search], tool_choice="any")
    assert bound.kwargs["tools"][0]["function"]["name"] == "search"
    assert bound.kwargs["tool_choice"] == "any"
    assert bound.invoke("hi").content == "one"
    assert model.invoke("hi").content == "two"
    assert model.requested_tools == [("search",), ()]


def test_structured_output_comes_from_a_scripted_call() -> None:
    model = ScriptedModel([calls(("Weather", {"sunny": True}))])
    assert model.with_structured_output(Weather).invoke("hi") == Weather(sunny=True)


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
async def test_langgraphs_agent_accepts_it_with_bound_tools() -> None:
    """LangGraph's agent checks that the bound tools are its own."""
    model = ScriptedModel([calls(("search", {"query": "tea"})), "found"])
    agent = create_react_agent(model.bind_tools([search]), [search])
    final = await agent.ainvoke({"messages": [HumanMessage("look")]})
    assert [message.content for message in final["messages"]] == ["look", "", "tea", "found"]
    with pytest.raises(ValueError, match="must match"):
        create_react_agent(model.bind_tools([search]), [])


async def test_it_streams_word_by_word() -> None:
    """Token streams can be tested, and no white space is lost."""
    chunks = await collect(ScriptedModel(["  Here is\nthe  tea. "]))
    assert [chunk.content for chunk in chunks if chunk.content] == ["  Here", " is", "\nthe", "  tea.", " "]
    assert {chunk.id for chunk in chunks} == {"reply_1"}


@pytest.mark.backends("asyncio")
async def test_it_streams_through_langchain() -> None:
    model = ScriptedModel(["a b", "c d"])
    with anyio.fail_after(5):
        assert [chunk.content async for chunk in model.astream("hi") if chunk.content] == ["a", " b"]
        events = [event async for event in model.astream_events("hi", version="v2")]
    chunks = [event["data"] for event in events if event["event"] == "on_chat_model_stream"]
    tokens = [data["chunk"].content for data in chunks if "chunk" in data]
    assert [token for token in tokens if token] == ["c", " d"]


async def test_it_streams_tool_calls_after_the_text() -> None:
    chunks = await collect(ScriptedModel([calls(("search", {"query": "tea"}), "ping", content="I look.")]))
    total = join_chunks(chunks)
    assert total.content == "I look."
    assert [len(chunk.tool_call_chunks) for chunk in chunks if chunk.tool_call_chunks] == [1, 1]
    assert total.tool_calls == [tool_call("search", "call_1", query="tea"), tool_call("ping", "call_2")]


async def test_a_stream_carries_usage_metadata_and_invalid_calls() -> None:
    broken = {"name": "search", "args": "no JSON", "id": "x", "error": None, "type": "invalid_tool_call"}
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    message = AIMessage("", invalid_tool_calls=[broken], usage_metadata=usage, additional_kwargs={"a": 1})
    total = join_chunks(await collect(ScriptedModel([message])))
    assert total.usage_metadata == usage
    assert total.additional_kwargs == {"a": 1}
    assert [call["args"] for call in total.invalid_tool_calls] == ["no JSON"]


async def test_content_blocks_and_empty_replies_are_streamed_too() -> None:
    """Even an empty reply is streamed as one chunk."""
    blocks = AIMessage([{"type": "text", "text": "two words"}])
    model = ScriptedModel([blocks, ""])
    assert join_chunks(await collect(model)).content == [{"type": "text", "text": "two words"}]
    assert join_chunks(await collect(model)).content == ""


def test_it_streams_from_sync_code() -> None:
    chunks = list(ScriptedModel(["a b"]).stream("hi"))
    assert [chunk.content for chunk in chunks if chunk.content] == ["a", " b"]


async def test_a_delay_passes_on_the_clock_of_the_backend() -> None:
    """A slow model takes virtual time only, and can be cancelled."""
    model = ScriptedModel(["slow", "slow"], delay=3600)
    start, real = anyio.current_time(), time.monotonic()
    assert join_chunks(await collect(model)).content == "slow"
    assert anyio.current_time() - start == pytest.approx(3600)
    with anyio.move_on_after(10) as scope:
        await collect(model)
    assert scope.cancelled_caught
    assert time.monotonic() - real < 5


def test_ids_are_new_to_the_conversation() -> None:
    """A second model in the same thread must not overwrite messages of the first one by reusing their ids."""
    history: list[BaseMessage] = [AIMessage("", id="reply_1", tool_calls=[tool_call("search", "call_1")])]
    history.append(ToolMessage("tea", tool_call_id="call_1"))
    reply = ScriptedModel([calls("search", "ping")]).invoke(history)
    assert reply.id == "reply_2"
    assert [call["id"] for call in reply.tool_calls] == ["call_2", "call_3"]


def test_ids_of_another_form_are_repeated_as_written() -> None:
    repeated = AIMessage("", tool_calls=[tool_call("search", "same"), tool_call("search", "same")])
    model = ScriptedModel([repeated, repeated])
    ids = [call["id"] for _ in range(2) for call in model.invoke("hi").tool_calls]
    assert ids == ["same"] * 4


def test_a_script_is_not_changed_by_playing_it() -> None:
    line = AIMessage("", tool_calls=[tool_call("search")])
    ScriptedModel([line]).invoke("hi")
    assert line.id is None
    assert line.tool_calls[0]["id"] is None


def test_calls_numbers_its_calls_and_keeps_given_ids() -> None:
    message = calls("ping", ("search", {"query": "tea"}), tool_call("search", "mine", query="cake"), content="hm")
    assert message.content == "hm"
    assert message.tool_calls == [
        tool_call("ping", "call_1"),
        tool_call("search", "call_2", query="tea"),
        tool_call("search", "mine", query="cake"),
    ]


def test_arguments_may_have_any_name() -> None:
    assert tool_call("greet", None, name="Ada", call_id="x")["args"] == {"name": "Ada", "call_id": "x"}


async def text_later(_: list[BaseMessage]) -> str:
    return "later"


NO_REPLIES = [
    {"role": "assistant"},
    HumanMessage("hi"),
    None,
    3,
    ValueError,
    text_later,
    ["search"],
    tool_call("search"),
]


@pytest.mark.parametrize("reply", NO_REPLIES)
def test_what_is_no_reply_is_refused_with_the_accepted_forms(reply: Any) -> None:
    """The errors were those of pydantic, in the middle of a run, and named neither the script nor the reply."""
    with pytest.raises(TypeError, match=r"a reply of a ScriptedModel is a text, calls\(...\)"):
        ScriptedModel([reply])
    with pytest.raises(TypeError, match=r"a reply of a ScriptedModel is a text, calls\(...\)"):
        ScriptedModel([lambda _: reply]).invoke("hi")


def test_a_text_as_a_script_is_refused() -> None:
    """It was a script of its letters."""
    with pytest.raises(TypeError, match=r"takes a list of replies, got 'Done.'; write \['Done.'\]"):
        ScriptedModel("Done.")


@pytest.mark.parametrize(
    "request_in_another_form",
    [
        ("search", "tea"),
        ("search", {"query": "tea"}, "call_1"),
        [("search", {})],
        (print, {}),
        {"name": "search"},
        None,
    ],
)
def test_calls_refuses_a_request_in_another_form(request_in_another_form: Any) -> None:
    with pytest.raises(TypeError, match=r"pairs such as \('search', \{'query': 'tea'\}\)"):
        calls(request_in_another_form)


def test_arguments_in_a_dict_are_no_id_of_a_call() -> None:
    """The call had no arguments, and a dict as its id."""
    with pytest.raises(TypeError, match="arguments are keywords"):
        tool_call("search", cast("Any", {"query": "tea"}))
    with pytest.raises(TypeError, match="takes the name of a tool"):
        tool_call(cast("Any", print))
