"""Checks of the guarantees of keyed actors against the diary of a `KeyedWorld`."""

from collections.abc import Hashable, Sequence

from ._keyed_world import LONG, KeyedWorld
from ._random_asks import Ask, Line

SAME = 1e-6
"""Times closer than this many seconds count as equal."""


def broken_promises(world: KeyedWorld) -> list[str]:
    broken = [*_lives(world), *_states(world), *_losses(world), *_evictions(world)]
    return [*broken, *(f"{line.key} was idle for too long" for line in _overstays(world))]


def _lives(world: KeyedWorld) -> list[str]:
    """Check that a key has at most one actor, also while its state is being saved, and that the cap holds."""
    alive: set[Hashable] = set()
    saving: list[Hashable] = []
    wrong = []
    for line in world.diary.lines:
        if line.event == "starts":
            if line.key in alive:
                wrong.append(f"{line.key} lives twice")
            if line.key in saving:
                wrong.append(f"{line.key} starts while its state is saved")
            alive.add(line.key)
            if world.plan.cap is not None and len(alive) > world.plan.cap:
                wrong.append(f"{len(alive)} live, which are more than {world.plan.cap}")
        elif line.event == "stops":
            alive.discard(line.key)
        elif line.event == "is saving":
            saving.append(line.key)
        elif line.event in ("saves", "does not save"):
            saving.remove(line.key)
        elif line.event == "over" and (alive or saving):
            wrong.append(f"after the block live {alive}, and are saved {saving}")
    return wrong


def _states(world: KeyedWorld) -> list[str]:
    """Check that each life starts from the last saved state, and that each call sees the effects of earlier calls."""
    saved: dict[Hashable, object] = {}
    counts: dict[Hashable, object] = {}
    wrong = []
    for line in world.diary.lines:
        if line.event == "saves":
            saved[line.key] = line.value
        elif line.event == "loads":
            if line.value != saved.get(line.key):
                wrong.append(f"{line.key} loads {line.value}, where {saved.get(line.key)} was saved")
        elif line.event == "starts":
            counts[line.key] = saved.get(line.key) or 0
        elif line.event == "counts":
            counts[line.key] = line.value
        elif line.event in ("begins", "is kept") and line.value != counts[line.key]:
            wrong.append(f"{line.event} {line.ask_id} of {line.key}: {line.value}, where it was {counts[line.key]}")
    return wrong


def _losses(world: KeyedWorld) -> list[str]:
    """Check that no answered result is missing from the store, if each call is saved before its answer."""
    if world.plan.save != "each_call" or not all(succeeds for _, succeeds in world.plan.store):
        return []
    saved: dict[Hashable, int] = {}
    answered: dict[Hashable, int] = {}
    wrong = []
    for line in world.diary.lines:
        if line.event == "saves":
            assert isinstance(line.value, int)
            saved[line.key] = line.value
        elif line.event == "answered":
            step, result = world.plan.steps[line.ask_id], world.came_to[line.ask_id]
            if isinstance(step, Ask) and isinstance(result, int) and step.name in ("up", "add"):
                answered[line.key] = max(result, answered.get(line.key, 0))
        if line.event in ("saves", "answered") and saved.get(line.key, 0) < answered.get(line.key, 0):
            wrong.append(f"{line.key}: {answered[line.key]} was told, and {saved.get(line.key)} is saved")
    return wrong


def _evictions(world: KeyedWorld) -> list[str]:
    """Check that each eviction makes room for a waiting key, and takes the least recently asked idle actor."""
    if world.plan.idle is not None or world.plan.save == "each_call":
        return []
    wrong = []
    lines = world.diary.lines
    for position, line in enumerate(lines):
        if any(entry.event == "closes" for entry in lines[:position]):
            break
        if line.event == "is kept":
            before = lines[:position]
            if not any(entry.event == "asked" and entry.key != line.key for entry in before):
                wrong.append(f"{line.key} left at {line.at}, and nobody wanted its place")
            # Ignore asks at the same instant as the eviction or as an ask of another key that caused it: they may
            # have come after the decision to evict, because trio runs the tasks of one instant in any order.
            ask_times = {entry.at for entry in before if entry.event == "asked" and entry.key != line.key} | {line.at}
            certain_entries = [
                entry for entry in before if all(abs(entry.at - ask_time) > SAME for ask_time in ask_times)
            ]
            last_ask = _last_asked(certain_entries, line.key)
            wrong += [
                f"{line.key} left at {line.at} before {idle_key}, which was asked less recently"
                for idle_key in _idle_before(before, line.at) - {line.key}
                if _last_asked(before, idle_key) < last_ask
            ]
    return wrong


def _last_asked(lines: Sequence[Line], key: Hashable) -> float:
    return max((line.at for line in lines if line.event == "asked" and line.key == key), default=-1.0)


def _idle_before(lines: Sequence[Line], moment: float) -> set[Hashable]:
    """Return the actors that had started and been idle for a while."""
    alive: set[Hashable] = set()
    open_asks: dict[int, Hashable] = {}
    busy_lately: set[Hashable] = set()
    for line in lines:
        if line.event == "serves":
            alive.add(line.key)
        elif line.event in ("stops", "is kept", "killed", "breaks"):
            alive.discard(line.key)
        elif line.event == "asked":
            open_asks[line.ask_id] = line.key
        elif line.event == "answered":
            open_asks.pop(line.ask_id, None)
        if line.at >= moment - SAME and line.key is not None:
            busy_lately.add(line.key)
    return alive - busy_lately - set(open_asks.values())


def _overstays(world: KeyedWorld) -> list[Line]:
    """Check that no actor is alive at the end of a long plan with an idle timeout."""
    if world.plan.idle is None or world.plan.until != LONG:
        return []
    return [line for line in world.diary.lines if line.event == "closes" and line.value]
