"""callboard: tool calls of LLM agents as supervised tasks."""
from callboard.tools._node import ToolNode
from callboard._types import CallPolicy, Limit, Rate, Statistics
from callboard._call import cleanup, remaining
from callboard.tools._input import tools_condition
from callboard.tools._vocabulary import *
from callboard.exceptions import *
