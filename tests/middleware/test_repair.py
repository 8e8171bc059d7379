"""`RepairArguments`: it repairs arguments if exactly one valid reading exists, and changes nothing else."""

import ast
import json
import warnings
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.v1 import BaseModel as BaseModelV1

from callboard import CallEvent, CallsInterrupted, InjectedState, ToolNode, ToolRuntime, observe, tool_call
from callboard.guards import RepairArguments
from callboard.guards._repair._repair_arguments import (
    NOT_JSON,
    Repair,
    RepairedArguments,
    find_only_match,
    read_json,
    repair_arguments,
)
from callboard.guards._repair._schema import Contract, make_contract
from tests.helpers import examples, make

WAIT = 60
CORPUS = Path(__file__).parent / "corpus_repair"


class Filter(BaseModel):
    year: int | None = None
    kind: Literal["book", "film"] | None = None
    author: str = ""
    open: bool = False


class Search(BaseModel):
    query: str
    limit: int = 10
    tags: list[str] = []
    pages: list[int] = []
    filter: Filter | None = None


class Weather(BaseModel):
    city: str
    unit: Literal["celsius", "fahrenheit"]
    hours: list[Literal["morning", "evening", "night"]] = []


class Door(BaseModel):
    action: Literal["lock", "activate", "open", "hold_open"]
    mode: Literal["bread", "break", "Mixed", "mixed"] = "bread"
    model: Literal["gpt-4o", "eu-west-1"] = "gpt-4o"
    level: Literal["1", "2"] = "1"
    floor: Literal[1, 2] = 1


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    item_name: str
    max_count: int = 1
    gift_wrap: bool = False


class Echo(BaseModel):
    input: str


class Table(BaseModel):
    data: list[dict[str, Any]]


class Stop(BaseModel):
    model_config = ConfigDict(extra="forbid")
    place: str
    nights: int = 1


class Plan(BaseModel):
    stops: list[Stop]
    end: Stop | None = None


class Flags(BaseModel):
    model_config = ConfigDict(extra="forbid")
    verbose: bool = False


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    kind: Literal["square"]
    side: float


class Wide(BaseModel):
    width: int


class Coloured(BaseModel):
    colour: int


class Draw(BaseModel):
    shape: Circle | Square
    marks: list[int | str] = []
    edge: Wide | Coloured | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    count: int
    share: float
    open: bool
    many: list[int] = []


class Aliased(BaseModel):
    origin: str = Field(alias="from")
    nights: int = Field(1, le=30)
    extra: dict[str, str] = {}
    at: tuple[float, float] | None = None


def strict(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these properties."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


REMOTE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "depth": {"type": "integer"},
        "hidden": {"type": "boolean"},
        "owner": {"type": ["integer", "null"]},
        "range": {"$ref": "#/$defs/Range"},
        "limits": {"anyOf": [{"$ref": "#/$defs/Range"}, {"type": "null"}]},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "sort": {"enum": ["name", "size"]},
        "match": {"anyOf": [strict(**{word: {"type": "string"}}) for word in ("glob", "regex")]},
        "tree": {"$ref": "#/$defs/Tree"},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    },
    "required": ["path"],
    "$defs": {
        "Range": strict(**{"from": {"type": "integer"}, "to": {"type": "integer"}}),
        "Tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
            },
            "required": ["name"],
        },
    },
}

MODELS: list[type[BaseModel]] = [Search, Weather, Door, Order, Echo, Table, Plan, Flags, Draw, Strict, Aliased]
SCHEMAS: dict[str, Any] = {model.__name__.lower(): model for model in MODELS} | {"remote": REMOTE}


def tool_of(name: str, schema: Any = None, got: list[Any] | None = None, **options: Any) -> BaseTool:
    """Return a tool that records its arguments."""

    async def body(**kwargs: Any) -> str:
        (got if got is not None else []).append(kwargs)
        return "done"

    schema = SCHEMAS[name] if schema is None else schema
    return StructuredTool(name=name, description=name, coroutine=body, args_schema=schema, **options)


