"""The shortcut to a tool's callback manager finds everything that LangChain finds."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForToolRun,
    BaseCallbackHandler,
    BaseCallbackManager,
)
from langchain_core.globals import set_debug
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langchain_core.tracers import context as tracers
from langsmith import RunTree
from langsmith._internal import _context
from langsmith.run_helpers import tracing_context
from langsmith.utils import get_env_var

import callboard
from callboard._langchain import _callbacks
from callboard._langchain._callbacks import is_traced, manager_of_tool
from callboard.testing import calls

HANDLER = BaseCallbackHandler()


@tool
async def work(query: str) -> str:
    """Work."""
    return query


@contextmanager
def debugging() -> Generator[None]:
    set_debug(True)
    try:
        yield
    finally:
        set_debug(False)


@contextmanager
def library_hook(value: object, env_var: str | None = None) -> Generator[None]:
    """Register a handler of a library, as `register_configure_hook` does, for the block."""
    variable: ContextVar[Any] = ContextVar("a library's handler", default=None)
    hook: Any = (variable, True, BaseCallbackHandler if env_var else None, env_var)
    token = variable.set(value)
    tracers._configure_hooks.append(hook)
    try:
        yield
    finally:
        tracers._configure_hooks.remove(hook)
        variable.reset(token)


def langchain_manager(tool: BaseTool, config: RunnableConfig) -> AsyncCallbackManager:
    return AsyncCallbackManager.configure(
        config.get("callbacks"),
        tool.callbacks,
        tool.verbose,
        config.get("tags"),
        tool.tags,
        config.get("metadata"),
        tool.metadata,
    )


def facts(manager: AsyncCallbackManager) -> dict[str, object]:
    values = dict(vars(manager))
    for name in ("handlers", "inheritable_handlers"):
        values[name] = [type(handler) for handler in values[name]]
    return values


@pytest.mark.parametrize(
    "surroundings",
    [
        pytest.param(nullcontext, id="nothing"),
        pytest.param(debugging, id="debug"),
        pytest.param(lambda: library_hook(HANDLER), id="a handler of a library"),
        pytest.param(lambda: library_hook(None, "CALLBOARD_TEST_HOOK"), id="a variable of the environment"),
        pytest.param(tracers.collect_runs, id="collected runs"),
        pytest.param(lambda: tracing_context(enabled=True), id="LangSmith"),
        pytest.param(lambda: tracing_context(enabled=False, tags=["a"], metadata={"b": 1}), id="LangSmith's tags"),
        pytest.param(
            lambda: tracing_context(parent=RunTree(name="outer", client=None), enabled=False), id="LangSmith's parent"
        ),
    ],
)
@pytest.mark.parametrize("number", range(4))
def test_a_tool_has_the_manager_that_langchain_configures(
    monkeypatch: pytest.MonkeyPatch, surroundings: Callable[[], AbstractContextManager[object]], number: int
) -> None:
    monkeypatch.setenv("CALLBOARD_TEST_HOOK", "1")
    monkeypatch.setenv("LANGSMITH_API_KEY", "none")
    configs: list[RunnableConfig] = [
        {},
        {"tags": [], "metadata": {"of": {"the": "run"}}, "callbacks": None},
        {"tags": ["run"], "metadata": {"of": "the run"}, "callbacks": [HANDLER]},
        {"callbacks": AsyncCallbackManager([], inheritable_tags=["inherited"])},
    ]
    tool_with_tags = work.model_copy(update={"tags": ["tool"], "metadata": {"of": "the tool"}, "callbacks": [HANDLER]})
    with surroundings():
        for variant in (work, tool_with_tags, work.model_copy(update={"verbose": True})):
            assert facts(manager_of_tool(variant, configs[number])) == facts(
                langchain_manager(variant, configs[number])
            )


def test_a_plain_call_takes_the_shortcut_with_this_release_of_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, read `_configure` in langchain-core again: which sources does it ask, and does `is_traced`?"""
    monkeypatch.setattr(AsyncCallbackManager, "configure", None)
    monkeypatch.setattr(_callbacks, "_configure_method", None)  # or the shortcut takes it for an instrumentation
    assert manager_of_tool(work, {"metadata": {"a": 1}}).inheritable_metadata == {"a": 1}


@pytest.mark.real_clock  # LangChain calls sync handlers in a thread
async def test_an_instrumentation_that_comes_late_hears_of_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenInference adds its handler to each manager that is made, and may be started after the first calls."""
    tool_names: list[str] = []

    class Listener(BaseCallbackHandler):
        def on_tool_start(self, serialized: Any, *args: Any, **options: Any) -> None:
            tool_names.append(serialized["name"])

    def init_with_listener(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.add_handler(Listener())

    original = BaseCallbackManager.__init__
    node = callboard.ToolNode([work])
    await node.ainvoke([calls("work")])
    monkeypatch.setattr(BaseCallbackManager, "__init__", init_with_listener)
    await node.ainvoke([calls("work")])
    assert tool_names == ["work"]


def test_what_langsmith_is_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that was switched on in the context, in the process or in the environment has the tools' runs."""
    assert not is_traced()
    for surroundings in (
        tracing_context(enabled=True),
        tracing_context(tags=["a"]),
        tracing_context(metadata={"b": 1}),
        tracing_context(parent=RunTree(name="outer", client=None)),
    ):
        with surroundings:
            assert is_traced()
    with monkeypatch.context() as patch:
        patch.setattr(_context, "_GLOBAL_TRACING_ENABLED", True)
        assert is_traced()
        with tracing_context(enabled=False):
            assert not is_traced()
    with monkeypatch.context() as patch:
        patch.setenv("LANGSMITH_TRACING", "true")
        get_env_var.cache_clear()
        assert is_traced()
    get_env_var.cache_clear()
    assert not is_traced()


async def test_what_a_body_adds_to_its_run_manager_reaches_no_other_call() -> None:
    manager_states: list[tuple[list[Any], ...]] = []

    class Tagging(BaseTool):
        name: str = "tagging"
        description: str = "Tag the run."

        def _run(self, query: str) -> str:
            raise NotImplementedError

        async def _arun(self, query: str, run_manager: AsyncCallbackManagerForToolRun) -> str:
            manager_states.append(
                (run_manager.handlers.copy(), run_manager.tags.copy(), list(run_manager.inheritable_metadata))
            )
            run_manager.handlers.append(HANDLER)
            run_manager.tags.append("own")
            run_manager.inheritable_metadata["own"] = True
            return query

    node = callboard.ToolNode([Tagging()])
    calls = [{"name": "tagging", "args": {"query": "a"}, "id": str(number)} for number in range(2)]
    for _ in range(2):
        await node.ainvoke(calls)
    assert manager_states == [([], [], [])] * 4
