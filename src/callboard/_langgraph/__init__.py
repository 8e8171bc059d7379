"""Everything callboard knows of LangGraph's private names, and nowhere else.

`_around`: the graph that runs us. `_within`: what runs within a call of ours. `_heard`: what the graph
around us hears of that. `_place`: what LangGraph would say of
a node of our agent's. `_node`: LangGraph's own tools node. `_savers`: the one way to await a checkpointer.
`_reading`: a checkpointer that shows dicts. `_postgres`: what its savers on PostgreSQL do not offer.

Names and meanings were read from langgraph 1.2; `tests/test_langgraph_keys.py` notices when they move.
"""

from callboard._langgraph._around import GraphTask as GraphTask
from callboard._langgraph._around import Send as Send
from callboard._langgraph._around import Writes as Writes
from callboard._langgraph._around import graph_task as graph_task
from callboard._langgraph._around import is_graph_node as is_graph_node
from callboard._langgraph._around import merged_configs as merged_configs
from callboard._langgraph._around import read_state as read_state
from callboard._langgraph._around import run_config as run_config
from callboard._langgraph._around import runtime_of as runtime_of
from callboard._langgraph._around import with_runtime as with_runtime
from callboard._langgraph._heard import config_for_calls as config_for_calls
from callboard._langgraph._node import arguments_of as arguments_of
from callboard._langgraph._node import injected_args_by_name as injected_args_by_name
from callboard._langgraph._within import PLACEHOLDER_ID as PLACEHOLDER_ID
from callboard._langgraph._within import RESUME as RESUME
from callboard._langgraph._within import AnswerKeeper as AnswerKeeper
from callboard._langgraph._within import CallScratchpad as CallScratchpad
from callboard._langgraph._within import GraphNames as GraphNames
from callboard._langgraph._within import answer_is_for as answer_is_for
from callboard._langgraph._within import bound_answer_waits as bound_answer_waits
from callboard._langgraph._within import call_configurable as call_configurable
from callboard._langgraph._within import call_namespace as call_namespace
from callboard._langgraph._within import is_interrupt_id as is_interrupt_id
from callboard._langgraph._within import question_id as question_id
