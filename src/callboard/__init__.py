"""callboard: tool calls of LLM agents as supervised tasks, on asyncio and trio.

    layer 9   _cli                             the `callboard` command
    layer 8   telemetry  testing  threads      spans, metrics, logs, recordings; test helpers; stored conversations
    layer 7   agent                            the ReAct loop
    layer 6   middleware  guards               retry, cache, approval and others; redact, sanitize, repair arguments
              conversations                    the journal of a thread, checkpoints, databases
    layer 5   tools                            tool calls as supervised calls, and the chain around them
    layer 4   _langgraph  _langchain           every private name of LangGraph; LangChain's convention of a tool call
    layer 3   actors  extend                   supervised state behind a mailbox; extension points, such as engines
    layer 2   _calls                           one supervised call and a batch of them, limits, observers
    layer 1   _loops                           asyncio and trio, threads, deadlines, bridges
    layer 0   exceptions  questions  commands  errors; helpers for programs that ask a person, and that add commands
              _records  _util  _web            records and protocols; helpers that know nothing of calls

A module imports only from its own layer and from the layers below it. Names are loaded at first access:
`import callboard` is cheap, and `from callboard import ToolNode` imports LangGraph.
"""

import logging
import sys
from typing import TYPE_CHECKING

from callboard import exceptions
from callboard._calls import _observers
from callboard._util._lazy import lazy_exports

if TYPE_CHECKING:
    # 0: vocabulary
    # 1: supervised calls
    from callboard._calls._call_keys import fencing_token as fencing_token
    from callboard._calls._call_keys import idempotency_key as idempotency_key
    from callboard._calls._observers import observe as observe
    from callboard._calls._progress import progress as progress
    from callboard._calls._shutdown import Shutdown as Shutdown
    from callboard._calls._shutdown import drain_on_signal as drain_on_signal
    from callboard._cli._watch import watch as watch

    # 3: LangChain tools
    from callboard._langchain._tool_call import tool_call as tool_call
    from callboard._langgraph._vocabulary import INVALID_TOOL_NAME_ERROR_TEMPLATE as INVALID_TOOL_NAME_ERROR_TEMPLATE
    from callboard._langgraph._vocabulary import TOOL_CALL_ERROR_TEMPLATE as TOOL_CALL_ERROR_TEMPLATE
    from callboard._langgraph._vocabulary import TOOL_EXECUTION_ERROR_TEMPLATE as TOOL_EXECUTION_ERROR_TEMPLATE
    from callboard._langgraph._vocabulary import TOOL_INVOCATION_ERROR_TEMPLATE as TOOL_INVOCATION_ERROR_TEMPLATE
    from callboard._langgraph._vocabulary import ActionRequest as ActionRequest
    from callboard._langgraph._vocabulary import AsyncToolCallWrapper as AsyncToolCallWrapper
    from callboard._langgraph._vocabulary import HumanInterrupt as HumanInterrupt
    from callboard._langgraph._vocabulary import HumanInterruptConfig as HumanInterruptConfig
    from callboard._langgraph._vocabulary import HumanResponse as HumanResponse
    from callboard._langgraph._vocabulary import InjectedState as InjectedState
    from callboard._langgraph._vocabulary import InjectedStore as InjectedStore
    from callboard._langgraph._vocabulary import ToolCallRequest as ToolCallRequest
    from callboard._langgraph._vocabulary import ToolCallTransformer as ToolCallTransformer
    from callboard._langgraph._vocabulary import ToolCallWithContext as ToolCallWithContext
    from callboard._langgraph._vocabulary import ToolCallWrapper as ToolCallWrapper
    from callboard._langgraph._vocabulary import ToolInvocationError as ToolInvocationError
    from callboard._langgraph._vocabulary import ToolRuntime as ToolRuntime
    from callboard._langgraph._vocabulary import msg_content_output as msg_content_output
    from callboard._loops._deadline import cleanup as cleanup
    from callboard._loops._deadline import remaining as remaining
    from callboard._records._events import ActorEvent as ActorEvent
    from callboard._records._events import AskEvent as AskEvent
    from callboard._records._events import CallEvent as CallEvent
    from callboard._records._events import RunEvent as RunEvent
    from callboard._records._events import RunInfo as RunInfo
    from callboard._records._explanations import ChainLink as ChainLink
    from callboard._records._explanations import ToolExplanation as ToolExplanation
    from callboard._records._fleets import Fleet as Fleet
    from callboard._records._fleets import Snapshots as Snapshots
    from callboard._records._policies import CallContext as CallContext
    from callboard._records._policies import CallPolicy as CallPolicy
    from callboard._records._policies import Engine as Engine
    from callboard._records._policies import Limit as Limit
    from callboard._records._policies import Rate as Rate
    from callboard._records._policies import SharedLimits as SharedLimits
    from callboard._records._reports import ActorStatistics as ActorStatistics
    from callboard._records._reports import Drained as Drained
    from callboard._records._reports import LiveCall as LiveCall
    from callboard._records._reports import Statistics as Statistics
    from callboard._records._reports import UnknownCall as UnknownCall

    # 2: actors
    from callboard.actors._actor import Actor as Actor
    from callboard.actors._actor import Reply as Reply
    from callboard.actors._actor import handler as handler
    from callboard.actors._actor_set import Keyed as Keyed
    from callboard.actors._actor_set import keyed as keyed
    from callboard.actors._child import ChildSpec as ChildSpec
    from callboard.actors._child import child as child
    from callboard.actors._restarts import Backoff as Backoff
    from callboard.actors._snapshots import InMemorySnapshots as InMemorySnapshots
    from callboard.actors._supervisor import Supervisor as Supervisor
    from callboard.actors._supervisor import running as running
    from callboard.agent._create_agent import create_agent as create_agent
    from callboard.agent._flow import AgentOutput as AgentOutput
    from callboard.agent._flow import AgentState as AgentState
    from callboard.agent._flow import AgentStatePydantic as AgentStatePydantic
    from callboard.agent._flow import AgentStateWithStructuredResponse as AgentStateWithStructuredResponse
    from callboard.agent._flow import (
        AgentStateWithStructuredResponsePydantic as AgentStateWithStructuredResponsePydantic,
    )

    # 4: the agent
    from callboard.agent._live import LiveRun as LiveRun
    from callboard.agent._react import Agent as Agent
    from callboard.agent._react import create_react_agent as create_react_agent
    from callboard.exceptions import *  # noqa: F403 (the list of the names is `exceptions.__all__`)
    from callboard.tools._background_tools import background_tools as background_tools
    from callboard.tools._ledger import CallsInterrupted as CallsInterrupted
    from callboard.tools._ledger import can_ask as can_ask
    from callboard.tools._ledger import earlier_question as earlier_question
    from callboard.tools._node import ToolNode as ToolNode
    from callboard.tools._results import tools_condition as tools_condition
    from callboard.tools._validation import ValidationNode as ValidationNode