TOOLS = {name: tool_of(name) for name in SCHEMAS}


class Spy:
    """Inner middleware that records the requests it gets."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of the last request."""
        return dict(self.requests[-1].tool_call["args"])

    async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
        self.requests.append(request)
        return await call_next(request)


def cases() -> list[Any]:
    lines = [line for path in sorted(CORPUS.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [pytest.param(case, id=f"{case['tool']}: {case['name']}") for case in map(json.loads, lines)]


def exact(value: object) -> str:
    """Return a form of the value in which `True`, `1` and `1.0` differ."""
    return json.dumps(value, sort_keys=True)


def contract(schema: Any, name: str = "odd") -> Contract:
    tool_contract = make_contract(tool_of(name, schema))
    assert tool_contract is not None
    return tool_contract


async def run_call(tool: BaseTool, args: dict[str, Any], *middleware: object) -> ToolMessage:
    with anyio.fail_after(WAIT):
        result = await ToolNode([tool], middleware=middleware).ainvoke([tool_call(tool.name, "1", **args)])
    (message,) = result["messages"]
    assert isinstance(message, ToolMessage)
    return message


CONTRACTS = {name: contract(schema, name) for name, schema in SCHEMAS.items()}


def repair_record(message: ToolMessage) -> Any:
    return message.additional_kwargs.get("callboard", {}).get("repaired")


def test_the_corpus_is_large_and_says_everything_once() -> None:
    """The tests below would pass with an empty folder, and a duplicate case would add nothing."""
    counts = Counter(case.id for case in cases())
    assert len(counts) >= 80
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("case", [case for case in cases() if "expected" in case.values[0]])
async def test_a_slip_is_repaired(case: dict[str, Any]) -> None:
    """The message describes the repair, and the model's call is not changed. A second repair changes nothing."""
    got: list[Any] = []
    spy, written = Spy(), deepcopy(case["args"])

    message = await run_call(tool_of(case["tool"], got=got), written, RepairArguments(tell_model=False), spy)

    (request,) = spy.requests
    assert exact(request.tool_call["args"]) == exact(case["expected"])
    assert repair_record(message)["kinds"] == case["kinds"]
    assert exact(written) == exact(case["args"])
    assert (message.content, message.status, len(got)) == ("done", "success", 1)
    tool_contract = CONTRACTS[case["tool"]]
    assert (tool_contract.find_faults(case["expected"]), repair_arguments(tool_contract, case["expected"])) == (
        (),
        None,
    )


@pytest.mark.parametrize("case", [case for case in cases() if "expected" not in case.values[0]])
async def test_what_is_valid_or_may_mean_two_things_is_left_alone(case: dict[str, Any]) -> None:
    """For valid or ambiguous arguments the outcome is the same as without the middleware."""
    got, plain_got, events, spy = list[Any](), list[Any](), list[CallEvent](), Spy()
    args = case["args"]
    with observe(events.append):
        with_link = await run_call(tool_of(case["tool"], got=got), args, RepairArguments(), spy)
    without = await run_call(tool_of(case["tool"], got=plain_got), args)
    assert exact(spy.args) == exact(case["args"])
    assert (with_link, got) == (without, plain_got)
    assert "noted" not in {event.phase for event in events}


async def test_a_valid_call_is_passed_on_as_the_very_same_object() -> None:
    spy, requests = Spy(), []

    async def before(request: Any, call_next: Any) -> Any:
        requests.append(request)
        return await call_next(request)

    message = await run_call(TOOLS["search"], {"query": "tea", "limit": "3"}, before, RepairArguments(), spy)

    assert spy.requests[0] is requests[0]
    assert (message.content, message.additional_kwargs) == ("done", {})


async def test_the_model_is_told() -> None:
    """Only the model knows whether the repair guessed right."""
    args = {"itemName": "tea", "max\n\x1f" + "_" * 90 + "count": 2, "gift wrap": True}
    message = await run_call(TOOLS["order"], args, RepairArguments())
    text = str(message.content)
    assert text.startswith("done\n\n[The arguments of this call were repaired: item_name was called 'itemName'; ")
    assert text.endswith("; gift_wrap was called 'gift wrap'.]")
    assert "\\x1f" in text
    assert text.count("_") < 60


@pytest.mark.real_clock  # large arguments are checked in a thread
async def test_the_model_is_told_a_little_of_a_lot() -> None:
    """The message lists at most eight repairs."""
    schema = {"type": "object", "properties": {f"number_{n}": {"type": "integer"} for n in range(100)}}
    message = await run_call(tool_of("many", schema), {f"number_{n}": "1" for n in range(100)}, RepairArguments())
    assert "number_7 was JSON in a string; and 92 more.]" in str(message.content)
    assert len(repair_record(message)["arguments"]) == 100


async def test_what_the_user_gets_at_once_stays_as_it_is() -> None:
    """With `return_direct` the result goes to the user, so no note for the model is added."""
    message = await run_call(tool_of("search", return_direct=True), {"query": ["tea"]}, RepairArguments())
    assert message.content == "done"
    assert repair_record(message) == {"arguments": ["query"], "kinds": ["item"]}


def returning(output: Any) -> BaseTool:
    async def search(query: str) -> Any:
        return output

    return make(search)


NOTE = "[The arguments of this call were repaired: query was a list of one.]"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("found", f"found\n\n{NOTE}"),
        ("", NOTE),
        ([{"type": "text", "text": "found"}], [{"type": "text", "text": "found"}, {"type": "text", "text": NOTE}]),
    ],
)
@pytest.mark.parametrize("own_metadata", [{"ended": "timeout"}, "mine"], ids=["ours", "of a wrong type"])
async def test_a_message_of_the_tool_is_copied_with_the_record(content: Any, expected: Any, own_metadata: Any) -> None:
    """Metadata under our key with a wrong type is replaced."""
    tool_message = ToolMessage(content, tool_call_id="1", additional_kwargs={"mine": 1, "callboard": own_metadata})
    before = tool_message.model_copy(deep=True)
    message = await run_call(returning(tool_message), {"query": ["tea"]}, RepairArguments())
    record = {
        **(own_metadata if isinstance(own_metadata, dict) else {}),
        "repaired": {"arguments": ["query"], "kinds": ["item"]},
    }
    assert message.content == expected
    assert message.additional_kwargs == {"mine": 1, "callboard": record}
    assert tool_message == before


