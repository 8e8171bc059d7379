"""LangChain tools made of the handlers of actors, or taken from toolkits.

A toolkit is an object that contains tools, such as an open MCP server. If an actor dies, a call of its handler runs
again if its policy allows that. If a restarted actor has lost state, the next result tells the model, once per
conversation.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, ValuesView
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, Protocol, get_type_hints

from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools.base import _get_runnable_config_param, _stringify
from langgraph.types import Command

from callboard._calls._call import SupervisedCall, current_call, note, own_attempt
from callboard._langchain._errors import is_control_flow
from callboard._langchain._plan import Plan
from callboard._langchain._unknown_outcomes import REPEATS, OutcomeUnknown, is_lost, runs_again
from callboard._langgraph._vocabulary import ToolRuntime, call_context
from callboard._loops._current import current_loop
from callboard._records._policies import (
    CallContext,
    CallPolicy,
    KeyFunction,
    ToolActor,
    has_members_of,
    mark_as_actors,
    policy_at,
)
from callboard.actors._actor import CONTROL, Actor, Handler, keeps_snapshots
from callboard.actors._actor_set import ActorSet
from callboard.actors._cell import Cell
from callboard.actors._child import ChildSpec, check_alone, check_grace, spec_of
from callboard.actors._reference import target_of
from callboard.actors._snapshots import InThread
from callboard.exceptions import ActorDiedError, ActorGoneError, MailboxFullError, PoisonousCallError
from callboard.tools._on_engine import portable, sendable

# Handler calls


IDEMPOTENT = "idempotent"
"""Key in a tool's `metadata` that marks the tool as safe to repeat."""


async def ask_handler(
    cell: Cell,
    handler: Handler,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    model_arguments: frozenset[str],
    add_facts: Callable[[ActorDiedError], ActorDiedError] = lambda died: died,
) -> Any:
    """Ask an actor to run one of its handlers, and return the handler's result.

    `name` is the name of the tool, and `model_arguments` has the names of the arguments that the model writes.
    `add_facts` changes an `ActorDiedError`.
    """
    supervised = current_call()
    last_death: ActorDiedError | None = None
    runs, attempt = 0, own_attempt(name)
    # The arguments before injection and parsing, if they are known.
    call_args: Mapping[str, Any] = kwargs if attempt is None else attempt.call["args"]
    named_by = {name: value for name, value in call_args.items() if name in model_arguments}
    while True:
        # The attempt's timeout stops while the ask waits in the mailbox, and starts again at `turn.begin`.
        turn = None if attempt is None else attempt.suspend_timeouts()
        try:
            return await cell.ask(
                handler,
                args,
                kwargs,
                title=name,
                call=supervised,
                passes=is_control_flow,
                on_begin=None if turn is None else turn.begin,
                named_by=named_by,
            )
        except ActorDiedError as death:
            runs += 1
            # The loop is bounded: a call that ends its actor repeatedly is refused with PoisonousCallError.
            if supervised is not None and is_lost(death) and runs_again(supervised.policy):
                note("rerun", actor=cell.child)
                last_death = death
                continue
            if supervised is not None and attempt is not None and supervised.policy.on_unknown == "ask":
                question_args = {
                    name: value for name, value in supervised.call["args"].items() if name in model_arguments
                }
                raise OutcomeUnknown(name, question_args, f"{cell.name} died") from death
            raise add_facts(death) from death.__cause__
        except PoisonousCallError as refusal:
            if not runs:
                raise
            raise PoisonousCallError(refusal.tool, refusal.call_id, refusal.times, runs=runs) from last_death
        except (ActorGoneError, MailboxFullError) as refusal:
            if last_death is None:
                raise
            # The handler did start in an earlier round, so the outcome is unknown, and not "did not start".
            raise add_facts(last_death) from refusal
        finally:
            if turn is not None:
                turn.end()


def by_reference(plan: Plan) -> Plan:
    """Return a plan (data to run a tool); if the tool calls an actor, its policy then also covers the actor's death."""
    if (cell_and_handler := target_of(plan.fn)) is None:
        return plan
    name, model_arguments = plan.tool.name, frozenset(plan.tool.args) - plan.injected.forbidden

    async def run(*args: Any, **kwargs: Any) -> Any:
        return await ask_handler(*cell_and_handler, args, kwargs, name=name, model_arguments=model_arguments)

    run.__dict__[REPEATS] = True
    return replace(plan, fn=run)


