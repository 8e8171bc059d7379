"""`LoopGuard`: middleware that ends the loop of a model which repeats the same calls and gets the same results."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note
from callboard._langchain._errors import error_message
from callboard._langchain._outputs import CallNext, Output, facts_of, with_facts
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._records._policies import CallPolicy, check_count
from callboard._util._suggestions import suggests_options
from callboard.exceptions import LoopError
from callboard.middleware._messages import append_line, messages_in, replace_call_message
from callboard.tools._middleware import Middleware, Order
from callboard.tools._middleware_hooks import check_tool_names, tool_names

_REFUSED = "refused"


class _Round(NamedTuple):
    """Reply of the model, and the messages between it and the next reply: the answers to its calls are among them."""

    reply: AIMessage
    later_messages: Sequence[Any]

    def repeats_request_of(self, other: "_Round") -> bool:
        """Return whether two replies ask for the same: equal calls in the same order, or without calls equal texts."""
        calls, other_calls = self.reply.tool_calls, other.reply.tool_calls
        if not calls:
            return not other_calls and self.reply.content == other.reply.content
        return len(calls) == len(other_calls) and all(
            call["name"] == other_call["name"] and _are_equal(call["args"], other_call["args"])
            for call, other_call in zip(calls, other_calls, strict=True)
        )

    def repeats_results_of(self, other: "_Round", ignored_tools: frozenset[str]) -> bool:
        """Return whether the equal calls of two replies gave equal results."""
        results, other_results = self._results_by_call_id(), other._results_by_call_id()
        # The results of background calls, whose tool messages say only that they go on.
        background_results, other_background_results = self._background_results(), other._background_results()
        pairs: list[tuple[object, object]] = [(background_results, other_background_results)]
        pairs += [
            (results.get(call["id"]), other_results.get(other_call["id"]))
            for call, other_call in zip(self.reply.tool_calls, other.reply.tool_calls, strict=True)
            if call["name"] not in ignored_tools
        ]
        # A refused call has no result of its own, and is no progress.
        return all(_REFUSED in pair or _are_equal(*pair) for pair in pairs)

    def _background_results(self) -> list[object]:
        return [_background_result_of(message) for message in self.later_messages if _is_background_result(message)]

    def _results_by_call_id(self) -> dict[str | None, object]:
        answers = (message for message in self.later_messages if isinstance(message, ToolMessage))
        return {answer.tool_call_id: _comparable_result(answer) for answer in answers}


@suggests_options()
class LoopGuard(Middleware):
    """Middleware that ends the loop of a model which repeats the same calls and gets the same results.

    It counts how often the last replies of the model in a row had the same calls, with the same arguments, and the
    same results; a group of up to `period` different replies may repeat, too. A different result is progress, and ends
    the count, and so does a message of a person. The guard first tells the model about the repetition, then refuses the
    calls, and at last raises `LoopError`. It keeps nothing itself: it reads the messages of the state. Place it as the
    outermost middleware, so that it compares what the model has read. The default numbers let a model poll for a while.

    Args:
        nudge: number of the repetition from which a result ends with a line about it, at least 2; the first call is
            number 1.
        refuse: number of the repetition from which the calls do not run and the model gets an error, at least `nudge`.
        stop: number of the repetition that raises `LoopError`, at least `refuse`.
        period: largest number of replies that repeat as a group, at least 1.
        ignore_results: names of tools whose results are not compared, because they differ each time.
        messages_key: key of the messages in the state.

    Raises:
        ValueError: for a number out of range, or if the node lacks a tool of `ignore_results`.
        TypeError: for an option of the wrong type.
    """

    order = Order(
        "loop",
        not_inside={
            "output": "a text that was cut names an id that is new each time",
            "redact": "what the model reads may be equal where the secrets differ",
            "cache": "answers from the cache do not pass it, and its line for the model is cached",
            "fallback": "what the fallback answers does not pass it",
            "approval": "a person is asked about a call that it then refuses",
        },
    )

    def __init__(
        self,
        *,
        nudge: int = 15,
        refuse: int = 25,
        stop: int = 40,
        period: int = 4,
        ignore_results: Collection[str] = (),
        messages_key: str = "messages",
    ) -> None:
        check_count("LoopGuard(nudge=...)", nudge, least=2)
        check_count("LoopGuard(refuse=...)", refuse, least=nudge)
        check_count("LoopGuard(stop=...)", stop, least=refuse)
        check_count("LoopGuard(period=...)", period, least=1)
        self.nudge, self.refuse, self.stop, self._period = nudge, refuse, stop, period
        self._ignored_tools = tool_names("LoopGuard(ignore_results=...)", ignore_results)
        self._messages_key = messages_key

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if the node lacks a tool that `ignore_results` names."""
        check_tool_names("LoopGuard(ignore_results=...)", self._ignored_tools, tools)

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        return (
            f"tells the model about repetition {self.nudge}, refuses repetition {self.refuse}, and raises LoopError at "
            f"repetition {self.stop}"
        )

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call, or refuse it, by the number of its repetition.

        Raises:
            LoopError: if the calls repeat for the `stop`th time.
        """
        repetition = self._find_repetition_number(request)
        if repetition >= self.stop:
            raise LoopError(request.tool_call["name"], repetition)
        if repetition < self.refuse:
            output = await call_next(request)
            if repetition < self.nudge:
                return output
            return replace_call_message(output, request.tool_call, lambda message: _add_nudge(message, repetition))
        note("loop_refused", repetition=repetition)
        message = error_message(
            f"Error: this call was not run. The same calls gave the same results {repetition - 1} times in a row, and "
            "they will not change by themselves. Change the arguments, use another tool, or answer with what you have.",
            request.tool_call,
        )
        message.additional_kwargs = with_facts(message, loop=_REFUSED)
        return message

    async def aerror_message(self, message: ToolMessage, request: ToolCallRequest) -> ToolMessage:
        """Add the line about the repetition to an error message, which did not pass through the middleware."""
        repetition = self._find_repetition_number(request)
        return _add_nudge(message, repetition) if self.nudge <= repetition < self.refuse else message

    def _find_repetition_number(self, request: ToolCallRequest) -> int:
        messages = messages_in(request.state, self._messages_key)
        call_id = request.tool_call["id"]
        for end in range(len(messages), 0, -1):  # the call's own reply is near the end
            reply = messages[end - 1]
            if isinstance(reply, AIMessage) and any(call["id"] == call_id for call in reply.tool_calls):
                return self.count_repetitions(messages[:end])
        return 1

    def count_repetitions(self, messages: Sequence[Any]) -> int:
        """Return how often the calls of the last reply were made in a row with equal results, this reply included.

        Args:
            messages: the conversation, the oldest first.
        """
        rounds = self._rounds(messages)
        current = next(rounds, None)
        if current is None:
            return 1
        earlier = list(islice(rounds, self._period))
        counts = [1]
        for period in range(1, len(earlier) + 1):
            if not current.repeats_request_of(earlier[period - 1]):
                continue
            equal_rounds = 1  # the current one, which has no results yet
            while equal_rounds < self.stop * period:
                while len(earlier) < equal_rounds + period and (older := next(rounds, None)) is not None:
                    earlier.append(older)
                if len(earlier) < equal_rounds + period:
                    break
                later, older_round = earlier[equal_rounds - 1], earlier[equal_rounds + period - 1]
                if not later.repeats_request_of(older_round) or not later.repeats_results_of(
                    older_round, self._ignored_tools
                ):
                    break
                equal_rounds += 1
            # The current reply, the one that it repeats, and each whole group of equal rounds before that.
            counts.append(2 + (equal_rounds - 1) // period)
        return max(counts)

    def _rounds(self, messages: Sequence[Any]) -> Iterator[_Round]:
        """Yield the replies with the answers to their calls, the newest first, back to the last message of a person."""
        end = len(messages)
        for index in range(end - 1, -1, -1):
            message = messages[index]
            if type(message) is ToolMessage:  # most messages, if replies have many calls
                continue
            if isinstance(message, HumanMessage) and not _is_background_result(message):
                return
            if isinstance(message, AIMessage):
                yield _Round(message, messages[index + 1 : end])
                end = index


def _are_equal(value: object, other: object) -> bool:
    try:
        return value == other
    except RecursionError:  # nested too deeply to be compared: no reason to end the run
        return False


def _comparable_result(message: ToolMessage) -> object:
    """Return a tool's result without what callboard has added, so that equal results are equal."""
    facts = facts_of(message)
    if facts.get("loop") == _REFUSED:
        return _REFUSED
    if "background" in facts:
        return None  # its text names the call; the result comes in a message of its own
    content: Any = message.content
    if isinstance(line_length := facts.get("loop_line"), int):
        content = content[:-line_length] if isinstance(content, str) else content[:-1]
    return message.status, _without_own_ids(content, facts)