async def test_of_several_results_only_the_calls_own_message_has_the_record() -> None:
    """The update of a command belongs to the graph."""
    command: Command[Any] = Command(update={"note": "x"})
    outputs = [command, ToolMessage("found", tool_call_id="1"), ToolMessage("found", tool_call_id="2")]
    node = ToolNode([returning(outputs)], middleware=[RepairArguments()])
    result = await node.ainvoke({"messages": [AIMessage("", tool_calls=[tool_call("search", "1", query=["tea"])])]})
    assert result[0].update == {"note": "x"}
    assert repair_record(result[1]["messages"][0]) is not None
    assert (result[2]["messages"][0].content, repair_record(result[2]["messages"][0])) == ("found", None)


async def test_observers_hear_of_places_and_kinds_only() -> None:
    """Promise 9: neither values nor names that the model wrote leave the process."""
    events: list[CallEvent] = []
    args = {"kwargs": {"stops": [{"Place": ["hunter2"], "nights": 2}]}}
    with observe(events.append):
        message = await run_call(TOOLS["plan"], args, RepairArguments())
    (noted,) = [event for event in events if event.phase == "noted"]
    facts = {"arguments": ["*", "stops.*.place", "stops.*.place"], "kinds": ["wrapper", "name", "item"]}
    assert (noted.note, noted.facts, noted.tool) == ("repaired", facts, "plan")
    assert repair_record(message) == facts


