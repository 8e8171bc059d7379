"""Rules of `Sanitize` for parts of arguments, in each spelling that a tool accepts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Optional, TypeVar

import pytest
from langchain_core.tools import StructuredTool
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, Json, RootModel, create_model, v1
from typing_extensions import TypeAliasType, TypedDict

from callboard import ToolNode, tool_call
from callboard.guards import PathIn, Sanitize

pytestmark = pytest.mark.real_clock  # paths are resolved in a worker thread
FORBIDDEN = "/etc/passwd"
T = TypeVar("T")


class File(BaseModel):
    path: str = Field(validation_alias=AliasChoices("path", "file", AliasPath("location", "path")))


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: f"{name}Name", populate_by_name=True)
    path: str


@dataclass
class Folder:
    files: list[File]


class Entry(TypedDict):
    file: File


class Box(BaseModel, Generic[T]):
    content: T


class Tree(BaseModel):
    path: str = Field(alias="at")
    children: "list[Tree]" = []


@dataclass
class Aliased:
    path: str = Field(alias="at")


class Crossed(BaseModel):
    path: str = Field(alias="file")
    file: str = Field(alias="upload", default="")


Files = TypeAliasType("Files", list[File])
Many = TypeAliasType("Many", list[T], type_params=(T,))


@pytest.mark.parametrize(
    ("annotation", "rule", "argument"),
    [
        (list[File], "value[].path", [{"file": FORBIDDEN}]),
        (list[File], "value[].path", [{"location": {"path": FORBIDDEN}}]),
        (list[File], "value[].file", [{"path": FORBIDDEN}]),
        (list[File], "value[].*", [{"location": {"path": FORBIDDEN}}]),
        (Camel, "value.path", {"pathName": FORBIDDEN}),
        (Optional[File], "value.path", {"file": FORBIDDEN}),
        (Annotated[File | int, Field(description="a file")], "value.path", {"file": FORBIDDEN}),
        (dict[str, File], "value.*.path", {"a": {"file": FORBIDDEN}}),
        (Folder, "value.files[].path", {"files": [{"file": FORBIDDEN}]}),
        (Entry, "value.file.path", {"file": {"file": FORBIDDEN}}),
        (Box[list[File]], "value.content[].path", {"content": [{"file": FORBIDDEN}]}),
        (RootModel[list[File]], "value[].path", [{"file": FORBIDDEN}]),
        (Files, "value[].path", [{"file": FORBIDDEN}]),
        (tuple[File, ...], "value[].path", [{"file": FORBIDDEN}]),
        (Iterable[File], "value[].path", [{"file": FORBIDDEN}]),
        (Many[File], "value[].path", [{"file": FORBIDDEN}]),
        (list[Aliased], "value[].path", [{"at": FORBIDDEN}]),
        (Tree, "value.children[].path", {"at": "", "children": [{"at": FORBIDDEN}]}),
        (dict[str, Any], "value.deep.path", {"deep": {"path": FORBIDDEN}}),
    ],
)
async def test_a_rule_for_a_part_holds_however_the_model_spells_it(annotation, rule, argument):
    """A tool accepts aliases at each level: a rule that knows one spelling only checks nothing."""
    node = ToolNode([_tool_with(value=(annotation, ...))], middleware=[Sanitize({rule: PathIn("/srv/data")})])
    [message] = (await node.ainvoke([tool_call("read", "1", value=argument)]))["messages"]
    assert message.status == "error"
    assert "/srv" not in message.text
    assert "leads out of the folders" in message.text


@pytest.mark.parametrize("names", [["path", "file"], ["file", "path"]])
async def test_the_alias_of_a_field_is_not_checked_by_the_rule_of_a_field_with_that_name(names: list[str]) -> None:
    """The order of the rules decided which of the two was checked."""
    rules = {"path": PathIn("/srv/data"), "file": lambda value: value}
    sanitize = Sanitize({f"value.{name}": rules[name] for name in names})
    node = ToolNode([_tool_with(value=(Crossed, ...))], middleware=[sanitize])
    [message] = (await node.ainvoke([tool_call("read", "1", value={"file": FORBIDDEN})]))["messages"]
    assert "leads out of the folders" in message.text


async def test_a_rule_holds_for_an_argument_that_is_taken_from_another_one():
    """`AliasPath` reads the argument `url` out of another key, where its rule would not look."""
    tool = _tool_with(path=(str, Field(validation_alias=AliasPath("arguments", 0))))
    node = ToolNode([tool], middleware=[Sanitize({"path": PathIn("/srv/data")})])
    [message] = (await node.ainvoke([tool_call("read", "1", arguments=[FORBIDDEN])]))["messages"]
    assert "leads out of the folders" in message.text


@pytest.mark.parametrize("rule", ["files[].path", "files[].at"])
async def test_a_rule_holds_for_an_alias_in_a_schema_of_pydantic_1(rule: str) -> None:
    """Some tools of LangChain's partners still have one. A misspelt rule is refused there, too."""
    node = ToolNode([_of_version_1()], middleware=[Sanitize({rule: PathIn("/srv/data")})])
    [message] = (await node.ainvoke([tool_call("read", "1", files=[{"at": FORBIDDEN}])]))["messages"]
    assert "leads out of the folders" in message.text
    with pytest.raises(ValueError, match="did you mean 'path'"):
        ToolNode([_of_version_1()], middleware=[Sanitize({"files[].pth": PathIn("/srv/data")})])


