"""Tools whose functions run on an engine, such as worker processes: checks, and the data sent to the engine."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from callboard._calls._call import current_call, own_attempt
from callboard._calls._call_context import BodyRaisedError
from callboard._langchain._large_values import is_long, run_in_worker
from callboard._langchain._plan import Plan
from callboard._langgraph._vocabulary import ToolRuntime
from callboard._records._policies import Body, Engine, actor_behind
from callboard.actors._actor_set import ActorSet
from callboard.actors._engine_runner import worker_grace
from callboard.tools._in_worker import await_with_config, run_with_config

_PORTABLE_KEYS = ("tags", "recursion_limit", "max_concurrency", "run_name")
_PLAIN = (str, int, float, bool, type(None))


def on_engine(plan: Plan, engine: Engine, actors: ActorSet) -> Plan:
    """Return a changed plan (data for running a tool), by which the tool's function runs on an engine."""
    return replace(plan, kind="async", fn=EngineBody(plan, engine, actors), callbacks=False, run_manager=False)


def check_on_engine(plan: Plan, engine: Engine) -> None:
    """Raise TypeError for a tool that cannot run on an engine."""
    name = plan.tool.name
    label = f"CallPolicy(runs_in=...) of the tool {name!r}"
    if plan.is_foreign:
        raise TypeError(f"{label}: {type(plan.tool).__name__} has its own `invoke`, of which no body can be sent")
    if (actor := actor_behind(plan.fn)) is not None:
        raise TypeError(
            f"{label}: it is a handler of the actor {actor.name}; say where that runs: child(..., runs_in=...)"
        )
    if plan.injected.store is not None:
        raise TypeError(f"{label}: its argument {plan.injected.store!r} is a store, which belongs to this process")
    parameters = inspect.signature(plan.fn).parameters
    for name_of_argument, is_taken in (("run_manager", plan.run_manager), ("callbacks", plan.callbacks)):
        if is_taken and parameters[name_of_argument].default is inspect.Parameter.empty:
            raise TypeError(
                f"{label}: its argument {name_of_argument!r} belongs to this process; give it a default, such as None"
            )
    engine.check(plan.fn, title=name)


class EngineBody:
    """Async function that replaces a tool's function: it sends the function to an engine, and returns the result."""

    def __init__(self, plan: Plan, engine: Engine, actors: ActorSet) -> None:
        self._plan = plan
        self._engine = engine
        self._actors = actors

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attempt, session = own_attempt(self._plan.tool.name), self._actors.session()
        if attempt is not None and is_long(attempt.call["args"]):
            with suppress(ValueError):  # arguments that JSON cannot express have no key
                await run_in_worker(lambda: attempt.idempotency_key)  # the engine sends it, and reads it in the loop
        supervised, config = current_call(), portable(var_child_runnable_config.get() or {})
        if self._plan.config_param is not None:
            kwargs[self._plan.config_param] = config
        body = Body(
            fn=await_with_config if self._plan.kind == "async" else run_with_config,
            args=(self._plan.fn, config, *args),
            kwargs={name: sendable(value, config) for name, value in kwargs.items()},
            title=self._plan.tool.name,
            call_id=None if supervised is None else supervised.id,
            grace=None if supervised is None else worker_grace(supervised.time_limits.grace),
            subject=self._plan.fn,
        )
        # The attempt's timeout stops while the body waits for a worker, and starts again at `turn.begin`.
        turn = None if attempt is None else attempt.suspend_timeouts()
        try:
            if session is not None:
                await session.hold(self._engine, body.title)
            return await self._engine.run_body(body if turn is None else replace(body, on_begin=turn.begin))
        except BodyRaisedError as raised:
            raise raised.error from raised.error.__cause__
        finally:
            if turn is not None:
                turn.end()


class _LocalOnly:
    """Placeholder for a member of `ToolRuntime` that belongs to the agent's process; any use of it raises an error."""

    def __init__(self, member: str) -> None:
        self._member = member

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"runtime.{self._member} belongs to the process of the agent, and this body runs in another one; "
            "callboard.progress() reaches whoever watches the call"
        )

    def __call__(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __reduce__(self) -> tuple[object, ...]:
        return _LocalOnly, (self._member,)


def sendable(value: object, config: RunnableConfig) -> object:
    """Return an argument as an engine can receive it: a `ToolRuntime` without the members of this process."""
    if not isinstance(value, ToolRuntime):
        return value
    store: Any = None if value.store is None else _LocalOnly("store")
    return replace(value, config=config, store=store, stream_writer=_LocalOnly("stream_writer"), tools=[])


def portable(config: Mapping[str, Any]) -> RunnableConfig:
    """Return the parts of a config that other processes can use: plain data, without LangGraph's entries."""
    # An allow-list: callbacks and LangGraph's own objects cannot leave this process.
    portable_config: dict[str, Any] = {name: config[name] for name in _PORTABLE_KEYS if name in config}
    for part in ("configurable", "metadata"):
        values = config.get(part, {})
        portable_config[part] = {
            name: item for name, item in values.items() if not name.startswith("__") and _is_plain(item)
        }
    return cast("RunnableConfig", portable_config)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, _PLAIN) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)