def is_idempotent(tool: BaseTool) -> bool:
    """Return whether a tool is marked as safe to repeat, in its `metadata` or on the actor's handler that it calls."""
    metadata = getattr(tool, "metadata", None)  # a mock in place of a tool may have no fields
    mark = metadata.get(IDEMPOTENT) if isinstance(metadata, dict) else None
    if mark is not None:
        if not isinstance(mark, bool):
            raise TypeError(f"metadata[{IDEMPOTENT!r}] of the tool {tool.name!r} is True or False, got {mark!r}")
        return mark
    coroutine = getattr(tool, "coroutine", None)
    cell_and_handler = None if coroutine is None else target_of(coroutine)
    return cell_and_handler is not None and cell_and_handler[1].idempotent


def policy_of(tool: BaseTool) -> CallPolicy | None:
    """Return the policy that a decorator has set on a tool's function or actor handler; `None` if there is none."""
    cell_and_handler = target_of(getattr(tool, "coroutine", None))
    return (
        policy_at(tool)
        if cell_and_handler is None
        else _policy_at_handler(cell_and_handler[0].kind, cell_and_handler[1])
    )


def _policy_at_handler(kind: type[Actor], handler: Handler) -> CallPolicy | None:
    # At the method of the class, which has the marks of `handler.fn`: a decorator may stand above or below `@handler`.
    return policy_at(getattr(kind, handler.name))


# Toolkits


class Toolkit(Protocol):
    """Object, such as an open MCP server, that contains tools but is not a tool itself."""

    def get_tools(self) -> Sequence[BaseTool]:
        """Return the tools that the toolkit has now."""
        ...


_PLAIN = (StructuredTool, Tool, FunctionType)
"""Usual classes of tools. Objects of these classes are not tested for being a toolkit, because the test is slow."""


def unpack_toolkits(tools: Iterable[Any]) -> list[Any]:
    """Return the tools given to a node, with each toolkit replaced by its tools."""
    unpacked_tools: list[Any] = []
    for item in tools:
        if item.__class__ in _PLAIN or isinstance(item, BaseTool) or not has_members_of(Toolkit, item):
            unpacked_tools.append(item)
            continue
        toolkit_tools: object = item.get_tools()
        if not isinstance(toolkit_tools, (Sequence, ValuesView)) or isinstance(toolkit_tools, str):
            if inspect.iscoroutine(toolkit_tools):
                toolkit_tools.close()
            raise TypeError(
                f"get_tools() of a toolkit returns a list of tools; that of {item!r} returned {toolkit_tools!r}"
            )
        unpacked_tools += toolkit_tools
    return unpacked_tools


# Notices about lost state


_MAX_STATES = 4096
"""Maximum number of remembered pairs of conversation and actor; the least recently used pair is forgotten first."""


_NOTICE_GIVEN = -1
"""Marker in place of a state number: the model knows that the state was lost, so the next state needs no notice."""