def _is_background_result(message: object) -> bool:
    """Return whether a message is the result of a background call, and not the word of a person."""
    return isinstance(message, HumanMessage) and "background" in facts_of(message)


def _background_result_of(message: HumanMessage) -> object:
    """Return the result in the message of a background call, without the line that names the call."""
    facts = facts_of(message)
    length = facts.get("header")  # of the line that names the call
    content: Any = message.content
    start = 1 if isinstance(content, list) else length if isinstance(length, int) else 0
    return _without_own_ids(content[start:], facts)


def _without_own_ids(content: str | list[Any], facts: Mapping[str, Any]) -> str | list[Any]:
    """Return the content of a message without the ids and numbers in its texts that middleware makes anew each time."""
    media_ids: object = facts.get("media_ids")
    ids = [facts.get("output_id"), facts.get("fence"), *(media_ids if isinstance(media_ids, list) else ())]
    own_ids = [own_id for own_id in ids if isinstance(own_id, str)]
    if not own_ids:  # nearly all results
        return content

    def strip_own_ids(part: Any) -> Any:
        if isinstance(part, dict):
            return {**part, "text": strip_own_ids(part["text"])} if "text" in part else part
        for own_id in own_ids if isinstance(part, str) else ():
            part = part.replace(own_id, "")
        return part

    return [*map(strip_own_ids, content)] if isinstance(content, list) else strip_own_ids(content)


def _add_nudge(message: ToolMessage, repetition: int) -> ToolMessage:
    """Return a copy of a result that ends with a line about the repetition."""
    note("loop_nudged", repetition=repetition)
    line = (
        f"[The same calls have now been made {repetition} times in a row. If this result is the one of last time, "
        "do not repeat them: change the arguments, use another tool, or answer with what you have.]"
    )
    content = append_line(message.content, line)
    added_length = len(content) - len(message.content)
    return message.model_copy(
        update={"content": content, "additional_kwargs": with_facts(message, loop_line=added_length)}
    )
