"""Asks and life-cycle events of actors in one part of a recording."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from callboard._actor_events import ActorPhase
from callboard.telemetry._fields import real, text, whole
from callboard.telemetry._recording._timeline import ActorChange, RecordedAsk

_LIVES = {f"actor_{phase}": phase for phase in get_args(ActorPhase)}


class RecordedActors:
    """Builder of the asks and the life-cycle changes of actors in one part."""

    def __init__(self) -> None:
        self.asks: dict[int, RecordedAsk] = {}
        """Asks by number, in the order in which they began."""
        self.lives: list[ActorChange] = []

    def take(self, name: str, event: Mapping[str, Any], now: float) -> None:
        """Add an event at time `now`; raise ValueError for a damaged field. Unknown events and asks are ignored."""
        if (what := _LIVES.get(name)) is not None:
            actor, error, key = text(event, "actor") or "", text(event, "error"), text(event, "key")
            self.lives.append(ActorChange(time=now, actor=actor, what=what, error=error, key=key))
        elif name == "ask_begun":
            self._begun(event, now)
        elif (ask := self.asks.get(whole(event, "ask"))) is None:
            return
        elif name == "ask_taken":
            self.asks[ask.number] = replace(ask, taken=now)
        elif name == "ask_ended":
            self.asks[ask.number] = self._ended(ask, event, now)

    def _begun(self, event: Mapping[str, Any], now: float) -> None:
        number = whole(event, "ask")
        self.asks[number] = RecordedAsk(
            number=number,
            actor=text(event, "actor") or "",
            handler=text(event, "handler") or "",
            start=now,
            call=None if event.get("call") is None else whole(event, "call"),
            ahead=whole(event, "ahead", 0),
            key=text(event, "key"),
        )

    def _ended(self, ask: RecordedAsk, event: Mapping[str, Any], now: float) -> RecordedAsk:
        outcome, error = text(event, "outcome"), text(event, "error")
        taken = ask.taken
        if taken is None and (waited := real(event, "waited")) and outcome == "ok":
            taken = min(now, ask.start + waited)  # the line "ask_taken" was lost: infer its time
        return replace(ask, end=now, taken=taken, outcome=outcome, error=error)
