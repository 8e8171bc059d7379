"""Test helpers: virtual clocks, a scripted model, fakes of tools, and a suite for actors."""

from typing import TYPE_CHECKING

from callboard._util._lazy import lazy_exports

if TYPE_CHECKING:
    from callboard.testing._actors import ActorContract as ActorContract
    from callboard.testing._actors import kill_actor as kill_actor
    from callboard.testing._actors import killing as killing
    from callboard.testing._clock import Backend as Backend
    from callboard.testing._clock import VirtualClockLoop as VirtualClockLoop
    from callboard.testing._clock import backend as backend
    from callboard.testing._clock import backend_names as backend_names
    from callboard.testing._fakes import FakedCall as FakedCall
    from callboard.testing._fakes import FakedTools as FakedTools
    from callboard.testing._fakes import UnfakedToolError as UnfakedToolError
    from callboard.testing._fakes import fake_tools as fake_tools
    from callboard.testing._kills import kill_at as kill_at
    from callboard.testing._orphans import OrphansError as OrphansError
    from callboard.testing._orphans import no_orphans as no_orphans
    from callboard.testing._replay import Replay as Replay
    from callboard.testing._replay import ReplayDifferenceError as ReplayDifferenceError
    from callboard.testing._replay import replay as replay
    from callboard.testing._scripted_model import Line as Line
    from callboard.testing._scripted_model import ScriptedModel as ScriptedModel
    from callboard.testing._scripted_model import ScriptedReply as ScriptedReply
    from callboard.testing._scripted_model import ScriptEndedError as ScriptEndedError
    from callboard.testing._scripted_model import calls as calls
    from callboard.testing._tools import Event as Event
    from callboard.testing._tools import Kind as Kind
    from callboard.testing._tools import Recorder as Recorder

_HOMES = {
    "callboard.testing._actors": ("ActorContract", "kill_actor", "killing"),
    "callboard.testing._clock": ("Backend", "VirtualClockLoop", "backend", "backend_names"),
    "callboard.testing._fakes": ("FakedCall", "FakedTools", "UnfakedToolError", "fake_tools"),
    "callboard.testing._kills": ("kill_at",),
    "callboard.testing._orphans": ("OrphansError", "no_orphans"),
    "callboard.testing._replay": ("Replay", "ReplayDifferenceError", "replay"),
    "callboard.testing._scripted_model": (
        "Line",
        "ScriptedReply",
        "ScriptEndedError",
        "ScriptedModel",
        "calls",
    ),
    "callboard.testing._tools": ("Event", "Kind", "Recorder"),
}
"""Public names by module. Each is imported at first use: a test that needs a clock must not import LangChain."""

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