async def secret(
    query: str,
    state: Annotated[dict[str, Any], InjectedState],
    runtime: ToolRuntime,
    tool_call_id: Annotated[str, InjectedToolCallId],
    user: Annotated[str, InjectedState("user")] = "nobody",
) -> str:
    """Know who asks."""
    return f"{query} for {user} {state['user']} {tool_call_id} {type(runtime).__name__}"


SECRET = StructuredTool.from_function(coroutine=secret, name="secret")


async def run_with_state(args: dict[str, Any], *middleware: object) -> tuple[Any, ToolMessage]:
    spy = Spy()
    state = {"messages": [AIMessage("", tool_calls=[tool_call("secret", "1", **args)])], "user": "ann"}
    with anyio.fail_after(WAIT):
        result = await ToolNode([SECRET], middleware=[*middleware, spy]).ainvoke(state)
    return spy.args, result["messages"][0]


FORGED = {"user": ["bob"], "state": '{"user": "bob"}', "tool_call_id": ["7"], "runtime": "x"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"query": "tea"}, {"query": "tea"}),
        ({"Query": ["tea"]}, {"query": "tea"}),
        ({**FORGED, "query": ["tea"]}, {**FORGED, "query": "tea"}),
        ({"Query": "tea", "Tool_Call_Id": "7"}, {"query": "tea", "Tool_Call_Id": "7"}),
    ],
    ids=["valid", "repaired", "forged values", "a name like an injected one"],
)
async def test_injected_arguments_are_neither_missed_nor_repaired(written: Any, expected: Any) -> None:
    """Promise 9: they are added after validation, and the node strips what the model wrote for them."""
    args, message = await run_with_state(written, RepairArguments(tell_model=False))
    assert args == expected
    assert message.content == "tea for ann ann 1 ToolRuntime"
    assert {*(repair_record(message) or {"arguments": ()})["arguments"]} <= {"query"}


@pytest.mark.parametrize(
    "args",
    [
        {"input": {"query": "tea", "user": "bob"}},
        {"input": '{"query": "tea", "state": {"user": "bob"}}'},
        {"User": "bob", "query": {"a": 1}},
        {"usr": "bob", "tool_callid": "7", "query": None},
    ],
    ids=str,
)
async def test_nothing_is_repaired_onto_an_injected_argument(args: dict[str, Any]) -> None:
    """Promise 9: a misspelt name is not corrected to that of an injected argument."""
    passed_on, message = await run_with_state(args, RepairArguments())
    _, plain = await run_with_state(args)
    assert passed_on == args
    assert message == plain
    assert "bob" not in str(message.content) or "bob" in str(plain.content)


class Unvalidated(BaseTool):
    name: str = "unvalidated"
    description: str = "Takes anything: a tool without a schema is not validated."

    def _run(self, number: int) -> str:
        return repr(number)

    async def _arun(self, number: int) -> str:
        return repr(number)


class OwnWay(Unvalidated):
    name: str = "own_way"
    args_schema: Any = Search

    def _parse_input(self, tool_input: Any, tool_call_id: str | None) -> Any:
        return {"number": tool_input}


class Nothing(BaseModel):
    """No fields: langchain-core does not validate it."""


class Legacy(BaseModelV1):
    query: str


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        (Unvalidated(), {"number": ["5"]}),
        (OwnWay(), {"query": ["5"]}),
        (tool_of("nothing", Nothing), {"input": {"a": 1}}),
        (tool_of("legacy", Legacy), {"query": "tea", "input": {"query": "milk"}}),
    ],
    ids=["no schema", "own parser", "no fields", "pydantic v1"],
)
async def test_a_tool_without_a_known_schema_gets_what_the_model_wrote(tool: BaseTool, args: dict[str, Any]) -> None:
    spy = Spy()
    await run_call(tool, args, RepairArguments(), spy)
    assert spy.args == args