_HOMES = {
    "callboard._records._events": ("ActorEvent", "AskEvent", "CallEvent", "RunEvent", "RunInfo"),
    "callboard._records._explanations": ("ChainLink", "ToolExplanation"),
    "callboard._records._reports": ("Drained", "LiveCall", "UnknownCall", "ActorStatistics", "Statistics"),
    "callboard._records._fleets": ("Fleet", "Snapshots"),
    "callboard._records._policies": ("CallContext", "CallPolicy", "Engine", "Limit", "Rate", "SharedLimits"),
    "callboard.exceptions": exceptions.__all__,
    "callboard._calls._call_keys": ("fencing_token", "idempotency_key"),
    "callboard._calls._observers": ("observe",),
    "callboard._calls._shutdown": ("Shutdown", "drain_on_signal"),
    "callboard._calls._progress": ("progress",),
    "callboard._loops._deadline": ("cleanup", "remaining"),
    "callboard.actors._actor": ("Actor", "handler", "Reply"),
    "callboard.actors._child": ("ChildSpec", "child"),
    "callboard.actors._actor_set": ("Keyed", "keyed"),
    "callboard.actors._restarts": ("Backoff",),
    "callboard.actors._snapshots": ("InMemorySnapshots",),
    "callboard.actors._supervisor": ("Supervisor", "running"),
    "callboard._langgraph._vocabulary": (
        "ActionRequest",
        "HumanInterrupt",
        "HumanInterruptConfig",
        "HumanResponse",
        "INVALID_TOOL_NAME_ERROR_TEMPLATE",
        "TOOL_CALL_ERROR_TEMPLATE",
        "TOOL_EXECUTION_ERROR_TEMPLATE",
        "TOOL_INVOCATION_ERROR_TEMPLATE",
        "AsyncToolCallWrapper",
        "InjectedState",
        "InjectedStore",
        "ToolCallRequest",
        "ToolCallTransformer",
        "ToolCallWithContext",
        "ToolCallWrapper",
        "ToolInvocationError",
        "ToolRuntime",
        "msg_content_output",
    ),
    "callboard._langchain._tool_call": ("tool_call",),
    "callboard.tools._results": ("tools_condition",),
    "callboard.tools._ledger": ("CallsInterrupted", "earlier_question", "can_ask"),
    "callboard.tools._background_tools": ("background_tools",),
    "callboard.tools._node": ("ToolNode",),
    "callboard.tools._validation": ("ValidationNode",),
    "callboard._cli._watch": ("watch",),
    "callboard.agent._create_agent": ("create_agent",),
    "callboard.agent._live": ("LiveRun",),
    "callboard.agent._react": ("Agent", "create_react_agent"),
    "callboard.agent._flow": (
        "AgentOutput",
        "AgentState",
        "AgentStatePydantic",
        "AgentStateWithStructuredResponse",
        "AgentStateWithStructuredResponsePydantic",
    ),
}

# `_HOMES` is the only list of public names at run time. `tests/test_exports.py` compares the imports above with it.
__getattr__, __dir__, __all__ = lazy_exports(
    __name__, _HOMES, [f"callboard.{name}" for name in ("middleware", "guards", "testing", "telemetry", "extend")]
)

_loggers = (logging.getLogger("callboard"), logging.getLogger(_observers.LOGGER))


def _default_observers(kinds: frozenset[str]) -> _observers.Observers:
    """Return the observers of a process that has not called `observe`."""
    # Telemetry is above this layer, so it is imported only here, late, and only if the application uses it: it has
    # imported OpenTelemetry, or has set a log level on one of callboard's loggers.
    if "opentelemetry.trace" not in sys.modules and not any(logger.level for logger in _loggers):
        return _observers.Observers()
    from callboard.telemetry._default_observers import default_observers

    # Later lookups call telemetry directly. Before this line, each lookup tests again whether it is in use.
    _observers.observe_by_default(default_observers)
    return default_observers(kinds)


_observers.observe_by_default(_default_observers)
