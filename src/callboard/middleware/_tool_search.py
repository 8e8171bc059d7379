"""`ToolSearch`: middleware that offers a model a search among many tools in place of all their schemas."""

import json
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._errors import error_message
from callboard._langchain._outputs import CallNext, Output
from callboard._langchain._plan import ToolFacts
from callboard._langgraph._vocabulary import ToolCallRequest, ToolRuntime
from callboard._records._policies import CallPolicy, check_count
from callboard._util._callers import warn_user
from callboard._util._suggestions import did_you_mean, suggests_options
from callboard.exceptions import IdleMiddlewareWarning
from callboard.middleware._messages import messages_in
from callboard.tools._middleware import Middleware, Order
from callboard.tools._middleware_hooks import check_tool_names, tool_names

T = TypeVar("T")

SEARCH_TOOL, CALL_TOOL = "search_tools", "call_tool"

_MAX_QUERY_CHARS, _MAX_TERMS, _MAX_DESCRIPTION_CHARS, _MAX_NAME_CHARS = 1_000, 50, 2_000, 100
"""Characters of a query, terms of a query, characters of a description and of a name that are read."""
_MAX_ARGS_CHARS = 100_000
"""Maximum length of a text with arguments that is parsed in the event loop."""
_MAX_LISTED_NAMES = 40
"""Maximum number of names in the result of a search that finds nothing."""
_SHORT_DESCRIPTION_CHARS = 300
"""Characters of the description of a tool whose schema does not fit into the result."""

_INNER_MIDDLEWARE = ("output", "repair", "sanitize", "approval", "fallback", "cache", "breaker", "retry", "redact")
_REASON_TO_BE_OUTSIDE = (
    "it gets the call of `call_tool` in place of the call of the tool, and calls that will be refused"
)


