"""Execution of one LangChain tool call, with the behaviour of `BaseTool.arun`, but on trio as well as on asyncio.

The order of events, the config in the body's context, and the treatment of errors and results are langchain-core's.
`tests/tools/test_invocation_matches_langchain.py` compares them. Private helpers of langchain-core are used where they
decide what the caller sees.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from itertools import takewhile
from typing import Any, NoReturn, cast

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import _set_config_context, var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_core.tools.base import ToolException, _format_output, _handle_tool_error, _handle_validation_error
from pydantic import ValidationError
from pydantic.v1 import ValidationError as ValidationErrorV1

from callboard._calls._attempt import Attempt
from callboard._calls._call import current_call, note
from callboard._calls._limits import NoKeyError
from callboard._langchain._callbacks import LazyAsyncManager, LazySyncManager, ToolRun
from callboard._langchain._errors import note_lost_result, raise_invalid_arguments
from callboard._langchain._large_values import content_of, run_in_worker, takes_long, to_text
from callboard._langchain._outputs import items_in
from callboard._langchain._plan import Plan, model_args
from callboard._langchain._unknown_outcomes import REPEATS, is_lost, question_instead, runs_again
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard.exceptions import CallError

_TEXT_MESSAGE = ToolMessage("", artifact=None, tool_call_id="", name="", status="success")
"""Template whose fields are copied into the message of each plain text result."""
_FIELDS, _FIELDS_SET = _TEXT_MESSAGE.__dict__, _TEXT_MESSAGE.__pydantic_fields_set__
_set = object.__setattr__  # without the checks of a model

_NEEDS_ASYNCIO = ("no running event loop", "no current event loop")
"""Texts of asyncio's errors for code that runs on another event loop."""


async def invoke(
    attempt: Attempt,
    plan: Plan,
    call: ToolCall,
    config: RunnableConfig,
    manager: AsyncCallbackManager,
    *,
    remaining_reruns: int = 2,
) -> object:
    """Run a tool; return the same result as `tool.ainvoke`, but with large message contents converted to text."""
    tool = plan.tool
    if plan.kind == "foreign":
        return await _contents_to_text(await run_on_asyncio(partial(plan.fn, {**call, "type": "tool_call"}, config)))
    if plan.kind == "foreign sync":
        return await _contents_to_text(
            await attempt.run_in_thread(partial(plan.fn, {**call, "type": "tool_call"}, config))
        )
    run = None
    if manager.handlers or plan.run_manager or plan.callbacks:
        run = ToolRun(tool, manager, config.pop("run_id", None))
        await run.report_start(call, config.get("run_name"))
    try:
        try:
            args, kwargs = arguments_of(plan, call)
            before = var_child_runnable_config.get()
            tracing = _enter_context(plan, config, manager, run, kwargs)
            try:
                if plan.kind == "sync":
                    body = _run_sync(attempt, partial(plan.fn, *args, **kwargs))
                else:
                    body = plan.fn(*args, **kwargs)
                # Thousands of calls may wait at this await, and each name in a waiting frame costs memory.
                del args, kwargs
                response = await body
            finally:
                var_child_runnable_config.set(before)
                if tracing is not None:
                    _restore_tracing(tracing)
            content, artifact = (response, None) if tool.response_format == "content" else _split_response(response)
            status = "success"
        except (ValidationError, ValidationErrorV1, ToolException) as error:
            content, artifact, status = _text_from_tool(tool, error), getattr(error, "artifact", None), "error"
        if content.__class__ is not str and takes_long(content):
            output = await _format_in_worker(content, artifact, call, tool, status)
        else:
            output = _format_message(content, artifact, call, tool, status)
    except Exception as error:
        is_rerun, replacement = _outcome_of(error, plan, call, remaining_reruns)
        if run is not None:
            # Handlers hear of the failure before a rerun starts: each run that began for them also ends.
            await run.report_error(replacement or error, call["id"])
        if replacement is not None:
            raise replacement from error
        if not is_rerun:
            raise
        # The call was lost with its actor or worker.
        note("rerun")
        return await invoke(attempt, plan, call, config, manager, remaining_reruns=remaining_reruns - 1)
    except current_loop().cancelled_class as error:
        if run is not None:
            await run.report_cancel(error, call["id"])
        raise
    if run is not None:
        await run.report_end(output)
    if isinstance(output, ToolMessage) and isinstance(output.content, str):
        return output
    return await _contents_to_text(output)


async def _run_sync(attempt: Attempt, fn: Callable[[], Any]) -> Any:
    """Run a sync function in a worker thread; await a coroutine that it returns, as a decorated async function may."""

    def call() -> tuple[Any]:
        return (fn(),)  # trio refuses a bare coroutine

    (result,) = await attempt.run_in_thread(call)
    return await result if isinstance(result, Coroutine) else result


