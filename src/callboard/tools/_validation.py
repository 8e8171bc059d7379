"""`ValidationNode`: validation of tool calls' arguments without running the tools."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, create_schema_from_function
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, ValidationError
from pydantic.v1 import BaseModel as BaseModelV1
from pydantic.v1 import ValidationError as ValidationErrorV1

from callboard._langchain._errors import error_message
from callboard._util._callers import check_plain_function
from callboard.tools._bounds import MAX_NAME, describe_exceeded_limit

FormatError = Callable[[BaseException, ToolCall, type[BaseModel]], str]


class ValidationNode(Runnable[Any, Any]):
    """Node that validates the tool calls of the last message against schemas, and runs none of them.

    The output has one message for each call: the validated arguments as JSON, or the validation error. An error message
    has `is_error` in its `additional_kwargs`.

    Args:
        schemas: pydantic models (version 1 or 2), tools with a schema, or functions to make a schema of.
        format_error: function of the error, the call and the schema that returns the text for the model.
        name: name of the node.
        tags: LangChain's tags of its runs.

    Raises:
        ValueError: for a schema of another type.
        TypeError: if `format_error` is no plain function.
    """

    def __init__(
        self,
        schemas: Sequence[BaseTool | type[BaseModel] | Callable[..., Any]],
        *,
        format_error: FormatError | None = None,
        name: str = "validation",
        tags: list[str] | None = None,
    ) -> None:
        self.name = name
        self.tags = tags
        if format_error is not None:
            check_plain_function("ValidationNode(format_error=...)", format_error, "the error, the call and the schema")
        self._format_error = format_error or _default_format
        self.schemas_by_name: dict[str, type[Any]] = dict(map(_schema_by_name, schemas))

    # LangChain's methods take any keyword, and would ignore a wrong one: hence the suppressed checks of these two.
    def invoke(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: RunnableConfig | None = None
    ) -> Any:
        """Validate the calls of the last message of a list, or of a dict with a list under `messages`.

        Raises ValueError if there are no messages, or the last one is no AIMessage, and KeyError if a call names a tool
        without a schema.
        """
        is_list = isinstance(input, list)
        messages = input if is_list else input.get("messages", [])
        if not messages:
            raise ValueError("No message found in input")
        if not isinstance(messages[-1], AIMessage):
            raise ValueError("Last message is not an AIMessage")
        outputs = [self._validate(call) for call in messages[-1].tool_calls]
        return outputs if is_list else {"messages": outputs}

    async def ainvoke(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Any, config: RunnableConfig | None = None
    ) -> Any:
        """Return the result of `invoke`. This method never waits, because validation only computes."""
        return self.invoke(input, config)

    def _validate(self, call: ToolCall) -> ToolMessage:
        # Limits come before the schema: the validation of a huge value, and the text of its error, would take long.
        if (reason := describe_exceeded_limit(call)) is not None:
            message = error_message(f"Error: {reason}", {**call, "name": call["name"][:MAX_NAME]})
            return message.model_copy(update={"additional_kwargs": {"is_error": True}})
        schema = self.schemas_by_name[call["name"]]
        answer = partial(ToolMessage, name=call["name"], tool_call_id=call["id"])
        try:
            if issubclass(schema, BaseModel):
                return answer(content=schema.model_validate(call["args"]).model_dump_json())
            return answer(content=str(schema.validate(call["args"]).json()))
        except (ValidationError, ValidationErrorV1) as error:
            return answer(content=self._format_error(error, call, schema), additional_kwargs={"is_error": True})


def _default_format(error: BaseException, _call: ToolCall, _schema: type[BaseModel]) -> str:
    return f"{error!r}\n\nRespond after fixing all validation errors."


def _schema_by_name(schema: Any) -> tuple[str, type[Any]]:
    if isinstance(schema, BaseTool):
        args_schema = schema.args_schema
        if args_schema is None:
            raise ValueError(f"Tool {schema.name} does not have an args_schema defined.")
        if not isinstance(args_schema, type) or not is_basemodel_subclass(args_schema):
            raise ValueError(
                "Validation node only works with tools that have a pydantic BaseModel args_schema. "
                f"Got {schema.name} with args_schema: {args_schema}."
            )
        return schema.name, args_schema
    if isinstance(schema, type) and issubclass(schema, (BaseModel, BaseModelV1)):
        return schema.__name__, schema
    if callable(schema):
        return schema.__name__, create_schema_from_function("Validation", schema)
    raise ValueError(f"Unsupported input to ValidationNode. Expected BaseModel, tool or function. Got: {type(schema)}.")