@suggests_options()
class ToolSearch(Middleware):
    """Middleware that offers the model a short, constant list of tools, and a search among all others.

    The model is offered the tools in `shown` and two more: `search_tools(query)` returns the descriptions and the
    schemas of the tools that fit the query, and `call_tool(name, args)` calls one of them. In the reply of the model,
    such a call becomes a call of the tool itself, with the same id: the tool's own policy, limit, span and name apply.
    A tool that no search of the conversation has found cannot be called. The middleware keeps nothing: it reads the
    messages of the state. Place it as the outermost middleware.

    Args:
        shown: names of tools that are always offered.
        results: maximum number of tools in the result of a search, at least 1.
        characters: maximum number of characters in the result of a search, at least 1,000.
        messages_key: key of the messages in the state.

    Raises:
        ValueError: for a number out of range, or if the node lacks a tool of `shown`.
        TypeError: for an option of the wrong type.
    """

    order = Order("search", not_inside=dict.fromkeys(_INNER_MIDDLEWARE, _REASON_TO_BE_OUTSIDE))

    def __init__(
        self,
        *,
        shown: Collection[str] = (),
        results: int = 5,
        characters: int = 20_000,
        messages_key: str = "messages",
    ) -> None:
        check_count("ToolSearch(results=...)", results, least=1)
        check_count("ToolSearch(characters=...)", characters, least=1_000)
        self._shown_names = tool_names("ToolSearch(shown=...)", shown)
        self._offered_names = self._shown_names | {SEARCH_TOOL, CALL_TOOL}
        self._max_results, self._max_characters, self._messages_key = results, characters, messages_key
        self._terms_by_tool = ToolFacts(_extract_tool_terms)
        self._worker_threads = WorkerThreads("ToolSearch")
        self.tools = (
            # A sync function, which runs in a worker thread: many long descriptions take milliseconds.
            StructuredTool.from_function(
                func=self._search_tools,
                name=SEARCH_TOOL,
                description="Find tools by words of their names and descriptions. Call a found tool with call_tool.",
                response_format="content_and_artifact",
                metadata={"idempotent": True},
            ),
            StructuredTool.from_function(
                func=_answer_invalid_call_tool,
                name=CALL_TOOL,
                description="Call a tool that search_tools has found in this conversation.",
            ),
        )

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if the node lacks a tool of `shown`; warn if no tool is left for the search."""
        check_tool_names("ToolSearch(shown=...)", self._shown_names, tools)
        if self._offered_names.issuperset(tools):
            warn_user(
                "ToolSearch(shown=...) shows all tools of the node, so that a search can find none: leave it out",
                IdleMiddlewareWarning,
            )

    def offers(self, tool: BaseTool) -> bool:
        """Return whether a tool is in the constant list that the model is offered."""
        return tool.name in self._offered_names

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return whether the model is offered the tool, or has to find it."""
        return "always offered" if self.offers(tool) else "offered by a search"

    async def awrap_model_call(self, request: Any, call_next: Callable[[Any], Awaitable[T]]) -> T:
        """Send a model request of `create_agent` with the constant list of tools, and with tools of the provider."""
        tools = [tool for tool in request.tools if isinstance(tool, dict) or self.offers(tool)]
        return await call_next(request.override(tools=tools))

    def rewrite_reply(self, reply: AIMessage, messages: Sequence[Any], tools: Mapping[str, BaseTool]) -> AIMessage:
        """Return the reply with calls of found tools in place of its calls of `call_tool`.

        A call of a tool that was not found stays a call of `call_tool`, so that no person is asked about it.
        """
        targets = {
            index: target
            for index, call in enumerate(reply.tool_calls)
            if (target := _unpack_call_tool(call)) is not None and target["name"] in tools
        }
        if not targets:
            return reply
        callable_names = {*_find_searched_names(messages), *self._shown_names} - {SEARCH_TOOL, CALL_TOOL}
        calls = [
            targets[index] if index in targets and targets[index]["name"] in callable_names else call
            for index, call in enumerate(reply.tool_calls)
        ]
        # A copy: the model, or a cache of replies, may keep the original. Its content stays as the provider sent it.
        return reply.model_copy(update={"tool_calls": calls})

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run a call, or refuse it if no search of the conversation has found its tool."""
        call, tool = request.tool_call, request.tool
        # Outside of callboard's agents, nothing rewrites the reply: the call changes its name here.
        if (target := _unpack_call_tool(call)) is not None:
            tools = {tool.name: tool for tool in request.runtime.tools}
            tool = tools.get(target["name"])
            if tool is None or tool.name in (SEARCH_TOOL, CALL_TOOL):
                return error_message(
                    await self._worker_threads.run(partial(_unknown_tool_text, target["name"], tools)), call
                )
            request = request.override(tool_call=target, tool=tool)
        if tool is not None and not self.offers(tool) and not self._has_been_found(tool.name, request.state):
            return error_message(
                f"Error: the tool {tool.name!r} was not called, because no search of this conversation has found it, "
                f"and its parameters may be unknown. Call {SEARCH_TOOL} first, then {CALL_TOOL}.",
                call,
            )
        return await call_next(request)

    def _has_been_found(self, name: str, state: Any) -> bool:
        return name in _find_searched_names(messages_in(state, self._messages_key))

    def _search_tools(self, query: str, runtime: ToolRuntime[Any, Any]) -> tuple[str, list[str]]:
        """Return the descriptions of the tools that fit a query, and their names."""
        tools = [tool for tool in runtime.tools if not self.offers(tool)]
        terms = [*dict.fromkeys(_extract_terms(query[:_MAX_QUERY_CHARS]))][:_MAX_TERMS]
        tools_found = self._rank_tools(query, terms, tools)[: self._max_results]
        if not tools_found:
            names = ", ".join(tool.name[:_MAX_NAME_CHARS] for tool in tools[:_MAX_LISTED_NAMES])
            omission = f" and {len(tools) - _MAX_LISTED_NAMES} more" if len(tools) > _MAX_LISTED_NAMES else ""
            return (
                f"No tool fits {query[:_MAX_NAME_CHARS]!r}. Search with other words. There are: {names}{omission}",
                [],
            )
        entries = [*self._describe_tools(tools_found)]
        text = "[" + ",\n".join(text for _, text in entries) + "]"
        if len(query) > _MAX_QUERY_CHARS:
            text += f"\nOnly the first {_MAX_QUERY_CHARS} characters of the query were read."
        return text, [name for name, _ in entries]

    def _rank_tools(self, query: str, terms: Sequence[str], tools: Sequence[BaseTool]) -> list[BaseTool]:
        """Return the tools that have a term of the query, the best first, and equal ones in the order of the node."""
        tool_terms = [self._terms_by_tool.of(tool) for tool in tools]
        scores = [0.0] * len(tools)
        for term in terms:
            scores_of_term = [_score_term(term, terms_of_tool) for terms_of_tool in tool_terms]
            if fitting_tools := sum(score_of_term > 0 for score_of_term in scores_of_term):
                weight = math.log(1 + len(tools) / fitting_tools)  # a word of all tools says little
                scores = [
                    score + score_of_term * weight for score, score_of_term in zip(scores, scores_of_term, strict=True)
                ]
        positions = [position for position, score in enumerate(scores) if score > 0]
        positions.sort(key=lambda position: (tools[position].name != query, -scores[position]))
        return [tools[position] for position in positions]

    def _describe_tools(self, tools: Sequence[BaseTool]) -> Iterator[tuple[str, str]]:
        """Yield the name of each tool and its description as JSON, as long as the texts fit into the result."""
        characters_left = self._max_characters
        for tool in tools:
            function = convert_to_openai_tool(tool)["function"]
            text = json.dumps(function, ensure_ascii=False)
            if len(text) > characters_left:
                description = tool.description[:_SHORT_DESCRIPTION_CHARS]
                omission = f"not shown, because the schema has {len(text)} characters"
                text = json.dumps({"name": tool.name, "description": description, "parameters": omission})
            if len(text) > characters_left:
                return
            characters_left -= len(text) + 3  # with the separator, and the brackets of the list
            yield tool.name, text


def _answer_invalid_call_tool(name: str, args: dict[str, Any] | None = None) -> str:  # noqa: ARG001 (they are the schema of `call_tool`)
    """Call a tool; a call with valid arguments runs as a call of this tool, and never gets here."""
    return f"Error: {CALL_TOOL} takes the name of a tool, and the arguments of the tool as an object."


def _unpack_call_tool(call: ToolCall) -> ToolCall | None:
    """Return the call that a call of `call_tool` stands for; `None` for other calls and for invalid arguments."""
    if call["name"] != CALL_TOOL:
        return None
    name, args = call["args"].get("name"), call["args"].get("args") or {}
    if isinstance(args, str) and len(args) <= _MAX_ARGS_CHARS:  # models often write such an object as a text
        with suppress(ValueError, RecursionError):  # it stays a text, which is refused below
            args = json.loads(args)
    if not isinstance(name, str) or not isinstance(args, dict):
        return None
    return ToolCall(name=name, args=args, id=call["id"], type="tool_call")


def _find_searched_names(messages: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the tools that the searches of a conversation have found, the latest first."""
    for message in reversed(messages):
        if isinstance(message, ToolMessage) and message.name == SEARCH_TOOL and isinstance(message.artifact, list):
            yield from (name for name in message.artifact if isinstance(name, str))