async def _contents_to_text(output: object) -> object:
    """Convert large message contents to text, in place, if a model may not be able to read them; return the output."""
    for message in items_in(output):
        if isinstance(message, ToolMessage) and not isinstance(message.content, str) and takes_long(message.content):
            message.content = await run_in_worker(partial(to_text, message.content))
    return output


def _format_message(content: Any, artifact: Any, call: ToolCall, tool: BaseTool, status: str) -> object:
    call_id = call["id"]
    if content.__class__ is str and call_id.__class__ is str and status == "success":
        # pydantic would change none of these values, and its validation takes a fifth of the code by hand. A plain
        # `copy` of the template still takes 7 % of a call in a batch of 100, which is over the budget of that row. The
        # four attributes are those that `BaseModel.__copy__` sets.
        fields = {
            **_FIELDS,
            "content": content,
            "artifact": artifact,
            "tool_call_id": call_id,
            "name": tool.name,
            "additional_kwargs": {},  # each message has dicts of its own
            "response_metadata": {},
        }
        message = object.__new__(ToolMessage)
        _set(message, "__dict__", fields)
        _set(message, "__pydantic_fields_set__", _FIELDS_SET.copy())
        _set(message, "__pydantic_extra__", None if _TEXT_MESSAGE.__pydantic_extra__ is None else {})
        _set(message, "__pydantic_private__", None)
        return message
    try:
        return _format_output(content, artifact, call["id"], tool.name, status)
    except Exception as error:
        note_lost_result(error, tool.name, call["id"], content)
        raise


async def _format_in_worker(content: Any, artifact: Any, call: ToolCall, tool: BaseTool, status: str) -> object:
    """Return the ToolMessage for a large result; a worker thread writes its text."""
    is_list_of_outputs = isinstance(content, list) and all(isinstance(item, ToolOutputMixin) for item in content)
    if is_list_of_outputs or isinstance(content, ToolOutputMixin) or call["id"] is None:
        return content
    message = cast("ToolMessage", _format_message("", artifact, call, tool, status))
    try:
        message.content = await run_in_worker(partial(content_of, content))
    except Exception as error:
        note_lost_result(error, tool.name, call["id"], content)
        raise
    return message


def _outcome_of(error: Exception, plan: Plan, call: ToolCall, remaining_reruns: int) -> tuple[bool, Exception | None]:
    """Return whether a failed call runs again, and the error to raise instead of the original one (or `None`)."""
    if not isinstance(error, CallError) or (supervised := current_call()) is None:
        return False, _other_loop_error(error, plan, call)
    policy = supervised.policy
    # A function with `REPEATS` runs lost work again by itself.
    if remaining_reruns and not hasattr(plan.fn, REPEATS) and is_lost(error) and runs_again(policy):
        return True, None
    return False, question_instead(policy, plan.tool.name, model_args(call, plan.injected), error)


def _other_loop_error(error: Exception, plan: Plan, call: ToolCall) -> RuntimeError | None:
    """Return an error about a tool that failed on trio because it needs asyncio; `None` for any other error."""
    if plan.kind != "async" or not isinstance(error, (RuntimeError, TypeError)) or current_loop().name != "trio":
        return None
    text = str(error)
    if text not in _NEEDS_ASYNCIO and not (text.startswith("trio") and "asyncio" in text):
        return None
    failure = f"The tool {plan.tool.name!r} (call {call['id']!r}) needs asyncio, and runs on trio here ({text})."
    return RuntimeError(
        f"{failure} Run the agent or the node on asyncio, write the tool with anyio, or make it a plain function: that "
        "runs in a thread, where asyncio.run() may be used."
    )


def supplied_names(plan: Plan, injected_call: ToolCall, call: ToolCall) -> frozenset[str]:
    """Return the names of the arguments in `injected_call` that callboard has supplied, and not the model."""
    return plan.injected.names | (injected_call["args"].keys() - call["args"].keys())


def refusal(plan: Plan, call: ToolCall) -> object | None:
    """Return the tool's own message if its schema refuses what the model has written; `None` if it accepts that.

    Raises:
        ToolInvocationError: if the tool has no message for invalid arguments.
        Exception: the error of a validator.
    """
    supplied = plan.injected.names | plan.injected.unwritable
    try:
        arguments_of(plan, call)
    except Exception as error:
        locations = [detail["loc"] for detail in error.errors()] if isinstance(error, ValidationError) else [()]
        # Injected arguments are still absent here, and a validator of the whole schema may need them.
        if supplied and all(not location or location[0] in supplied for location in locations):
            return None
        try:
            return _format_message(_text_from_tool(plan.tool, error), None, call, plan.tool, "error")
        except ValidationError:
            raise_invalid_arguments(cast("ValidationError", error), call, supplied)
    return None