async def test_a_tool_is_asked_for_its_schema_anew_when_it_has_another() -> None:
    """Tools are mutable, and a middleware may bring another tool of the same name, so no schema is cached by name."""
    middleware = RepairArguments(tell_model=False)
    first_tool, second_tool = tool_of("search", Echo), tool_of("search", Order)

    await run_call(Unvalidated(name="search"), {"number": 5}, middleware)
    first = await run_call(first_tool, {"input": ["tea"]}, middleware)
    second = await run_call(second_tool, {"itemName": "tea"}, middleware)
    second_tool.args_schema = Search
    third = await run_call(second_tool, {"query": ["tea"]}, middleware)

    names = [repair_record(message)["arguments"] for message in (first, second, third)]
    assert names == [["input"], ["item_name"], ["query"]]


class Picky(BaseModel):
    query: str

    @model_validator(mode="before")
    @classmethod
    def taking(cls, data: dict[str, Any]) -> dict[str, Any]:
        inner = data.pop("wrapped", None)
        return data if inner is None else {"query": inner.pop("query")}

    @field_validator("query", mode="before")
    @classmethod
    def crashing(cls, value: Any) -> Any:
        if value == 13:
            raise KeyError(value)
        return value


async def test_a_validator_that_takes_things_out_takes_them_out_of_a_copy() -> None:
    """A validator that removes values works on a copy. Otherwise the tool's own validation would miss them."""
    got: list[Any] = []
    message = await run_call(tool_of("picky", Picky, got), {"wrapped": {"query": "tea"}}, RepairArguments())
    assert (message.content, len(got)) == ("done", 1)


async def test_a_validator_that_crashes_crashes_where_it_would_have() -> None:
    with pytest.raises(KeyError):
        await run_call(tool_of("picky", Picky), {"query": 13}, RepairArguments())


class Asking(BaseModel):
    query: str

    @field_validator("query", mode="before")
    @classmethod
    def asking(cls, value: Any) -> Any:
        ASKED.append(value)
        return interrupt(f"{value}?")


ASKED: list[Any] = []


async def test_a_question_of_a_validator_is_asked_at_once() -> None:
    """Promise 4: an interrupt inside a validator is no statement about the arguments."""
    ASKED.clear()
    with pytest.raises(CallsInterrupted):
        await run_call(tool_of("asking", Asking), {"query": "tea"}, RepairArguments())
    assert ASKED == ["tea"]


NO_SCHEMAS: list[dict[str, Any]] = [
    *({}, {"$ref": "#/nowhere"}, {"$ref": "#"}, {"$ref": "https://example.org/schema"}),
    *({"type": "object", "properties": None}, {"type": 7, "properties": {"a": 5}, "required": 3}),
    *({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"allOf": 5, "anyOf": {}}),
    {"type": "object", "properties": {"a": {"enum": 5, "type": ["string", 4]}}, "required": [["a"]]},
    {"type": "object", "properties": {"a": False}},
]


@pytest.mark.parametrize("schema", NO_SCHEMAS, ids=str)
@pytest.mark.parametrize("args", [{"a": ["1"]}, {"input": {"a": "1"}}, {}], ids=str)
async def test_a_schema_that_is_none_does_no_harm(schema: dict[str, Any], args: dict[str, Any]) -> None:
    got: list[Any] = []
    await run_call(tool_of("odd", schema, got), args, RepairArguments())
    assert got == [args] or got == [args.get("input")]


HOSTILE = {"lists": "[" * 60_000, "objects": "{'a':" * 20_000, "quotes": '"' * 5_000, "single quotes": "'" * 60_001}
HOSTILE |= {"numbers": "[" + "1," * 100_000 + "1]", "commas": "[" + ",\n" * 30_000, "digits": "9" * 5_000}