def _unknown_tool_text(name: str, tools: Collection[str]) -> str:
    """Return the error for a name that `call_tool` cannot call, with the most similar one."""
    if name in (SEARCH_TOOL, CALL_TOOL):
        return f"Error: {name} cannot be called by {CALL_TOOL}. Call it directly."
    shown_name = name[:_MAX_NAME_CHARS]
    suggestion = did_you_mean(shown_name, [tool for tool in tools if tool not in (SEARCH_TOOL, CALL_TOOL)]) or "."
    return f"Error: there is no tool {shown_name!r}{suggestion} Find tools with {SEARCH_TOOL}."


# Search

_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class _ToolTerms(NamedTuple):
    """Terms in the name and in the description of a tool."""

    name: frozenset[str]
    description: frozenset[str]


def _extract_tool_terms(tool: BaseTool) -> _ToolTerms:
    description = tool.description[:_MAX_DESCRIPTION_CHARS]
    return _ToolTerms(frozenset(_extract_terms(tool.name)), frozenset(_extract_terms(description)))


def _extract_terms(text: str) -> Iterator[str]:
    """Yield the words of a text in a form in which they are compared."""
    for word in _WORD.findall(_CAMEL_CASE.sub(" ", text).casefold()):
        if word.isascii():
            yield word[:-1] if len(word) > 3 and word.endswith("s") else word
        else:  # Chinese and Japanese have no spaces between words
            yield from (word[index : index + 2] for index in range(max(1, len(word) - 1)))


def _score_term(term: str, tool_terms: _ToolTerms) -> float:
    if term in tool_terms.name:
        return 3.0
    if len(term) > 2 and any(word.startswith(term) for word in tool_terms.name):
        return 2.0
    return 1.0 if term in tool_terms.description else 0.0
