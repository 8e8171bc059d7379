"""Middleware around tool calls, for `ToolNode(middleware=[...])`, and around model requests of `create_agent`.

Each middleware gets the request of a call, and a function that runs the rest of the chain. Your own derives from
`Middleware`, or is a plain function.
"""

from typing import TYPE_CHECKING

from callboard._util._lazy import lazy_exports

if TYPE_CHECKING:
    from callboard._calls._call import note as note
    from callboard._langchain._errors import error_message as error_message
    from callboard._langchain._errors import is_control_flow as is_control_flow
    from callboard._langchain._large_values import run_if_long as run_if_long
    from callboard._langchain._outputs import CallNext as CallNext
    from callboard._langchain._outputs import Output as Output
    from callboard._langchain._outputs import entries_in as entries_in
    from callboard._langchain._outputs import is_output as is_output
    from callboard._langchain._outputs import with_entries as with_entries
    from callboard._langchain._plan import ToolFacts as ToolFacts
    from callboard._langchain._plan import injected_args as injected_args
    from callboard.middleware._approval import RequireApproval as RequireApproval
    from callboard.middleware._approval import approved_arguments as approved_arguments
    from callboard.middleware._breaker import CircuitBreaker as CircuitBreaker
    from callboard.middleware._cache._cache import Cache as Cache
    from callboard.middleware._fallback import Fallback as Fallback
    from callboard.middleware._fallback import Value as Value
    from callboard.middleware._loop_guard import LoopGuard as LoopGuard
    from callboard.middleware._output_budget import OutputBudget as OutputBudget
    from callboard.middleware._retry import Retry as Retry
    from callboard.middleware._supervise import Supervise as Supervise
    from callboard.middleware._token_limit import TokenLimit as TokenLimit
    from callboard.middleware._tool_search import ToolSearch as ToolSearch
    from callboard.tools._middleware import Middleware as Middleware
    from callboard.tools._middleware import Order as Order
    from callboard.tools._middleware import RunningCall as RunningCall
    from callboard.tools._middleware import has_valid_arguments as has_valid_arguments
    from callboard.tools._middleware import is_answered as is_answered
    from callboard.tools._middleware import running_call as running_call
    from callboard.tools._middleware import takes_only_arguments as takes_only_arguments

_HOMES = {
    "callboard.middleware._approval": ("RequireApproval", "approved_arguments"),
    "callboard._calls._call": ("note",),
    "callboard.middleware._fallback": ("Fallback", "Value"),
    "callboard.middleware._breaker": ("CircuitBreaker",),
    "callboard.middleware._cache._cache": ("Cache",),
    "callboard.middleware._loop_guard": ("LoopGuard",),
    "callboard.middleware._output_budget": ("OutputBudget",),
    "callboard.middleware._retry": ("Retry",),
    "callboard.middleware._supervise": ("Supervise",),
    "callboard.middleware._token_limit": ("TokenLimit",),
    "callboard.middleware._tool_search": ("ToolSearch",),
    "callboard._langchain._errors": ("error_message", "is_control_flow"),
    "callboard._langchain._large_values": ("run_if_long",),
    "callboard.tools._middleware": (
        *("Middleware", "Order", "RunningCall", "running_call"),
        *("has_valid_arguments", "is_answered", "takes_only_arguments"),
    ),
    "callboard._langchain._plan": ("ToolFacts", "injected_args"),
    "callboard._langchain._outputs": ("CallNext", "Output", "entries_in", "is_output", "with_entries"),
}
"""Private module of each public name. Modules are imported on first use: most nodes need few of them, and
`Supervise` imports LangChain."""

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES, ["callboard.guards", "callboard"])
