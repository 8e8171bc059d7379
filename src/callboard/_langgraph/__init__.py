"""Adapter to LangGraph; only this package uses LangGraph's private names.

`_outer_task`: the graph task that runs callboard. `_call_scope`: the config of code inside a call, and streams of the
outer graph. `_node_scope`: the config of a node of callboard's agent. `_savers`: access to checkpointers.
`_serializers`: values in LangGraph's storage format. `_vocabulary`: public names of both packages.

Names and meanings are those of langgraph 1.2; `tests/langgraph/test_private_names.py` fails when they change.
"""

from callboard._langgraph._call_scope import CALL_PREFIX as CALL_PREFIX
from callboard._langgraph._call_scope import PLACEHOLDER_ID as PLACEHOLDER_ID
from callboard._langgraph._call_scope import RESUME as RESUME
from callboard._langgraph._call_scope import CallScratchpad as CallScratchpad
from callboard._langgraph._call_scope import GraphNames as GraphNames
from callboard._langgraph._call_scope import answer_is_for as answer_is_for
from callboard._langgraph._call_scope import bound_answer_waits as bound_answer_waits
from callboard._langgraph._call_scope import call_config as call_config
from callboard._langgraph._call_scope import config_for_calls as config_for_calls
from callboard._langgraph._call_scope import is_interrupt_id as is_interrupt_id
from callboard._langgraph._call_scope import name_of_run as name_of_run
from callboard._langgraph._call_scope import namespace_of_calls as namespace_of_calls
from callboard._langgraph._call_scope import next_is_asked as next_is_asked
from callboard._langgraph._call_scope import question_id as question_id
from callboard._langgraph._call_scope import scope_in_task as scope_in_task
from callboard._langgraph._call_scope import scope_of as scope_of
from callboard._langgraph._call_scope import with_answers as with_answers
from callboard._langgraph._outer_task import NO_RUNTIME as NO_RUNTIME
from callboard._langgraph._outer_task import GraphTask as GraphTask
from callboard._langgraph._outer_task import Send as Send
from callboard._langgraph._outer_task import Writes as Writes
from callboard._langgraph._outer_task import arguments_of as arguments_of
from callboard._langgraph._outer_task import graph_task as graph_task
from callboard._langgraph._outer_task import injected_args_by_name as injected_args_by_name
from callboard._langgraph._outer_task import injected_args_of as injected_args_of
from callboard._langgraph._outer_task import is_graph_node as is_graph_node
from callboard._langgraph._outer_task import merged_configs as merged_configs
from callboard._langgraph._outer_task import read_state as read_state
from callboard._langgraph._outer_task import run_config as run_config
from callboard._langgraph._outer_task import runtime_of as runtime_of
from callboard._langgraph._outer_task import with_runtime as with_runtime
