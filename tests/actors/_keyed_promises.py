"""Checks of the guarantees of keyed actors against the diary of a `KeyedWorld`."""

from collections.abc import Hashable, Sequence

from ._keyed_world import LONG, KeyedWorld
from ._random_asks import Ask, Line

SAME = 1e-6
"""Times closer than this many seconds count as equal."""


def broken_promises(world: KeyedWorld) -> list[str]:
    found = [*_lives(world), *_states(world), *_losses(world), *_evictions(world)]
    return [*found, *(f"{line.key} was idle for too long" for line in _overstays(world))]


def _lives(world: KeyedWorld) -> list[str]:
    """Check that a key has at most one actor, also while its state is being saved, and that the cap holds."""
    alive: set[Hashable] = set()
    saving: list[Hashable] = []
    wrong = []
    for line in world.diary.lines:
        if line.what == "starts":
            if line.key in alive:
                wrong.append(f"{line.key} lives twice")
            if line.key in saving:
                wrong.append(f"{line.key} starts while its state is saved")
            alive.add(line.key)
            if world.plan.cap is not None and len(alive) > world.plan.cap:
                wrong.append(f"{len(alive)} live, which are more than {world.plan.cap}")
        elif line.what == "stops":
            alive.discard(line.key)
        elif line.what == "is saving":
            saving.append(line.key)
        elif line.what in ("saves", "does not save"):
            saving.remove(line.key)
        elif line.what == "over" and (alive or saving):
            wrong.append(f"after the block live {alive}, and are saved {saving}")
    return wrong


def _states(world: KeyedWorld) -> list[str]:
    """Check that each life starts from the last saved state, and that each call sees the effects of earlier calls."""
    kept: dict[Hashable, object] = {}
    counts: dict[Hashable, object] = {}
    wrong = []
    for line in world.diary.lines:
        if line.what == "saves":
            kept[line.key] = line.value
        elif line.what == "loads":
            if line.value != kept.get(line.key):
                wrong.append(f"{line.key} loads {line.value}, where {kept.get(line.key)} was saved")
        elif line.what == "starts":
            counts[line.key] = kept.get(line.key) or 0
        elif line.what == "counts":
            counts[line.key] = line.value
        elif line.what in ("begins", "is kept") and line.value != counts[line.key]:
            wrong.append(f"{line.what} {line.who} of {line.key}: {line.value}, where it was {counts[line.key]}")
    return wrong


def _losses(world: KeyedWorld) -> list[str]:
    """Check that no answered result is missing from the store, if each call is saved before its answer."""
    if world.plan.save != "each_call" or not all(succeeds for _, succeeds in world.plan.store):
        return []
    kept: dict[Hashable, int] = {}
    told: dict[Hashable, int] = {}
    wrong = []
    for line in world.diary.lines:
        if line.what == "saves":
            assert isinstance(line.value, int)
            kept[line.key] = line.value
        elif line.what == "answered":
            step, found = world.plan.steps[line.who], world.came_to[line.who]
            if isinstance(step, Ask) and isinstance(found, int) and step.name in ("up", "add"):
                told[line.key] = max(found, told.get(line.key, 0))
        if line.what in ("saves", "answered") and kept.get(line.key, 0) < told.get(line.key, 0):
            wrong.append(f"{line.key}: {told[line.key]} was told, and {kept.get(line.key)} is saved")
    return wrong


def _evictions(world: KeyedWorld) -> list[str]:
    """Check that each eviction makes room for a waiting key, and takes the least recently asked idle actor."""
    if world.plan.idle is not None or world.plan.save == "each_call":
        return []
    wrong = []
    lines = world.diary.lines
    for place, line in enumerate(lines):
        if any(one.what == "closes" for one in lines[:place]):
            break
        if line.what == "is kept":
            before = lines[:place]
            if not any(one.what == "asked" and one.key != line.key for one in before):
                wrong.append(f"{line.key} left at {line.at}, and nobody wanted its place")
            # Ignore asks at the same instant as the eviction or as an ask of another key that caused it: they may
            # have come after the decision to evict, because trio runs the tasks of one instant in any order.
            told = {one.at for one in before if one.what == "asked" and one.key != line.key} | {line.at}
            sure = [one for one in before if all(abs(one.at - at) > SAME for at in told)]
            mine = _last_asked(sure, line.key)
            wrong += [
                f"{line.key} left at {line.at} before {other}, which was asked less recently"
                for other in _idle_before(before, line.at) - {line.key}
                if _last_asked(before, other) < mine
            ]
    return wrong


def _last_asked(lines: Sequence[Line], key: Hashable) -> float:
    return max((line.at for line in lines if line.what == "asked" and line.key == key), default=-1.0)


def _idle_before(lines: Sequence[Line], at: float) -> set[Hashable]:
    """Return the actors that had started and been idle for a while."""
    alive: set[Hashable] = set()
    open_asks: dict[int, Hashable] = {}
    busy_lately: set[Hashable] = set()
    for line in lines:
        if line.what == "serves":
            alive.add(line.key)
        elif line.what in ("stops", "is kept", "killed", "breaks"):
            alive.discard(line.key)
        elif line.what == "asked":
            open_asks[line.who] = line.key
        elif line.what == "answered":
            open_asks.pop(line.who, None)
        if line.at >= at - SAME and line.key is not None:
            busy_lately.add(line.key)
    return alive - busy_lately - set(open_asks.values())


def _overstays(world: KeyedWorld) -> list[Line]:
    """Check that no actor is alive at the end of a long plan with an idle timeout."""
    if world.plan.idle is None or world.plan.until != LONG:
        return []
    return [line for line in world.diary.lines if line.what == "closes" and line.value]