class LostState:
    """Record of the actor state that each conversation last used, so that the model can be told if a state is lost."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[Hashable, str, Hashable], int] = OrderedDict()

    def of(self, conversation: Hashable, cell: Cell) -> str:
        """Return the notice that an actor has lost its state; empty if the conversation needs no such notice."""
        state = self._states.get((conversation, cell.kind.__name__, cell.key))
        if state is None or state == _NOTICE_GIVEN or cell.state_since <= state:
            if state != cell.state_since:
                self.record_state(conversation, cell, cell.state_since)
            return ""
        loss = "what it held since it was saved last" if keeps_snapshots(cell.kind) else "what it held"
        return f"{cell.name} was restarted, and {loss} is lost."

    def record_state(self, conversation: Hashable, cell: Cell, state: int) -> None:
        """Record that a conversation has seen a state of an actor, or was told that it is lost (`_NOTICE_GIVEN`)."""
        key = (conversation, cell.kind.__name__, cell.key)
        self._states[key] = state
        self._states.move_to_end(key)
        if len(self._states) > _MAX_STATES:
            self._states.popitem(last=False)


def with_notice(result: Any, notice: str) -> Any:
    """Return a tool result to which a notice for the model was added; `None` if the result cannot take a notice."""
    parts: Any = result if isinstance(result, (list, tuple)) else ()
    # Commands and messages in a list go to the graph by themselves, and are no content for the model.
    if isinstance(result, Command) or any(isinstance(part, (Command, ToolMessage)) for part in parts):
        return None
    if isinstance(result, ToolMessage):
        return result.model_copy(update={"content": with_notice(result.content, notice)})
    if isinstance(result, list) and all(isinstance(part, (str, dict)) for part in result):
        return [*result, {"type": "text", "text": notice}]
    text = result if isinstance(result, str) else _stringify(result)
    return f"{text}\n\n({notice})"


_TAKES_MANY = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# Handlers as tools


def with_handlers(tools: Iterable[Any], owner: str) -> tuple[list[Any], ActorSet]:
    """Return the tools with each actor replaced by tools for its handlers, and the set of these actors."""
    items = unpack_toolkits(tools)
    specs = [spec_of(item) for item in items if isinstance(item, (Actor, ChildSpec))]
    if not specs:
        return items, ActorSet([], owner)
    names = [spec.name for spec in specs]
    if (duplicate := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise ValueError(
            f"Two actors are named {duplicate!r}: give one of them a name: child({duplicate}(...), name='other')"
        )
    for spec in specs:
        if spec.key is None:
            check_alone(spec, owner)
    actors = ActorSet(specs, owner)
    numbers = iter(range(len(specs)))
    handler_tools: list[Any] = []
    for item in items:
        if not isinstance(item, (Actor, ChildSpec)):
            handler_tools.append(item)
            continue
        number, lost = next(numbers), LostState()
        spec = specs[number]
        handlers = [
            handler
            for handler in spec.kind._handlers.values()
            if handler.group != CONTROL and not handler.name.startswith("_")
        ]
        if not handlers:
            raise ValueError(
                f"the actor {spec.name} has no handler that could be a tool; mark its methods with @handler"
            )
        handler_tools += [_tool(actors, number, handler, lost) for handler in handlers]
    return handler_tools, actors


def check_graces(actors: ActorSet, graces: Mapping[str, float | None]) -> None:
    """Raise ValueError if a handler's clean-up time (`graces`, seconds by tool) is too long for its actor's lease."""
    for spec in actors.specs:
        tools = [f"{spec.prefix}{handler.name}" for handler in spec.kind._handlers.values()]
        check_grace(spec, {name: graces[name] for name in tools if name in graces})


def _tool(actors: ActorSet, number: int, handler: Handler, lost: LostState) -> BaseTool:
    """Return a tool that calls a handler of an actor."""
    if not handler.fn.__doc__:
        raise TypeError(f"the handler {handler.title} has no docstring; a model has to be told what it does")
    signature = handler.signature()
    hints = get_type_hints(handler.fn, include_extras=True)
    ask = _Ask(actors, number, handler, lost)
    has_artifact = hasattr(hints.get("return"), "artifact")

    async def call(**kwargs: Any) -> Any:
        result = await ask(kwargs)
        # The model reads the text; the artifact is for the program.
        return (str(result), getattr(result, "artifact", None)) if has_artifact else result

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind in _TAKES_MANY:
            raise TypeError(f"the handler {handler.title} takes {parameter}; as a tool it takes arguments by name only")
        if parameter.name not in hints:
            raise TypeError(
                f"the handler {handler.title} does not say of which type {parameter.name!r} is; a model has to be "
                f"told: {parameter.name}: str"
            )
        parameters.append(parameter.replace(annotation=hints[parameter.name]))
    if ask.takes_runtime:
        parameters.append(inspect.Parameter(_RUNTIME, inspect.Parameter.KEYWORD_ONLY, annotation=ToolRuntime))
        hints[_RUNTIME] = ToolRuntime
    call.__name__, call.__doc__, call.__module__ = handler.name, handler.fn.__doc__, handler.fn.__module__
    # `ask_handler` runs the handler again by itself, so `invoke` must not run the whole tool again.
    call.__dict__[REPEATS] = True
    mark_as_actors(call, ToolActor(actors.specs[number].name, actors.specs[number].key))
    if (policy := _policy_at_handler(actors.specs[number].kind, handler)) is not None:
        policy(call)
    call.__dict__["__signature__"] = signature.replace(parameters=parameters)
    call.__annotations__ = hints
    tool = StructuredTool.from_function(
        coroutine=call,
        name=ask.name,
        parse_docstring=True,
        error_on_invalid_docstring=False,
        response_format="content_and_artifact" if has_artifact else "content",
        handle_tool_error=True,
        metadata={IDEMPOTENT: True} if handler.idempotent else None,
    )
    # After `from_function`, because only the finished schema says which arguments the model writes. Injected ones are
    # not in `tool.args`, so keys and poison digests never depend on them.
    ask.written = frozenset(tool.args)
    return tool


_RUNTIME = "callboard_runtime"
"""Name of the injected parameter with the runtime, from which the function that selects the actor gets its context.
An injected parameter is not in the schema for the model."""


class _Ask:
    """Tool function that calls an actor's handler, in the node's open actor session or else in a new session."""

    def __init__(self, actors: ActorSet, number: int, handler: Handler, lost: LostState) -> None:
        self._actors = actors
        self._number = number
        self._spec = actors.specs[number]
        self._handler = handler
        self._lost = lost
        self._config = _get_runnable_config_param(handler.fn)
        self.name = self._spec.prefix + handler.name
        self.takes_runtime = self._spec.key is not None and self._spec.key.takes_context
        self.written: frozenset[str] = frozenset()
        """Names of the arguments that the model writes."""

    async def __call__(self, kwargs: dict[str, Any]) -> Any:
        """Ask the actor to run the handler, and return the handler's result, with a notice if a state was lost."""
        session = self._actors.session()
        if session is None:  # the tool was called outside of a running node
            async with self._actors.open_for_block():
                return await self(kwargs)
        supervised, config = current_call(), var_child_runnable_config.get() or {}
        runtime = kwargs.pop(_RUNTIME) if self.takes_runtime else None
        keyed_actors = session.keyed_actors[self._number]
        key = None if self._spec.key is None else self._key(self._spec.key, supervised, kwargs, runtime)
        if self._spec.is_in_journal:
            try:
                key = InThread.of(self._actors.journal(), key)
            except ValueError as error:
                error.add_note(f"Raised for child({self._spec.name}, snapshots='journal') and the key {key!r}.")
                raise
        cell = keyed_actors.cell(key)
        engine = self._spec.runs_in
        if engine is not None:
            # Without LangGraph's entries in a config, which only this process can use.
            config_for_engine = portable(kwargs.get(self._config or "") or config)
            kwargs = {name: sendable(value, config_for_engine) for name, value in kwargs.items()}
            if self._config is not None and self._config in kwargs:
                kwargs[self._config] = config_for_engine
            # A session holds engines for one event loop. In another loop, the session of the actors holds the engine.
            if keyed_actors.loop is current_loop():
                await session.hold(engine, self.name)
        thread_id = config.get("configurable", {}).get("thread_id")
        conversation = keyed_actors.number if thread_id is None else str(thread_id)
        add_loss = partial(self._with_loss, conversation, cell)
        result = await ask_handler(
            cell, self._handler, (), kwargs, name=self.name, model_arguments=self.written, add_facts=add_loss
        )
        notice = self._lost.of(conversation, cell)
        if not notice or (noticed_result := with_notice(result, notice)) is None:
            return result  # the notice does not fit into this result; the next result gets it
        self._lost.record_state(conversation, cell, cell.state_since)
        if supervised is not None:
            supervised.do_not_cache = True  # the notice is for this conversation: a cache must not store it
        return noticed_result

    def _key(
        self,
        key: KeyFunction,
        supervised: SupervisedCall[Any] | None,
        kwargs: dict[str, Any],
        runtime: ToolRuntime[Any, Any] | None,
    ) -> Hashable:
        # A key function sees only the arguments that the model wrote: injected state or stores must not select an
        # actor.
        args = {name: value for name, value in kwargs.items() if name in self.written}
        call = {"name": self.name, "args": args, "id": None if supervised is None else supervised.id}
        context = (
            CallContext if runtime is None else partial(call_context, runtime.config, runtime.state, runtime.context)
        )
        try:
            return key.of(call, context)
        except Exception as error:
            error.add_note(f"Raised by child({self._spec.name}, key=...) for a call of {self.name!r}.")
            raise

    def _with_loss(self, conversation: Hashable, cell: Cell, death: ActorDiedError) -> ActorDiedError:
        saved = " since it was saved last" if keeps_snapshots(cell.kind) else ""
        # The error text tells the model of the loss now, so the next result must not tell it again.
        self._lost.record_state(conversation, cell, _NOTICE_GIVEN)
        loss = f"What {cell.name} held{saved} is lost."
        return ActorDiedError(death.tool, death.call_id, death.reason, loss=loss)