def raise_without_key(error: NoKeyError, plan: Plan, injected_call: ToolCall, call: ToolCall) -> NoReturn:
    """Raise the validation error of invalid arguments; if the arguments are valid, raise the key function's error."""
    try:
        # Keys are computed before validation: a key function often fails because the arguments are invalid.
        arguments_of(plan, injected_call)
    except ValidationError as invalid:
        raise_invalid_arguments(invalid, call, supplied_names(plan, injected_call, call))
    raise error.__cause__ or error from None


def _text_from_tool(tool: BaseTool, error: Exception) -> Any:
    """Return the text of `handle_tool_error` or `handle_validation_error`; raise an error that neither handles."""
    if isinstance(error, ToolException):
        if tool.handle_tool_error:
            return _handle_tool_error(error, flag=tool.handle_tool_error)
    elif tool.handle_validation_error:
        return _handle_validation_error(cast("Any", error), flag=cast("Any", tool.handle_validation_error))
    raise error


def _enter_context(
    plan: Plan, config: RunnableConfig, manager: AsyncCallbackManager, run: ToolRun | None, kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """Set a tool function's context variables and special arguments; return LangSmith's old context if it changed."""
    is_sync = plan.kind == "sync"
    if run is not None and (plan.run_manager or plan.callbacks):
        run_manager = run.manager.get_sync() if is_sync else run.manager
        if plan.run_manager:
            kwargs["run_manager"] = run_manager
        if plan.callbacks:
            kwargs["callbacks"] = run_manager.get_child()
    if plan.config_param is not None:
        kwargs[plan.config_param] = copy_config(config)
    # The config of runs nested in the body: copies of its own, without the name and the id of this run.
    run_id = config.pop("run_id", None) if run is None else run.id
    config["tags"] = config["tags"].copy()
    config["metadata"] = config["metadata"].copy()
    config["callbacks"] = (LazySyncManager if is_sync else LazyAsyncManager).below(manager, run_id)
    config.pop("run_name", None)
    if manager.handlers:
        return _set_config_context(config)[1]
    # Without a tracer among the handlers there is no LangSmith parent to set.
    var_child_runnable_config.set(config)
    return None


def arguments_of(plan: Plan, call: ToolCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the validated arguments of a call; raise the validation error of the tool's schema."""
    if not plan.unvalidated and not plan.positional:
        return _validate(plan, call)
    written = call["args"]
    unvalidated = {name: written[name] for name in plan.unvalidated if name in written}
    schema_args = {name: value for name, value in written.items() if name not in unvalidated}
    args, kwargs = _validate(plan, {**call, "args": schema_args})
    kwargs = {**kwargs, **unvalidated}
    kwargs.pop("v__positional_only", None)  # a field of pydantic's own in the schema of a function
    # One that is missing has a default, and so have those after it.
    positional = [*takewhile(kwargs.__contains__, plan.positional)]
    return (*args, *map(kwargs.pop, positional)), kwargs


def _validate(plan: Plan, call: ToolCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call_id = call["id"]
    if plan.model is None or (plan.model.call_id and call_id is None):
        return plan.tool._to_args_and_kwargs(call["args"].copy(), call_id)
    model, written = plan.model, call["args"]
    if model.call_id:
        written = {**written, **dict.fromkeys(model.call_id, call_id)}
    values = model.validate(written)
    arguments: dict[str, Any] = {}
    for name in model.fields:
        arguments[name] = getattr(values, name)
    for name in model.written_fields:
        if name in values.model_fields_set:
            arguments[name] = getattr(values, name)
    for name in plan.direct:
        if name in written:
            arguments[name] = written[name]
        elif name == "tool_call_id":
            arguments[name] = call_id
    return (), arguments


def copy_config(config: RunnableConfig) -> RunnableConfig:
    """Return a copy of a config whose tags, metadata and `configurable` may be changed."""
    return {
        **config,
        "tags": config["tags"].copy(),
        "metadata": config["metadata"].copy(),
        "configurable": config["configurable"].copy(),
    }


def _restore_tracing(before: dict[str, Any]) -> None:
    from langsmith.run_helpers import _set_tracing_context

    _set_tracing_context(before)


def _split_response(response: object) -> tuple[Any, Any]:
    if isinstance(response, tuple) and len(response) == 2:
        return response
    raise ValueError(
        "Since response_format='content_and_artifact' a two-tuple of the message content and raw tool output is "
        f"expected. Instead, generated response is of type: {type(response)}."
    )
