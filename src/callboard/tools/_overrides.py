"""Check of a `ToolNode` subclass: overrides that would never be called are refused when the class is created."""

import inspect

_ONE = "use middleware=[...], awrap_tool_call= or wrap_tool_call=, or override _arun_one or _run_one"
_FIXED = "give it to the constructor"

REFUSED = {
    "_parse_input": "override ainvoke or invoke and change the input there; for another key, messages_key=",
    "_combine_tool_outputs": "override ainvoke or invoke and change the result there",
    "_extract_state": "override _arun_one or _run_one, and pass a runtime with another state on",
    "_execute_tool_sync": _ONE,
    "_execute_tool_async": _ONE,
    "_validate_tool_call": f"{_ONE}; they see calls of tools that do not exist, too",
    "_normalize_tool_response": _ONE,
    "_validate_tool_command": _ONE,
    "_validate_tool_command_list": _ONE,
    "_inject_tool_args": "override inject_tool_args",
    "_inject_state": "override inject_tool_args",
    "_inject_store": "override inject_tool_args",
    "tools_by_name": _FIXED,
    "_tools_by_name": _FIXED,
    "_injected_args": _FIXED,
    "_handle_tool_errors": _FIXED,
    "_messages_key": _FIXED,
}
"""Methods and attributes of LangGraph's class that callboard never uses, with the replacement to suggest."""

_ARGUMENTS = {
    "_run_one": ("call", "input_type", "tool_runtime"),
    "_arun_one": ("call", "input_type", "tool_runtime"),
    "inject_tool_args": ("tool_call", "input", "store"),
}
_BY_NAME = {"_func": ("config", "runtime"), "_afunc": ("config", "runtime")}
"""Methods that are called with an input, and with these keyword arguments."""
_SYNC = ("_run_one", "inject_tool_args", "invoke", "_func")


def check_class(cls: type, base: type) -> None:
    """Raise TypeError for an override of a subclass that would never be called, or has a wrong signature."""
    found: dict[str, object] = {}
    for one in reversed(cls.__mro__[: cls.__mro__.index(base)]):
        found.update(vars(one))
    for name, instead in REFUSED.items():
        if name in found:
            raise TypeError(f"{cls.__qualname__}.{name} would never be called by callboard's ToolNode: {instead}")
    for name, arguments in _ARGUMENTS.items():
        _check_signature(cls, name, found.get(name), arguments)
    for name, by_name in _BY_NAME.items():
        _check_signature(cls, name, found.get(name), ("input",), by_name)
    for name in _SYNC:
        if inspect.iscoroutinefunction(found.get(name)):
            raise TypeError(f"{cls.__qualname__}.{name} is async; it has to be a plain function")


def _check_signature(
    cls: type, name: str, fn: object, arguments: tuple[str, ...], by_name: tuple[str, ...] = ()
) -> None:
    if not inspect.isfunction(fn):
        return
    try:
        inspect.signature(fn).bind(None, *arguments, **dict.fromkeys(by_name))
    except TypeError:
        raise TypeError(
            f"{cls.__qualname__}.{name}{inspect.signature(fn)} cannot be called as ToolNode calls it, with "
            f"(self, {', '.join((*arguments, *by_name))}), as langgraph-prebuilt 1.1 does"
        ) from None


class Unbuilt:
    """Descriptor in place of an attribute that `__init__` sets.

    Reading it raises an error for a missing `super().__init__`.
    """

    def __get__(self, node: object, owner: type) -> object:
        if node is None:
            return self
        raise AttributeError(f"{owner.__qualname__} is not ready: its __init__ has to call super().__init__(tools)")


# Original methods of the base class, recorded at import: a user's test may replace them by mocks later, and a
# replaced method counts as an override.
_written: dict[str, object] = {}


def remember(base: type) -> None:
    """Record the original methods of the base class, to recognise overrides in subclasses, instances and mocks."""
    _written.update({name: vars(base)[name] for name in (*_ARGUMENTS, *_BY_NAME, "invoke", "ainvoke")})


def overrides(node: object, name: str) -> bool:
    """Return whether a node's method differs from the original method of the base class."""
    return getattr(getattr(node, name), "__func__", None) is not _written[name]


def is_written(base: type, name: str) -> bool:
    """Return whether the base class still has its original method."""
    return vars(base)[name] is _written[name]