@pytest.mark.real_clock  # large arguments are checked in a thread
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
async def test_hostile_text_is_left_alone_and_costs_little(value: str) -> None:
    """The thread that reads a hostile text must not be busy for long."""
    spy = Spy()
    await run_call(TOOLS["search"], {"query": "tea", "pages": value}, RepairArguments(), spy)
    assert spy.args["pages"] is value


@pytest.mark.real_clock  # large arguments are checked in a thread
@pytest.mark.parametrize(("levels", "kinds"), [(5, ["text"]), (20, None)])
async def test_what_is_too_deep_is_left_alone(levels: int, kinds: list[str] | None) -> None:
    tree: dict[str, Any] = {"name": "leaf"}
    for _ in range(levels):
        tree = {"name": "branch", "children": [tree]}
    message = await run_call(TOOLS["remote"], {"path": 5, "tree": tree}, RepairArguments())
    assert (repair_record(message) or {}).get("kinds") == kinds


@pytest.mark.parametrize(
    "value",
    ["x" * 70_000, [1] * 1_001, {str(n): n for n in range(1_001)}, ["x" * 30_000] * 2, [[]]],
    ids=lambda v: str(v)[:9],
)
def test_long_text_is_not_read(value: Any) -> None:
    """Neither a long text nor a text with many values is parsed."""
    text = json.dumps(value)
    assert (read_json(text) is NOT_JSON) == (len(text) > 65_536 or len(value) > 1_000)


@pytest.mark.parametrize(
    ("tags", "is_repaired"), [(["x"] * 900, True), (["x"] * 1001, False), (["x" * 500] * 401, False)]
)
def test_large_arguments_are_not_repaired(tags: list[str], is_repaired: bool) -> None:
    """Each round copies and validates all of them."""
    done = repair_arguments(CONTRACTS["search"], {"query": ["tea"], "tags": tags})
    assert (done is not None) is is_repaired


@pytest.mark.parametrize("size", [3, 700])
def test_arguments_that_a_repair_has_made_large_are_not_repaired(size: int) -> None:
    """A JSON schema is not tried on large arguments, so what is wrong with them is not known."""
    numbers = {"type": "array", "items": {"type": "integer"}}
    of_numbers = contract({"type": "object", "properties": {"a": numbers, "b": numbers}})
    mapping = json.dumps({str(n): n for n in range(size)})
    assert repair_arguments(of_numbers, {"a": mapping, "b": mapping}) is None


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2030)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | st.sampled_from(["", "tea", "5", "007", "null", "True", "Celsius", "celcius", "a, b", "[1]", "{'kind': 'Book'}"])
    | st.text(max_size=6)
)
NAMES = st.sampled_from(
    [
        *("query", "Query", "limit", "tags", "filter", "year", "kind", "input", "kwargs", "item_name", "itemName"),
        *("maxCount", "stops", "place", "nights", "shape", "radius", "side", "from", "path", "depth", "range", "to"),
        *("unit", "city", "hours", "count", "share", "open", "many", "match", "glob", "regex", "tree", "name", "pair"),
    ]
)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=4), max_leaves=8)
ARGS = st.dictionaries(NAMES | st.text(max_size=4), VALUES | VALUES.map(json.dumps) | VALUES.map(repr), max_size=5)


@given(st.sampled_from(sorted(SCHEMAS)), ARGS)
@examples(4)
def test_whatever_comes_out_is_valid_and_final(name: str, args: dict[str, Any]) -> None:
    tool_contract, before = CONTRACTS[name], exact(args)
    done = repair_arguments(tool_contract, args)
    assert exact(args) == before
    if done is not None:
        assert tool_contract.find_faults(args) != ()
        assert tool_contract.find_faults(done.args) == ()
        assert repair_arguments(tool_contract, done.args) is None
        assert done.repairs