def _of_version_1() -> StructuredTool:
    class Old(v1.BaseModel):
        path: str = v1.Field(alias="at")

    class Files1(v1.BaseModel):
        files: list[Old]

    return StructuredTool.from_function(lambda files: files, name="read", description="d", args_schema=Files1)


async def test_an_allowed_value_reaches_the_tool_in_each_spelling():
    """The check would be useless if it refused everything."""
    node = ToolNode([_tool_with(value=(list[File], ...))], middleware=[Sanitize({"value[].path": PathIn("/srv/data")})])
    argument = [{"path": "/srv/data/a"}, {"file": "/srv/data/b"}, {"location": {"path": "c"}}]
    [message] = (await node.ainvoke([tool_call("read", "1", value=argument)]))["messages"]
    assert message.text == "['/srv/data/a', '/srv/data/b', '/srv/data/c']"


@pytest.mark.parametrize("tools", [{}, {"read": {"value.path": PathIn("/srv")}}])
def test_a_rule_for_a_part_of_a_json_text_is_refused(tools):
    """The tool parses the text after the check, so the rule would check nothing."""
    rules = {} if tools else {"value.path": PathIn("/srv")}
    with pytest.raises(ValueError, match=r"'value\.path'.*JSON text.*check the whole text with a function"):
        ToolNode([_tool_with(value=(Json[File], ...))], middleware=[Sanitize(rules, tools=tools)])


@pytest.mark.parametrize(
    ("annotation", "rule", "text"),
    [
        (list[File], "value[].pathh", "did you mean 'path'"),
        (list[File], "value.path", "no part 'path'"),
        (File, "value.path.name", "type str has no part 'name'"),
        (Folder | None, "value.filez[].path", "did you mean 'files'"),
    ],
)
def test_a_rule_for_a_part_that_does_not_exist_is_an_error(annotation, rule, text):
    """A misspelt rule looks like a check, and checks nothing."""
    for rules in (Sanitize({rule: PathIn("/srv")}), Sanitize(tools={"read": {rule: PathIn("/srv")}})):
        with pytest.raises(ValueError, match=text):
            ToolNode([_tool_with(value=(annotation, ...))], middleware=[rules])


async def test_a_rule_for_all_tools_may_fit_one_of_them_only():
    """A node has tools of several authors."""
    tools = [_tool_with(value=(File, ...)), _tool_with("other", value=(int, ...))]
    node = ToolNode(tools, middleware=[Sanitize({"value.path": PathIn("/srv/data")})])
    calls = [tool_call("read", "1", value={"file": FORBIDDEN}), tool_call("other", "2", value=3)]
    refused, done = (await node.ainvoke(calls))["messages"]
    assert "leads out of the folders" in refused.text
    assert done.text == "3"


def _tool_with(name: str = "read", **fields: Any) -> StructuredTool:
    """Return a tool with the given fields as arguments; its result shows the paths in its argument."""

    async def run(**arguments: Any) -> str:
        value = next(iter(arguments.values()))
        return str([file.path for file in value] if isinstance(value, list) else value)

    schema = create_model("Arguments", **fields)
    return StructuredTool.from_function(coroutine=run, name=name, description="Read files.", args_schema=schema)
