"""Confined workers that lie: bodies that deny having begun, exit, or are killed after their effect."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from callboard.extend import Body, EngineError
from callboard_actors.process import Confine, Processes
from tests.process import _hostile as hostile

from ._watch import Complaint, run_on

ENDS = ("returns", "raises", "exits", "is killed", "denies and exits", "denies and is killed", "claims the next call")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Bodies:
    """Consecutive calls of one confined pool, and the way in which each body ends after its effect."""

    ends: tuple[str, ...]
    seated: bool = True
    """Whether each call runs in a seat, which is replaced after it has ended, or else in the pool's worker."""
    reuse: bool = False


def draw(chance: Random) -> Bodies:
    ends = tuple(chance.choice(ENDS) for _ in range(chance.randint(1, 4)))
    return Bodies(ends, chance.random() < 0.6, chance.random() < 0.5)


def an_effect_happens_once(plan: Bodies, effects: list[int], ended: dict[int, str]) -> list[str]:
    """An engine runs a body at most once."""
    return [f"call {call} ran {effects.count(call)} times" for call in sorted(set(effects)) if effects.count(call) > 1]


def what_had_its_effect_is_not_said_to_be_unstarted(
    plan: Bodies, effects: list[int], ended: dict[int, str]
) -> list[str]:
    """A call whose effect has happened is never reported as unstarted, because its caller would run it again."""
    return [f"call {call} was {ended[call]}" for call in sorted(set(effects)) if ended[call] == "unavailable"]


PROMISES: tuple[Callable[[Bodies, list[int], dict[int, str]], list[str]], ...] = (
    an_effect_happens_once,
    what_had_its_effect_is_not_said_to_be_unstarted,
)


def play(plan: Bodies, backend: str) -> list[Complaint]:
    """Make the calls on a backend; return the broken promises."""

    async def main() -> list[Complaint]:
        with tempfile.TemporaryDirectory() as folder, _findable():
            trace = Path(folder, "trace")
            trace.touch()
            ended = await _outcomes(plan, trace)
            effects = [int(line) for line in trace.read_text().splitlines()]
        return [Complaint(promise.__name__, detail) for promise in PROMISES for detail in promise(plan, effects, ended)]

    return run_on(backend, main, real_clock=True)


@contextmanager
def _findable() -> Iterator[None]:
    """Make the bodies importable in workers, wherever this program was started."""
    sys.path.append(str(ROOT))
    try:
        yield
    finally:
        sys.path.remove(str(ROOT))


async def _outcomes(plan: Bodies, trace: Path) -> dict[int, str]:
    confine = Confine(write=[trace.parent], modules=[ROOT], reuse=plan.reuse)
    outcomes: dict[int, str] = {}
    async with Processes(workers=1, grace=0.1, confine=confine) as pool:
        due = list(enumerate(plan.ends, 1))
        while due and not plan.seated:
            await _call(pool, trace, due, outcomes)
        while due:
            async with pool.seat("owner") as seat:
                while due and await _call(seat, trace, due, outcomes):
                    pass
    return outcomes


async def _call(engine: Any, trace: Path, due: list[tuple[int, str]], outcomes: dict[int, str]) -> bool:
    """Make the next call in this place; return whether the place can be used again."""
    call, end = due.pop(0)
    try:
        await engine.run_body(Body(fn=hostile.act, args=(str(trace), call, end), title=f"call {call}"))
        outcomes[call] = "finished"
    except ValueError:
        outcomes[call] = "finished"
    except EngineError as error:
        outcomes[call] = error.ended
        return False
    return True