@given(ARGS)
@pytest.mark.exhaustive
async def test_no_call_is_lost(args: dict[str, Any]) -> None:
    """Promise 2: each call ends with one message, as without the middleware."""
    with anyio.fail_after(WAIT):
        node = ToolNode([*TOOLS.values()], middleware=[RepairArguments()], handle_tool_errors=True)
        call = [{"name": name, "args": args, "id": name, "type": "tool_call"} for name in TOOLS]
        messages = (await node.ainvoke(call))["messages"]
    assert [message.tool_call_id for message in messages] == [*TOOLS]
    assert all(repair_record(message) is None or message.status == "success" for message in messages)


ORDERS = st.fixed_dictionaries(
    {"stops": st.lists(st.fixed_dictionaries({"place": st.text(), "nights": st.integers()}), min_size=1, max_size=3)}
)
SLIPS = {
    "json": lambda args: {"stops": json.dumps(args["stops"])},
    "json of json": lambda args: {"stops": json.dumps(json.dumps(args["stops"]))},
    "fence": lambda args: {"stops": f"```json\n{json.dumps(args['stops'], indent=2)}\n```"},
    "name": lambda args: {"Stops": args["stops"]},
    "wrapper": lambda args: {"kwargs": args},
    "json in a wrapper": lambda args: {"input": json.dumps(args)},
    "camel case": lambda args: {"stops": [{"Place": one["place"], "nights": one["nights"]} for one in args["stops"]]},
    "lists of one": lambda args: {"stops": [{**one, "place": [one["place"]]} for one in args["stops"]]},
    "items as JSON": lambda args: {"stops": [json.dumps(one) for one in args["stops"]]},
}


@given(ORDERS, st.sampled_from(sorted(SLIPS)))
@examples(2)
def test_a_slip_that_loses_nothing_is_undone(args: dict[str, Any], chosen: str) -> None:
    done = repair_arguments(CONTRACTS["plan"], SLIPS[chosen](args))
    assert done is not None
    assert exact(done.args) == exact(args)


@given(VALUES)
@examples(3)
def test_text_is_read_as_what_wrote_it_or_not_at_all(value: Any) -> None:
    """Text is parsed as JSON if possible. Python notation is read only with Python's meaning."""
    assert exact(read_json(json.dumps(value))) == exact(value)
    of_python = read_json(repr(value))
    assert of_python is NOT_JSON or exact(of_python) == exact(value)


@given(st.text(alphabet="[]{}'\",:\\ntrueTN01-.eE` \n", max_size=30))
@examples(5)
def test_what_is_read_beyond_json_is_what_python_reads(text: str) -> None:
    """Accepted Python notation gives Python's value, and notation without a JSON equivalent is refused."""
    value = read_json(text)
    if value is NOT_JSON or "`" in text or any(word in text for word in ("true", "null", "false", "\\", "\n")):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ast.literal_eval(text.strip()) == value


KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "required", "items", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "prefixItems"),
        *("additionalProperties", "query", "input"),
    ]
)
WORDS = st.sampled_from(["object", "string", "array", "integer", "#", "#/properties/query"])
JUNK = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYWORDS, v | WORDS, max_size=5), max_leaves=12
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "required", "anyOf", "$ref", "items"]), JUNK), ARGS)
@examples(3)
def test_no_schema_breaks_the_search(schema: dict[str, Any], args: dict[str, Any]) -> None:
    """Schemas from a server are not validated, so any value must be tolerated."""
    of_junk = contract(schema)
    done = repair_arguments(of_junk, args)
    assert done is None or of_junk.find_faults(done.args) == ()


@pytest.mark.parametrize(
    ("word", "choices", "expected"),
    [
        ("celcius", ["celsius", "kelvin"], "celsius"),
        ("maxResults", ["max_results", "min_results"], "max_results"),
        ("HTTPServer", ["http_server"], "http_server"),
        *(("northwest", ["north", "northeast"], None), ("descending", ["ascending", "random"], None)),
        *(("unsubscribe", ["subscribe"], None), ("inactive", ["active"], None), ("atypical", ["typical"], None)),
        *(("online", ["inline"], None), ("us-east-2", ["us-east-1"], None), ("a", ["b"], None), ("", ["a"], None)),
        *(("celsius", ["celsius"], None), ("x" * 1000, ["x" * 999], None), ("A-B", ["a_b", "ab"], None)),
    ],
)
def test_a_word_stands_for_one_choice_or_for_none(word: str, choices: list[str], expected: str | None) -> None:
    assert find_only_match(word, choices) == expected


