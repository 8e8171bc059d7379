"""A small, fixed share of the exploration keeps all promises, and the explorer finds planted defects."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

from callboard._calls._permits import Permits
from callboard._langchain._unknown_outcomes import UNKNOWN
from callboard.agent._background import ThreadBackground
from callboard.agent._live import LiveRun, LiveRuns
from callboard.conversations._saved_thread import SavedThread
from callboard.conversations._storage import Entry, Said
from callboard.testing import backend_names
from callboard.tools._background import BackgroundCall
from callboard.tools._supervision import Supervision
from callboard_actors._server.fleet._lease import Lease
from callboard_actors.process._crew import Crew
from callboard_actors.process._worker_proxy import WorkerProxy

from . import WORLDS, _agents, _batches, _bodies, _fleets, _hostile, _kills, _nested, _seats, _talks, _unstorable
from ._defects import (
    DEFECTS,
    Around,
    AsksOneByOne,
    CancelsLate,
    ForgetsLimits,
    ForgetsTheLedger,
    IgnoresItsCaller,
    MixesAnswersUp,
)
from ._explore import Failure, explore_one
from ._plans import homes_in, written
from ._watch import run_on

SHARE = {
    "batches": 20,
    "threads": 6,
    "agents": 8,
    "kills": 1,
    "hostile": 20,
    "seats": 2,
    "fleets": 2,
    "nested": 30,
    "talks": 6,
    "talks on sqlite": 3,
    "talks on postgresql": 3,
    "unstorable": 4,
}
"""Number of plans of each world; each is played on every backend."""
SEEDS = {CancelsLate: 108, ForgetsLimits: 17, IgnoresItsCaller: 161, MixesAnswersUp: 438}
"""Seeds for defects that are rare; the explorer itself has more time to find them."""
ASKS = _bodies.Call("a0", (_bodies.Step("ask"),))
RARE = {
    AsksOneByOne: _batches.Batch((ASKS, ASKS), middleware=("wait_before",)),
    ForgetsTheLedger: _batches.Batch(
        (_bodies.Call("a0"), _bodies.Call("a1", (_bodies.Step("sleep", 1.0),))), end=0.5, ledger=True
    ),
}
"""Plans for defects that are rarer still: of several questions, and of a batch that goes on after a cancellation."""


SLOW = pytest.mark.exhaustive
SHARES = [
    *(
        pytest.param(name, range(SHARE[name]), marks=[SLOW] if name in ("fleets", "talks on postgresql") else [])
        for name in WORLDS
    ),
    pytest.param("batches", range(SHARE["batches"], 200), marks=SLOW),
]
"""Worlds and the seeds of their plans. Those of fleets take seconds, because leases have to expire, and so does the
start of a server."""


@pytest.mark.parametrize(("name", "seeds"), SHARES)
def test_a_share_of_what_is_explored_keeps_its_promises(name: str, seeds: range) -> None:
    """The plans are the same in each run, so that no change fails by chance."""
    world = WORLDS[name]
    failures = [
        failure for seed in seeds for backend in world.backends if (failure := explore_one(world, seed, backend))
    ]

    assert [failure.script() for failure in failures] == []


def failure_of(defect: type[Around], backend: str) -> Failure:
    """Return the first failure that a defect causes, shrunk."""
    play = partial(_batches.play, make=defect)
    # Twice, because trio runs its tasks in any order, and some defects appear in one order only.
    world = replace(WORLDS["batches"], play=lambda plan, name: play(plan, name) or play(plan, name))
    if defect in RARE:
        world = replace(world, draw=lambda chance: RARE[defect])
    for seed in range(first := SEEDS.get(defect, 0), first + 100):
        complaints = world.play(world.plan(seed), backend)
        if complaints and complaints[0].promise == DEFECTS[defect]:
            failure = explore_one(world, seed, backend, most=150)
            assert failure is not None
            return failure
    raise AssertionError(f"{defect.__name__} was not found")


@pytest.mark.parametrize(
    ("defect", "backend"),
    [(defect, ("asyncio", "trio")[index % 2]) for index, defect in enumerate(DEFECTS)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.exhaustive
def test_a_defect_is_found_and_its_plan_made_small(defect: type[Around], backend: str) -> None:
    """The failure names the promise that the defect breaks, and the shrunk plan has little more than the defect."""
    failure = failure_of(defect, backend)

    assert failure.complaints[0].promise == DEFECTS[defect]
    assert len(failure.plan.calls) <= 2
    assert len(written(failure.plan)) < 250
    assert _batches.play(failure.plan, backend) == []


LEASE = _fleets.Rolling((_fleets.Step("ask", 0, "a", 3.0), _fleets.Step("stop", 0), _fleets.Step("ask", 1, "a")))
NEST = _nested.Nest(batches=((_nested.Nested("red", (_nested.Nested("green"),)),),), width=1)
UNSTORABLE = _unstorable.Plan(((_unstorable.Asked("give", "object"), _unstorable.Asked()),))
TALK = _talks.Talk(((_talks.Work(seconds=2.0),),), ((_talks.Event("say", 1.0),),))
LATE = _talks.Talk(((_talks.Work("build", 3.0),),))
LOST = _talks.Talk(((_talks.Work("build", 5.0),),), ((_talks.Event("kill", 3.0),),))
STORED = _talks.Talk(((_talks.Work("build", 2.0), _talks.Work(seconds=20.0)),), ((_talks.Event("kill", 10.0),),))
WORDS = _talks.Talk(((_talks.Work(seconds=2.0),),), ((_talks.Event("say", 0.5), _talks.Event("say", 1.0)),))
NEIGHBOUR = _talks.Talk(
    ((_talks.Work(seconds=5.0),),), ((_talks.Event("say", 1.0), _talks.Event("say", 4.0)),), has_neighbour=True
)
STOP = _talks.Talk(((_talks.Work(seconds=2.0),),), ((_talks.Event("stop", 1.0),),))


async def lose(*_: object) -> None:
    """Do nothing with a message that was to be stored."""


async def send_twice(self: LiveRuns, run: LiveRun, message: HumanMessage) -> bool:
    """Send a message to a run, and the same message under a second id."""
    is_read = await send_once(self, run, message)
    return is_read and await send_once(self, run, message.model_copy(update={"id": f"{message.id}-again"}))


send_once = LiveRuns.send


def forget_unread_results(self: ThreadBackground, messages: Sequence[BaseMessage], _: object) -> object:
    """Take a call for lost although its result is stored, and waits to be read."""
    return find_lost_calls(self, messages, ())


find_lost_calls = ThreadBackground.lost_calls


def put_last_word_first(self: SavedThread, entry: Entry, **options: bool) -> None:
    """Read messages in the opposite order."""
    apply_entry(self, entry, **options)
    if isinstance(entry, Said):
        self.unread = [*self.unread[-1:], *self.unread[:-1]]


apply_entry = SavedThread.apply_entry


async def cancel_nothing(*_: object) -> bool:
    """Say that a call was cancelled."""
    return True


PLANTED = {
    "a message to a live run is not stored": (
        *("talks", TALK, SavedThread, "receive_messages", lose),
        "each_word_is_read_once",
    ),
    "a message to a live run is not stored in a file": (
        *("talks on sqlite", replace(TALK, database="sqlite"), SavedThread, "receive_messages", lose),
        "each_word_is_read_once",
    ),
    "the background calls of a killed process are not looked for": (
        *("talks", LOST, ThreadBackground, "lost_calls", lambda self, *_: {}),
        "each_background_call_has_one_result",
    ),
    "the result of a background call is delivered twice": (
        *("talks", LATE, LiveRuns, "send", send_twice),
        "each_background_call_has_one_result",
    ),
    "a stored result of a background call is replaced by an unknown outcome": (
        *("talks", STORED, ThreadBackground, "lost_calls", forget_unread_results),
        "what_is_stored_stays",
    ),
    "the result of a background call is told as an unknown outcome": (
        *("talks", LATE, BackgroundCall, "notification", lambda self: self.notification_about(UNKNOWN)),
        "each_result_is_true",
    ),
    "the last word is read first": (
        *("talks", WORDS, SavedThread, "apply_entry", put_last_word_first),
        "messages_are_read_in_order",
    ),
    "a message is sent to another thread": (
        *("talks", NEIGHBOUR, LiveRuns, "find", lambda self, _: next(iter(self._live.values()), None)),
        "threads_have_their_own_messages",
    ),
    "a call that was cancelled alone goes on": (
        *("talks", STOP, Supervision, "cancel", cancel_nothing),
        "a_cancelled_call_does_not_go_on",
    ),
    "a nested call takes a place at the limit that it shares with the outer call": (
        *("nested", NEST, Permits, "lend", lambda self, identity: None),
        "one_limit_never_deadlocks",
    ),
    "an owner does not look at its lease": (
        *("fleets", LEASE, Lease, "safe_for", lambda self: 1.0),
        "one_owner_acts_at_a_time",
    ),
    "a pool trusts the record in a confined worker, and not its own": (
        *("seats", _seats.Bodies(("denies and exits",)), Crew, "_new_worker", lambda self: WorkerProxy(1024)),
        "what_had_its_effect_is_not_said_to_be_unstarted",
    ),
    "a result that cannot be stored is not looked at before it is stored": (
        *("unstorable", UNSTORABLE, SavedThread, "unstorable", lambda self, output: None),
        "what_finished_is_not_told_as_unknown",
    ),
}
"""Defects in the source: a world and a plan that show it, the method and its replacement, and the broken promise."""


@pytest.mark.real_clock
@pytest.mark.parametrize("defect", PLANTED)
def test_a_defect_of_the_source_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plan, owner, method, replacement, promise = PLANTED[defect]
    world = WORLDS[str(name)]
    assert world.play(plan, "asyncio") == []
    monkeypatch.setattr(owner, str(method), replacement)
    assert promise in {complaint.promise for complaint in world.play(plan, "asyncio")}


@pytest.mark.parametrize("backend", backend_names())
def test_a_question_beside_an_exit_is_no_failure(backend: str) -> None:
    """A middleware that makes two attempts at once has one that exits, and one that asks, in a group of its own."""
    exits = _bodies.Call("a0", (_bodies.Step("ask"), _bodies.Step("exit")))
    assert _batches.play(_batches.Batch((exits,), middleware=("call_at_once",)), backend) == []


def test_rare_plans_are_drawn() -> None:
    """A few seeds are enough for each kind of event."""
    plans = {name: [WORLDS[name].plan(seed) for seed in range(20)] for name in ("fleets", "nested", "seats")}
    lying = [plan for plan in plans["seats"] if any("denies" in end for end in plan.ends)]

    assert {step.what for plan in plans["fleets"] for step in plan.steps} == {"ask", "drain", "leave", "stop"}
    assert any(
        plan.width == 1 and any(call.inner for calls in plan.batches for call in calls) for plan in plans["nested"]
    )
    assert {plan.seated for plan in lying} == {True, False}


def test_a_plan_of_a_seed_is_always_the_same_and_comes_back_from_its_script() -> None:
    """Without this, a failure could not be reproduced."""
    homes = {
        home.__name__.rpartition(".")[2]: vars(home)
        for home in (_agents, _batches, _bodies, _fleets, _hostile, _kills, _nested, _seats, _talks, _unstorable)
    }
    for world in WORLDS.values():
        for seed in range(15):
            plan = world.plan(seed)
            assert plan == world.plan(seed)
            classes = {name: homes[home][name] for home, name in homes_in(plan)}
            assert eval(written(plan), classes) == plan


@pytest.mark.parametrize("backend", backend_names())
def test_what_waits_for_ever_is_said_to(backend: str) -> None:
    """A plan that never ends is reported, and the explorer goes on."""

    async def wait() -> Any:
        import anyio

        await anyio.sleep_forever()

    assert [complaint.promise for complaint in run_on(backend, wait)] == ["it_ends"]
