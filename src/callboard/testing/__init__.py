"""What callboard is tested with, for testing what is built on it: clocks, a scripted model and tools."""

from callboard.testing._actors import ActorContract, kill_actor, killing
from callboard.testing._clock import (
    VIRTUAL_ASYNCIO,
    Backend,
    VirtualClockLoop,
    backend,
    backend_names,
    eager_virtual_clock_loop,
    virtual_clock_loop,
    virtual_trio,
)
from callboard.testing._engine import FakeEngine
from callboard.testing._engine_contract import EngineContract
from callboard.testing._log import Event, Kind
from callboard.testing._replies import calls, tool_call
from callboard.testing._scripted_model import Line, Reply, ScriptedModel, ScriptEndedError
from callboard.testing._tools import Recorder

__all__ = [
    "VIRTUAL_ASYNCIO",
    "ActorContract",
    "Backend",
    "EngineContract",
    "Event",
    "FakeEngine",
    "Kind",
    "Line",
    "Recorder",
    "Reply",
    "ScriptEndedError",
    "ScriptedModel",
    "VirtualClockLoop",
    "backend",
    "backend_names",
    "calls",
    "eager_virtual_clock_loop",
    "kill_actor",
    "killing",
    "tool_call",
    "virtual_clock_loop",
    "virtual_trio",
]