def test_names_may_follow_a_pattern() -> None:
    """With `patternProperties` the valid names are unknown, so no name is corrected."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    of_patterns = contract(schema)
    assert of_patterns.find_faults({"a": 1, "x-b": 1, "c": 1}) == ()
    expected = RepairedArguments({"a": 1, "x-b": "1", "c": 1}, (Repair("json", "a"),))
    assert repair_arguments(of_patterns, {"a": "1", "x-b": "1", "c": 1}) == expected


BOUNDED = {
    "type": "object",
    "properties": {
        "depth": {"type": "integer", "maximum": 100},
        "names": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "size": {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]},
        "word": {"type": "string", "pattern": "^(a+)+$"},
        "far": {"$ref": "http://127.0.0.1:9/schema.json"},
    },
}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"depth": "50"}, {"depth": 50}),
        ({"depth": "500"}, None),
        ({"names": "ann, bob"}, None),
        ({"names": "ann"}, None),
        ({"size": "500"}, {"size": 500}),
        ({"word": "a" * 40 + "!", "depth": "5"}, {"word": "a" * 40 + "!", "depth": 5}),
        ({"far": {"x": 1}, "depth": "5"}, None),
    ],
    ids=str,
)
def test_a_repair_is_valid_by_all_that_a_json_schema_says(args: dict[str, Any], expected: object) -> None:
    """Ranges and lengths are checked, too. A server's regular expressions and remote references are not used."""
    done = repair_arguments(contract(BOUNDED), args)
    assert (done and done.args) == expected


def nest(depth: int) -> dict[str, Any]:
    return {"left": nest(depth - 1)} if depth else {"value": "many"}


def test_too_many_alternatives_are_given_up() -> None:
    """Two alternatives at each level take exponential time: 12 levels blocked the event loop for minutes."""
    inner = {"left": {"$ref": "#/$defs/filter"}, "right": {"$ref": "#/$defs/filter"}}
    node = {"type": "object", "properties": inner, "required": ["left"]}
    leaf = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    schema = {"type": "object", "$defs": {"filter": {"anyOf": [node, node, leaf]}}, "properties": inner}
    assert repair_arguments(contract(schema), {"left": nest(25)}) is None


@pytest.mark.parametrize("at_root", [False, True])
@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf", "if"])
@pytest.mark.hangs_after(20)
@pytest.mark.filterwarnings("ignore::callboard.exceptions.LoopBlockedWarning")  # half a second, on a busy machine
async def test_a_short_schema_whose_parts_multiply_leaves_the_arguments_as_they_are(word: str, at_root: bool) -> None:
    """2 kB from a server held the event loop for minutes: at each of eight levels, every part was tried ten times."""

    def level(number: int) -> dict[str, Any]:
        part = {"$ref": f"#/$defs/{number + 1}"}
        return {"if": part, "then": part, "else": part} if word == "if" else {word: [part] * 10}

    levels = {str(number): level(number) for number in range(30)} | {"30": {"type": "integer"}}
    value = {"type": "integer"} if at_root else {"$ref": "#/$defs/0"}
    schema = {"type": "object", "properties": {"x": value}, "$defs": levels, **(level(0) if at_root else {})}

    async def echo(**arguments: Any) -> str:
        return str(arguments)

    tool = StructuredTool(name="echo", description="Echo.", args_schema=schema, coroutine=echo)
    result = await ToolNode([tool], middleware=[RepairArguments()]).ainvoke([tool_call("echo", x="no number")])
    assert result["messages"][0].text == "{'x': 'no number'}"
