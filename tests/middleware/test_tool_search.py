"""`ToolSearch`: a model finds its tools among many, and a found tool is called as if it had been offered."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, message_to_dict
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import PrivateAttr

from callboard import CallEvent, CallPolicy, Limit, ToolNode, create_agent, create_react_agent, observe, tool_call
from callboard.exceptions import IdleMiddlewareWarning, MiddlewareOrderWarning
from callboard.guards import RepairArguments
from callboard.middleware import Middleware, RequireApproval, Supervise, ToolSearch
from callboard.testing import Recorder, ScriptedModel, calls, kill_at
from tests.helpers import contents, watch_loop
from tests.rivals import plots

pytestmark = pytest.mark.real_clock  # an agent's model runs in a thread on trio

WAIT = 60
AT: Any = {"configurable": {"thread_id": "1"}}
GO = {"messages": [("user", "go")]}


class RecordingModel(BaseChatModel):
    """Model of a script that records the tools and the messages of each request as a provider would get them."""

    script: list[Any]
    _requests: list[tuple[str, list[str]]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "recording"

    @property
    def requests(self) -> list[tuple[str, list[str]]]:
        return self._requests

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **options)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        reply = self.script[len(self._requests)]
        self._requests.append(
            (json.dumps(options.get("tools", [])), [json.dumps(message_to_dict(message)) for message in messages])
        )
        message = AIMessage(reply, id=f"r{len(self._requests)}") if isinstance(reply, str) else reply
        return ChatResult(generations=[ChatGeneration(message=message)])


TOPICS = ("issue", "pull request", "branch", "commit", "release", "label", "milestone", "comment", "file", "user")
VERBS = ("create", "list", "update", "delete", "search", "close", "lock", "assign", "export", "watch")


def mcp_tools(count: int, ran: list[str] | None = None) -> list[BaseTool]:
    """Return tools as a client of an MCP server makes them: with JSON schemas."""

    def make(number: int) -> BaseTool:
        verb, topic = VERBS[number % 10], TOPICS[number // 10 % 10]
        name = f"{verb}_{topic.replace(' ', '_')}" + ("" if number < 100 else f"_{number // 100}")

        async def run(**args: Any) -> str:
            if ran is not None:
                ran.append(name)
            return f"{name} done"

        schema = {
            "type": "object",
            "title": name,
            "properties": {
                "repository": {"type": "string", "description": "Owner and name of the repository."},
                "number": {"type": "integer", "description": f"Number of the {topic}."},
            },
            "required": ["repository"],
        }
        return StructuredTool(
            name=name, description=f"{verb.capitalize()} a {topic} of a repository.", args_schema=schema, coroutine=run
        )

    return [make(number) for number in range(count)]


def search(query: str, call_id: str = "s1") -> Any:
    return tool_call("search_tools", call_id, query=query)


def use(name: object, call_id: str = "c1", **args: Any) -> Any:
    return tool_call("call_tool", call_id, name=name, args=args)


def react(model: Any, tools: Sequence[Any], middleware: Sequence[Any] = (), **options: Any) -> Any:
    saver = options.pop("checkpointer", None)
    return create_react_agent(model, ToolNode(tools, middleware=middleware, **options), checkpointer=saver)


def langchain(model: Any, tools: Sequence[Any], middleware: Sequence[Any] = (), **options: Any) -> Any:
    return create_agent(model, tools, middleware=middleware, **options)


Build = Callable[..., Any]
each_agent = pytest.mark.parametrize("build", [react, langchain], ids=["create_react_agent", "create_agent"])

THE_RUN = [
    calls(search("close an issue")),
    calls(use("close_issue", repository="a/b", number=7)),
    calls(use("close_issue", "c2", repository="a/b", number=8), search("export a label", "s2")),
    calls(use("export_label", "c3", repository="a/b")),
    "done",
]


async def run(agent: Any, inputs: Any = GO, config: Any = None) -> list[BaseMessage]:
    with anyio.fail_after(WAIT):
        return (await agent.ainvoke(inputs, config))["messages"]


async def answers_of(build: Build, *replies: Any, tools: Sequence[Any], **options: Any) -> list[str]:
    """Return the contents of all tool messages of a run with these replies."""
    middleware = options.pop("middleware", [ToolSearch()])
    agent = build(ScriptedModel([*replies, "done"]), tools, middleware, **options)
    return contents(await run(agent))


@each_agent
async def test_a_request_with_200_tools_carries_at_most_a_fiftieth_of_their_schemas(build: Build) -> None:
    """The schemas of one MCP server would be most of each request."""
    sizes: list[int] = []
    for middleware in ([], [ToolSearch()]):
        model = RecordingModel(script=["done"])
        await run(build(model, mcp_tools(200), middleware))
        sizes.append(len(model.requests[0][0]))

    assert sizes[0] > 50_000
    assert sizes[1] <= sizes[0] / 50


async def test_the_page_has_the_size_of_the_schemas_in_a_request() -> None:
    """Its plot is drawn from this table."""
    columns, rows = plots.table(plots.SEARCH_TOOLS, "What a request carries")
    measured: dict[str, list[float | None]] = {}
    for name, middleware in (("all tools", []), ("ToolSearch", [ToolSearch()])):
        models = [RecordingModel(script=["done"]) for _ in columns]
        for model, count in zip(models, columns, strict=True):
            await run(react(model, mcp_tools(int(count)), middleware))
        measured[name] = [len(model.requests[0][0]) for model in models]

    assert rows == measured


@each_agent
async def test_the_beginning_of_each_request_is_that_of_the_request_before(build: Build) -> None:
    """A provider caches the beginning of a request: a list of tools that changes would make it read all again."""
    model = RecordingModel(script=THE_RUN)
    await run(build(model, mcp_tools(200), [ToolSearch(shown=["list_user"])]))

    tools = {tools for tools, _ in model.requests}
    assert len(model.requests) == len(THE_RUN)
    assert len(tools) == 1
    names = [tool["function"]["name"] for tool in json.loads(tools.pop())]
    assert sorted(names) == ["call_tool", "list_user", "search_tools"]
    for (_, before), (_, after) in zip(model.requests, model.requests[1:], strict=False):
        assert after[: len(before)] == before


@each_agent
async def test_a_found_tool_is_called_under_its_own_name_with_the_id_of_the_call(build: Build) -> None:
    ran, names = list[str](), list[tuple[str, Any]]()

    def note(event: CallEvent) -> None:
        if event.phase == "begun":
            names.append((event.tool, event.call_id))

    with observe(note):
        messages = await run(build(ScriptedModel(THE_RUN), mcp_tools(200, ran), [ToolSearch()]))

    assert ran == ["close_issue", "close_issue", "export_label"]
    assert sorted(name for name in names if name[0] != "search_tools") == [
        ("close_issue", "c1"),
        ("close_issue", "c2"),
        ("export_label", "c3"),
    ]
    requested_calls = [
        (call["name"], call["id"]) for message in messages for call in getattr(message, "tool_calls", ())
    ]
    answered = [(message.name, message.tool_call_id) for message in messages if isinstance(message, ToolMessage)]
    assert requested_calls == answered  # each call has its answer, as providers demand
    assert "call_tool" not in [name for name, _ in requested_calls]


@each_agent
async def test_the_policy_and_the_limit_of_the_found_tool_hold(build: Build) -> None:
    recorder = Recorder()
    slow = recorder.tool("slow", seconds=0.01)
    replies = [calls(search("slow")), calls(*(use("slow", f"c{n}", query=str(n)) for n in range(4)))]

    await answers_of(
        build, *replies, tools=[slow, *mcp_tools(5)], policies={"slow": CallPolicy(limit=Limit(concurrency=1))}
    )

    assert recorder.peak == 1
    assert recorder.count("finished") == 4


@each_agent
async def test_an_approval_asks_about_the_found_tool_with_its_own_arguments(build: Build) -> None:
    ran: list[str] = []
    middleware = [ToolSearch(), RequireApproval(["close_issue"])]
    agent = build(ScriptedModel(THE_RUN), mcp_tools(200, ran), middleware, checkpointer=InMemorySaver())

    state = await agent.ainvoke(GO, AT)
    [question] = state["__interrupt__"]
    assert ran == []
    assert question.value[0]["action_request"] == {
        "action": "close_issue",
        "args": {"repository": "a/b", "number": 7},
    }
    await agent.ainvoke(Command(resume={question.id: {"type": "accept", "args": None}}), AT)
    assert ran == ["close_issue"]


async def test_langchains_approval_asks_about_the_found_tool_and_not_about_call_tool() -> None:
    """Its rules are by the names of tools: a call under another name would run without a question."""
    ran: list[str] = []
    middleware = [ToolSearch(), HumanInTheLoopMiddleware(interrupt_on={"close_issue": True})]
    agent = langchain(ScriptedModel(THE_RUN), mcp_tools(200, ran), middleware, checkpointer=InMemorySaver())

    state = await agent.ainvoke(GO, AT)

    assert [request["name"] for request in state["__interrupt__"][0].value["action_requests"]] == ["close_issue"]
    assert ran == []


@each_agent
async def test_arguments_are_checked_and_repaired_by_the_schema_of_the_found_tool(build: Build) -> None:
    ran: list[str] = []
    reply = calls(use("close_issue", repository="a/b", number="7"))

    answers = await answers_of(
        build,
        calls(search("close issue")),
        reply,
        tools=mcp_tools(200, ran),
        middleware=[ToolSearch(), RepairArguments(tell_model=False)],
    )

    assert answers[1] == "close_issue done"
    assert ran == ["close_issue"]


@each_agent
async def test_arguments_that_the_model_wrote_as_a_text_are_read(build: Build) -> None:
    reply = calls(tool_call("call_tool", "c1", name="close_issue", args='{"repository": "a/b"}'))

    assert (await answers_of(build, calls(search("close issue")), reply, tools=mcp_tools(200)))[1] == "close_issue done"


@each_agent
async def test_a_tool_that_was_not_found_cannot_be_called(build: Build) -> None:
    """Neither by `call_tool`, nor by its own name, nor in the reply that searches for it."""
    ran: list[str] = []
    direct = tool_call("close_issue", "d1", repository="a/b")
    reply = calls(search("close issue"), use("close_issue", repository="a/b"), direct)

    _, by_call_tool, by_name = await answers_of(build, reply, tools=mcp_tools(200, ran))

    for text in (by_call_tool, by_name):
        assert text.startswith("Error: the tool 'close_issue' was not called, because no search of this conversation")
        assert "Call search_tools first" in text
    assert ran == []


@pytest.mark.parametrize(
    ("build", "approval"),
    [
        (react, RequireApproval(["close_issue"])),
        (langchain, RequireApproval(["close_issue"])),
        (langchain, HumanInTheLoopMiddleware(interrupt_on={"close_issue": True})),
    ],
    ids=["create_react_agent", "create_agent", "LangChain's approval"],
)
async def test_a_person_is_not_asked_about_a_tool_that_was_not_found(build: Build, approval: Any) -> None:
    model = ScriptedModel([calls(use("close_issue")), "done"])
    agent = build(model, mcp_tools(20), [ToolSearch(), approval], checkpointer=InMemorySaver())

    assert "__interrupt__" not in await agent.ainvoke(GO, AT)


@each_agent
async def test_a_found_tool_may_be_called_by_its_own_name(build: Build) -> None:
    """A model reads its earlier calls under this name, and imitates them."""
    replies = [calls(search("close issue")), calls(tool_call("close_issue", "d1", repository="a/b"))]

    assert (await answers_of(build, *replies, tools=mcp_tools(200)))[1] == "close_issue done"


@each_agent
async def test_an_unknown_name_gets_the_most_similar_one(build: Build) -> None:
    replies = [calls(use("close_isue"), use("x" * 1_000_000, "c2"), use("call_tool", "c3"), use(7, "c4"))]

    similar, long, itself, number = await answers_of(build, *replies, tools=mcp_tools(200))

    assert similar == (
        "Error: there is no tool 'close_isue'; did you mean 'close_issue'? Find tools with search_tools."
    )
    assert len(long) < 300
    assert itself == "Error: call_tool cannot be called by call_tool. Call it directly."
    assert "valid string" in number


@each_agent
async def test_a_shown_tool_needs_no_search(build: Build) -> None:
    replies = [calls(tool_call("close_issue", "d1", repository="a/b"), use("close_issue", repository="a/b"))]

    answers = await answers_of(build, *replies, tools=mcp_tools(20), middleware=[ToolSearch(shown=["close_issue"])])

    assert answers == ["close_issue done", "close_issue done"]


@each_agent
async def test_what_was_found_outlives_the_process(build: Build) -> None:
    """Only the thread is kept: another agent object goes on with the tools that the first one has found."""
    saver, ran = InMemorySaver(), list[str]()
    for replies in (["found", calls(search("close issue"))], ["done", calls(use("close_issue", repository="a/b"))]):
        agent = build(ScriptedModel(replies[::-1]), mcp_tools(200, ran), [ToolSearch()], checkpointer=saver)
        await run(agent, GO, AT)

    assert ran == ["close_issue"]
    other_thread: Any = {"configurable": {"thread_id": "2"}}
    agent = build(
        ScriptedModel([calls(use("close_issue", repository="a/b")), "done"]),
        mcp_tools(200, ran),
        [ToolSearch()],
        checkpointer=saver,
    )
    assert contents(await run(agent, GO, other_thread))[0].startswith("Error: the tool 'close_issue' was not called")


@each_agent
async def test_a_run_that_is_killed_anywhere_goes_on_with_what_it_has_found(build: Build) -> None:
    def respond(messages: list[BaseMessage]) -> Any:
        last = messages[-1]
        if not isinstance(last, ToolMessage):
            return calls(search("close issue"))
        return calls(use("close_issue", repository="a/b")) if last.name == "search_tools" else "done"

    policies = {"close_issue": CallPolicy(idempotent=True)}
    agent = build(ScriptedModel([respond], loop=True), mcp_tools(20), [ToolSearch()], policies=policies)
    events = 0
    while (state := await kill_at(events + 1, agent, GO)) is not None:
        events += 1
        assert contents(state)[1:] == ["close_issue done"]
        assert state["messages"][-1].content == "done"
    assert events > 10


async def test_a_sync_run_does_the_same() -> None:
    for build in (react, langchain):
        ran: list[str] = []
        agent = build(ScriptedModel(THE_RUN), mcp_tools(200, ran), [ToolSearch()])
        with anyio.fail_after(WAIT):
            await anyio.to_thread.run_sync(agent.invoke, GO)
        assert ran == ["close_issue", "close_issue", "export_label"]


# In a node without an agent of callboard


def state_of(*replies: Any) -> dict[str, Any]:
    return {"messages": [("user", "go"), *replies]}


async def search_in(query: str, tools: Sequence[Any], **options: Any) -> ToolMessage:
    node = ToolNode(tools, middleware=[ToolSearch(**options)])
    with anyio.fail_after(WAIT):
        [message] = (await node.ainvoke([search(query)]))["messages"]
    return message


async def test_a_node_of_a_graph_calls_the_found_tool_under_its_policy() -> None:
    """Nobody rewrites the reply of a model that LangGraph asks: the call changes in the node."""
    recorder = Recorder()
    node = ToolNode(
        [recorder.tool("slow", seconds=5), *mcp_tools(5)],
        middleware=[ToolSearch()],
        policies={"slow": CallPolicy(timeout=0.01)},
    )
    reply, result = calls(search("slow")), ToolMessage("...", name="search_tools", tool_call_id="s1", artifact=["slow"])

    assert [tool.name for tool in node.offered_tools()] == ["search_tools", "call_tool"]
    late = await node.ainvoke(state_of(reply, result, calls(use("slow", query="q"))))
    refused = await node.ainvoke(state_of(calls(use("slow", query="q"))))

    assert "did not finish within its timeout of 0.01 s" in contents(late)[0]
    assert contents(refused)[0].startswith("Error: the tool 'slow' was not called")
    assert recorder.order == ["slow(q)"]


# The search


async def test_a_result_has_the_schema_that_the_model_would_have_been_offered() -> None:
    tools = mcp_tools(20)
    message = await search_in("close an issue", tools, results=1)

    assert json.loads(str(message.content)) == [convert_to_openai_tool(tools[5])["function"]]
    assert message.artifact == ["close_issue"]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("close issue", "close_issue"),
        ("Closing? CLOSE the issues!", "close_issue"),
        ("close_issue", "close_issue"),
        ("closeIssue", "close_issue"),
        ("delete the milestones of a repository", "delete_milestone"),
        ("pull request assign", "assign_pull_request"),
        ("how many people are in the team", "count_members"),
        ("erstelle", "uebersetze"),
        ("翻译文本", "translate"),
        ("repo", "repository_size"),
    ],
)
async def test_words_of_names_and_descriptions_find_the_tool(query: str, best: str) -> None:
    def make_tool(name: str, description: str) -> BaseTool:
        return StructuredTool.from_function(func=lambda: "", name=name, description=description)

    tools = [
        *mcp_tools(100),
        make_tool("count_members", "Count the people of a team."),
        make_tool("translate", "把文本翻译成另一种语言"),
        make_tool("uebersetze", "Erstelle eine Übersetzung."),
        make_tool("repository_size", "Return a size."),
    ]

    assert (await search_in(query, tools)).artifact[0] == best


async def test_a_rare_word_counts_more_than_one_of_all_tools() -> None:
    def make_tool(name: str, description: str) -> BaseTool:
        return StructuredTool.from_function(func=lambda: "", name=name, description=description)

    tools = [make_tool(f"list_thing_{number}", "List things.") for number in range(50)]

    message = await search_in("list invoices", [*tools, make_tool("show_bills", "Show invoices.")])

    assert message.artifact[:3] == ["show_bills", "list_thing_0", "list_thing_1"]  # equal ones in the node's order


THIRTY_TOOLS = mcp_tools(30)
QUERIES = st.one_of(st.text(max_size=40), st.lists(st.sampled_from([*VERBS, *TOPICS, "a", "é"])).map(" ".join))


@given(QUERIES, st.integers(1, 8))
async def test_any_query_has_a_bounded_result_which_is_the_same_each_time(query: str, results: int) -> None:
    node = ToolNode(THIRTY_TOOLS, middleware=[ToolSearch(results=results, characters=1_000)])

    with anyio.fail_after(WAIT):
        [first, second] = (await node.ainvoke([search(query), search(query, "s2")]))["messages"]

    assert (first.content, first.artifact, first.status) == (second.content, second.artifact, "success")
    assert len(first.artifact) <= results
    assert len(first.content) <= (1_000 if first.artifact else 1_500)


async def test_a_search_without_a_fit_lists_some_names() -> None:
    message = await search_in("quantum", mcp_tools(200))

    assert str(message.content).startswith("No tool fits 'quantum'. Search with other words. There are: create_issue, ")
    assert str(message.content).endswith(" and 160 more")
    assert message.artifact == []


async def test_a_schema_that_is_too_long_is_left_out_and_the_tool_is_found() -> None:
    async def work(text: str) -> str:
        """Work."""
        return text

    work.__doc__ = "Work. " * 5_000
    message = await search_in("work", [work], characters=2_000)

    [entry] = json.loads(str(message.content))
    assert entry["parameters"].startswith("not shown, because the schema has ")
    assert len(str(message.content)) < 2_000
    assert message.artifact == ["work"]


@pytest.mark.parametrize(
    "query", ["issue " * 1_600_000, "x" * 16_000_000, "翻" * 5_000_000], ids=["words", "x", "wide"]
)
async def test_a_hostile_query_holds_no_loop(query: str) -> None:
    node = ToolNode(mcp_tools(200), middleware=[ToolSearch()])
    await node.ainvoke([search("warm")])

    async with watch_loop() as hold:
        [message] = (await node.ainvoke([search(query)]))["messages"]

    assert len(message.content) < 25_000
    assert "Only the first 1000 characters" in message.content or not message.artifact
    assert hold.longest < 0.1


@each_agent
async def test_a_long_reply_is_changed_in_a_worker_thread(build: Build) -> None:
    """Reading megabytes of arguments would hold the event loop."""
    threads: list[bool] = []

    class Watching(Middleware):
        def rewrite_reply(self, reply: AIMessage, messages: Any, tools: Any) -> AIMessage:
            threads.append(threading.current_thread() is own_thread)
            return reply

    own_thread, recorder = threading.current_thread(), Recorder()
    replies = [calls(tool_call("work", query=query)) for query in ("short", "long" * 100_000)]
    await answers_of(build, *replies, tools=[recorder.tool("work", returns="ok")], middleware=[Watching()])

    assert threads == [True, False, True]


# Options


def test_mistakes_are_told_when_the_node_is_built() -> None:
    tools = mcp_tools(5)

    with pytest.raises(ValueError, match=r"ToolSearch\(shown=...\).*'list_isue'.*did you mean 'list_issue'"):
        ToolNode(tools, middleware=[ToolSearch(shown=["list_isue"])])
    with pytest.raises(TypeError, match="takes names of tools"):
        ToolSearch(shown="list_issue")
    with pytest.raises(ValueError, match=r"ToolSearch\(results=...\) must be 1 or more"):
        ToolSearch(results=0)
    with pytest.raises(ValueError, match=r"ToolSearch\(characters=...\) must be 1000 or more"):
        ToolSearch(characters=10)
    with pytest.warns(IdleMiddlewareWarning, match="shows all tools of the node"):
        ToolNode(tools, middleware=[ToolSearch(shown=[tool.name for tool in tools])])
    with pytest.warns(MiddlewareOrderWarning, match="Put ToolSearch before RequireApproval"):
        ToolNode(tools, middleware=[RequireApproval(), ToolSearch()])


def test_langchains_own_agent_is_refused_and_told_of_ours() -> None:
    """It would offer all tools, so that nothing is gained."""
    with pytest.raises(TypeError, match=r"Supervise\(middleware=\[ToolSearch.*use callboard.create_agent"):
        Supervise(middleware=[ToolSearch()])


def test_a_node_explains_which_tools_have_to_be_found() -> None:
    node = ToolNode(mcp_tools(5), middleware=[ToolSearch(shown=["list_issue"])])

    assert node.explain("list_issue").middleware[0].effect == "always offered"
    assert node.explain("create_issue").middleware[0].effect == "offered by a search"


@each_agent
async def test_a_middleware_of_ones_own_may_change_replies(build: Build) -> None:
    class Renamed(Middleware):
        def rewrite_reply(self, reply: AIMessage, messages: Any, tools: Any) -> AIMessage:
            assert [message.content for message in messages] == ["go"] or reply.content == "done"
            assert set(tools) == {"work"}
            renamed = [{**call, "name": "work"} for call in reply.tool_calls]
            return reply.model_copy(update={"tool_calls": renamed})

    recorder = Recorder()
    answers = await answers_of(
        build, calls(tool_call("Work", "1", query="q")), tools=[recorder.tool("work")], middleware=[Renamed()]
    )

    assert answers == ["q"]
