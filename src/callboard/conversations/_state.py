"""State of an agent, in the four forms of LangGraph's agents."""

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

from langchain_core.messages import BaseMessage
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from pydantic import BaseModel
from typing_extensions import TypedDict

StructuredResponse = dict[str, Any] | BaseModel


class AgentState(TypedDict):
    """State of an agent: its conversation and its remaining steps."""

    messages: Annotated[Sequence[BaseMessage], add_messages]
    remaining_steps: NotRequired[RemainingSteps]
    """Number of steps left of the run's `recursion_limit`."""


class AgentStatePydantic(BaseModel):
    """`AgentState` as a pydantic model."""

    messages: Annotated[Sequence[BaseMessage], add_messages]
    remaining_steps: RemainingSteps = 25


class AgentStateWithStructuredResponse(AgentState):
    """`AgentState` of an agent with a response format."""

    structured_response: StructuredResponse


class AgentStateWithStructuredResponsePydantic(AgentStatePydantic):
    """`AgentStatePydantic` of an agent with a response format."""

    structured_response: StructuredResponse
