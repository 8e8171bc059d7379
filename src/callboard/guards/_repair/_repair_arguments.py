"""`RepairArguments`: correction of invalid arguments, if exactly one correction is possible."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note
from callboard._calls._thread_pool import Threads
from callboard.guards._repair._contract import contract_of
from callboard.guards._repair._search import Repair, Repaired, repair
from callboard.guards._repair._slips import Kind
from callboard.tools._large_values import run_if_long
from callboard.tools._middleware import Middleware, Order
from callboard.tools._plan import ToolFacts
from callboard.tools._results import CallNext, Output
from callboard.tools._vocabulary import ToolCallRequest

_TOLD = 8
"""Maximum number of repairs that the message to the model lists."""


class RepairArguments(Middleware):
    """Repairs the arguments of a call that are invalid, if exactly one repair makes them valid.

    Valid arguments are passed on unchanged. So are invalid ones with several possible repairs, or none: the model then
    reads the error and tries again. Repaired are: JSON in a string; numbers and constants as text; a single value
    instead of a list, and a list of one instead of a value; case and misspellings of choices and names; arguments
    nested in another; and arguments that the schema forbids. Missing values are never filled in, and injected
    arguments are never touched. Large arguments are handled in a worker thread, with the schema's validators.

    The tool and middleware after this one get the repaired arguments; the message history keeps the original ones.
    Observers receive `repaired`, with `arguments` (dotted names of the schema) and `kinds`. The call's message has the
    same in `additional_kwargs["callboard"]["repaired"]`.

    Args:
        tell_model: whether to list the repairs at the end of the call's message, so that the model can notice a wrong
            one. Never done for tools with `return_direct`, whose message goes to the user.
    """

    order = Order(
        "repair",
        not_inside={
            "approval": "a person approves arguments that are changed afterwards",
            "sanitize": "what a repair takes out of a string has not been checked",
        },
    )

    def __init__(self, *, tell_model: bool = True) -> None:
        self._tell_model = tell_model
        self._threads = Threads("RepairArguments")
        self._contracts = ToolFacts(contract_of)

    def check_tools(self, tools: Mapping[str, BaseTool]) -> None:
        """Raise `ImportError` if a tool has a JSON schema and jsonschema is not installed."""
        for tool in tools.values():
            if isinstance(tool.args_schema, dict):
                self._contracts.of(tool)

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call, with repaired arguments if necessary."""
        repaired = await run_if_long(self._threads, request.tool_call["args"], partial(self._repaired, request))
        if repaired is None:
            return await call_next(request)
        call: ToolCall = {**request.tool_call, "args": repaired.args}
        note("repaired", **_facts(repaired.repairs))
        output = await call_next(request.override(tool_call=call))
        tells = self._tell_model and not cast("BaseTool", request.tool).return_direct
        return _reported(output, call["id"], repaired.repairs, tells=tells)

    def _repaired(self, request: ToolCallRequest) -> Repaired | None:
        args: Any = request.tool_call["args"]
        contract = None if request.tool is None else self._contracts.of(request.tool)
        if contract is None or not isinstance(args, dict):
            return None
        # Values that the model forged for injected arguments do not count here; they are removed before the tool runs.
        injected = {name: value for name, value in args.items() if name in contract.injected}
        own = {name: value for name, value in args.items() if name not in injected} if injected else args
        done = repair(contract, own)
        return Repaired({**injected, **done.args}, done.repairs) if done is not None and injected else done


def _facts(repairs: Iterable[Repair]) -> dict[str, list[str]]:
    distinct = dict.fromkeys((one.place, one.kind) for one in repairs)
    return {"arguments": [place for place, _ in distinct], "kinds": [kind for _, kind in distinct]}


def _reported(output: Output, call_id: str | None, repairs: tuple[Repair, ...], *, tells: bool) -> Output:
    """Return the output with a record of the repairs on the call's message; a `Command` stays unchanged."""
    if isinstance(output, list):
        return [cast("ToolMessage", _reported(item, call_id, repairs, tells=tells)) for item in output]
    if not isinstance(output, ToolMessage) or output.tool_call_id != call_id:
        return output
    before = output.additional_kwargs.get("callboard")
    record = {**(before if isinstance(before, Mapping) else {}), "repaired": _facts(repairs)}
    update: dict[str, Any] = {"additional_kwargs": {**output.additional_kwargs, "callboard": record}}
    if tells:
        update["content"] = _with_text(output.content, _sentence(repairs))
    return output.model_copy(update=update)


def _with_text(content: str | list[Any], text: str) -> str | list[Any]:
    if isinstance(content, str):
        return f"{content}\n\n{text}" if content else text
    return [*content, {"type": "text", "text": text}]


_DONE: Mapping[Kind, str] = {
    "json": "was JSON in a string",
    "number": "was a number in a string",
    "boolean": "was a boolean in a string",
    "null": "was null in a string",
    "text": "was a number, not a string",
    "list": "was a single value, not a list",
    "split": "was a text with separators, not a list",
    "item": "was a list of one",
    "choice": "was misspelt",
    "name": "was called {written}",
    "unknown": "{written} does not exist and was left out",
    "wrapper": "all were inside of {written}",
}


def _sentence(repairs: Iterable[Repair]) -> str:
    told = list(dict.fromkeys(_clause(one) for one in repairs))
    more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    return f"[The arguments of this call were repaired: {'; '.join(told[:_TOLD])}{more}.]"


def _clause(one: Repair) -> str:
    # The name that the model wrote is untrusted: cut and escaped, so that it cannot forge a line of the message.
    done = _DONE[one.kind].format(written=ascii(one.written[:60]))
    return done if one.kind in ("unknown", "wrapper") else f"{one.place} {done}"
