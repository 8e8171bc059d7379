"""Child specs, which `child` makes of an actor and options for its supervisor; and checks of these options."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Generic, NoReturn, TypeVar, cast

from callboard._loops._deadline import DEFAULT_GRACE
from callboard._records._fleets import Fleet, Snapshots
from callboard._records._policies import (
    Engine,
    KeyFunction,
    LimitKey,
    check_count,
    check_engine,
    check_seconds,
    has_members_of,
    key_function,
)
from callboard._util._suggestions import suggests_keywords
from callboard.actors._actor import Actor, Lifespan, instance_of, keeps_snapshots
from callboard.actors._mailbox import WhenFull, check_mailbox
from callboard.actors._restarts import RESTARTS, Restart
from callboard.actors._snapshots import JOURNAL, SAVES, InJournal, InMemorySnapshots, JournalSnapshots, Save

A = TypeVar("A", bound=Actor)

INTENSITY = 3
PERIOD = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec(Generic[A]):
    """Child spec: an actor and its options, made by `child`."""

    actor: A
    name: str
    restart: Restart
    mailbox: int
    when_full: WhenFull
    poison: int
    lifespan: Lifespan
    prefix: str
    key: KeyFunction | None
    cap: int | None
    idle: float | None
    snapshots: Snapshots | JournalSnapshots | InJournal | None
    save: Save
    intensity: int
    period: float
    runs_in: Engine | None
    fleet: Fleet | None

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        kind = type(self.actor).__name__
        raise AttributeError(
            f"child({kind}) describes an actor and has no {name!r}; ask one that runs: "
            f"`async with running({kind}(...)) as actor: await actor.{name}(...)`, or give child({kind}) to a ToolNode"
        )

    def with_snapshots(self, snapshots: Snapshots | JournalSnapshots) -> "ChildSpec[A]":
        """Return a copy of the spec with `snapshots` as the store of the actor's state."""
        return replace(self, snapshots=snapshots)

    @property
    def is_in_journal(self) -> bool:
        """Return whether the actor's state is stored in the conversation thread of an agent."""
        return self.snapshots == JOURNAL

    @property
    def kind(self) -> type[A]:
        """Class of the spec's actor."""
        return type(self.actor)


@suggests_keywords
def child(
    actor: type[A] | A,
    *args: Any,
    name: str | None = None,
    restart: Restart = "permanent",
    mailbox: int = 100,
    when_full: WhenFull = "wait",
    poison: int = 3,
    start_timeout: float = 30.0,
    stop_timeout: float = 10.0,
    max_age: float | None = None,
    max_calls: int | None = None,
    prefix: str = "",
    key: LimitKey | None = None,
    cap: int | None = None,
    idle: float | None = None,
    snapshots: Snapshots | InJournal | None = None,
    save: Save | None = None,
    intensity: int = INTENSITY,
    period: float = PERIOD,
    runs_in: Engine | None = None,
    fleet: Fleet | None = None,
) -> ChildSpec[A]:
    """Return a child spec (an actor with options) for a supervisor or tool node; each restart makes a new instance.

    Args:
        actor: an actor class, or an instance that describes the actor.
        args: arguments for the class.
        name: name of the actor; its class name by default.
        restart: "permanent" restarts it always, "transient" unless it ended in order, "temporary" never.
        mailbox: maximum number of waiting calls, also during a restart.
        when_full: policy for a further call: "wait", or "reject" it.
        poison: number of crashes in a row by a call with the same arguments, after which it is refused.
        start_timeout: seconds for `start`.
        stop_timeout: seconds for running handlers, and again for `stop`; then they are cancelled.
        max_age: age in seconds at which it is replaced by a new incarnation, once no handler runs.
        max_calls: number of calls after which it is replaced.
        prefix: prefix for the names of its tools in a node, such as "browser_".
        key: in a node, a function of the tool call, or of the call and a `CallContext`, that returns the key.
        cap: maximum number of keyed instances at once; the least recently used one is evicted first.
        idle: seconds without a call after which a keyed instance is evicted.
        snapshots: store for the states of evicted instances, in memory by default. "journal", in an agent with a
            checkpointer, stores them in the thread; forks and earlier places of the thread keep their own states.
        save: "at_end" of an incarnation (default), or after "each_call" before its answer, as in the journal.
        intensity: maximum number of restarts within `period`, in a node, by key and in `running`.
        period: seconds.
        runs_in: engine that runs its code; each incarnation has a worker of its own. The default is this process.
        fleet: fleet of processes in which each key has one instance, such as `PostgresFleet(url, secret=...)`.

    Raises:
        TypeError: if `actor` is no actor, or an option has the wrong type.
        ValueError: if an option is out of range.
    """
    if actor is Actor or type(actor) is Actor:
        raise TypeError("child(Actor): a class of your own is needed, class Notebook(Actor)")
    if isinstance(actor, type) and issubclass(actor, Actor):
        try:
            signature(actor.__init__).bind(None, *args)
        except TypeError as error:
            kind = actor.__name__
            raise TypeError(f"child({kind}): {error}; describe it with its arguments: child({kind}(...))") from None
        template = actor(*args)
    elif isinstance(actor, Actor):
        if args:
            kind = type(actor).__name__
            raise TypeError(f"child({kind}(...), ...): its arguments are there already; got {args!r} besides")
        template = instance_of(actor)  # a copy: later changes of the caller's object have no effect
    else:
        raise TypeError(f"an actor is an object of a subclass of Actor, or the class; got {actor!r}")
    actor_name = name if name is not None else type(template).__name__
    if not isinstance(cast("object", actor_name), str) or not actor_name:
        raise TypeError(f"child(name=...) is a text, got {actor_name!r}")
    spec = ChildSpec(
        actor=template,
        name=actor_name,
        restart=restart,
        mailbox=mailbox,
        when_full=when_full,
        poison=poison,
        lifespan=Lifespan(start=start_timeout, stop=stop_timeout, max_age=max_age, max_calls=max_calls),
        prefix=prefix,
        key=None if key is None else key_function(f"child({actor_name}): key", key),
        cap=cap,
        idle=idle,
        snapshots=snapshots,
        save=save if save is not None else "each_call" if snapshots == JOURNAL else "at_end",
        intensity=intensity,
        period=period,
        runs_in=runs_in,
        fleet=fleet,
    )
    _check_options(f"child({actor_name})", spec)
    return spec


def _check_options(owner: str, spec: ChildSpec[Any]) -> None:
    """Raise an error if an option is invalid, for every use of the spec."""
    if spec.restart not in RESTARTS:
        raise ValueError(f"{owner}: restart is one of {RESTARTS}, got {spec.restart!r}")
    check_mailbox(owner, spec.mailbox, spec.when_full)
    check_count(f"{owner}: poison", spec.poison, least=1)
    check_engine(f"{owner}: runs_in", spec.runs_in)
    if spec.runs_in is not None:
        spec.runs_in.check(spec.kind, title=spec.name)
    lifespan = spec.lifespan
    for option, seconds in (("start_timeout", lifespan.start), ("stop_timeout", lifespan.stop)):
        if cast("object", seconds) is None:
            raise TypeError(f"{owner}: {option} is a number of seconds, got None; float('inf') is for ever")
        check_seconds(f"{owner}: {option}", seconds, zero=option == "stop_timeout")
    check_seconds(f"{owner}: max_age", lifespan.max_age, zero=False)
    if lifespan.max_calls is not None:
        check_count(f"{owner}: max_calls", lifespan.max_calls, least=1)
    check_count(f"{owner}: intensity", spec.intensity, least=0)
    check_seconds(f"{owner}: period", spec.period, zero=False)
    if spec.cap is not None:
        check_count(f"{owner}: cap", spec.cap, least=1)
    check_seconds(f"{owner}: idle", spec.idle, zero=False)
    if not isinstance(spec.prefix, str):
        raise TypeError(f"{owner}: prefix is a text, such as 'browser_'; got {spec.prefix!r}")
    if spec.save not in SAVES:
        raise ValueError(f"{owner}: save is one of {SAVES}, got {spec.save!r}")
    if spec.is_in_journal:
        if spec.save != "each_call":
            raise ValueError(f"{owner}: the journal has each call, and its state with it; leave save={spec.save!r} out")
    elif spec.snapshots is not None and not all(
        callable(getattr(spec.snapshots, method, None)) for method in ("load", "save")
    ):
        raise TypeError(
            f"{owner}: snapshots is an object with async `load` and `save`, or {JOURNAL!r}; got {spec.snapshots!r}"
        )
    if (spec.snapshots is not None or spec.save != "at_end") and not keeps_snapshots(spec.kind):
        raise ValueError(f"{owner}: there is nothing to save; {spec.kind.__name__} needs snapshot and restore")
    if spec.fleet is None:
        return
    if not has_members_of(Fleet, spec.fleet):
        raise TypeError(
            f"{owner}: fleet is one such as PostgresFleet(url, secret=...) of callboard_actors; got {spec.fleet!r}"
        )
    if spec.is_in_journal:
        raise ValueError(f"{owner}: its state is in the journal of a thread, or its fleet has it; leave one out")
    if isinstance(spec.snapshots, InMemorySnapshots):
        raise ValueError(
            f"{owner}: the next owner of a key cannot read what this process keeps in memory; leave snapshots=... out, "
            "and the fleet keeps it, or give it a store that all processes share"
        )
    if spec.runs_in is not None:
        raise ValueError(
            f"{owner}: the code of an actor with a fleet runs in the process that owns its key, where it is told of "
            "its fencing token; leave runs_in=... or fleet=... out"
        )


def check_grace(spec: ChildSpec[Any], graces: Mapping[str, float | None]) -> None:
    """Raise an error if a tool's clean-up time (`grace`) may last until another process owns the key of the actor."""
    # The default grace is not refused: with a short lease, the rest of the lease limits it.
    if (fleet := spec.fleet) is None:
        return
    for tool, grace in graces.items():
        if grace is not None and grace > max(fleet.clean_up, DEFAULT_GRACE):
            raise ValueError(
                f"{tool!r} has grace={grace:g}, and an owner that has lost lease={fleet.lease:g} of {fleet!r} has "
                f"{fleet.clean_up:g} s to end what runs: a second owner could begin meanwhile. Give the fleet "
                f"lease={grace * fleet.lease / fleet.clean_up:g} or more, or the tool grace={fleet.clean_up:g} or less"
            )


def check_fleet(spec: ChildSpec[Any], user: str) -> None:
    """Raise an error if an actor with the option `fleet` is used without a key; `user` names the place of use."""
    if spec.fleet is not None:
        raise ValueError(
            f"child({spec.name}, fleet=...) lives once for each key, and there is none in {user}; give a node "
            f"child({spec.name}, key=..., fleet=...), or use keyed({spec.name}, fleet=...)"
        )


def check_alone(spec: ChildSpec[Any], user: str) -> None:
    """Raise an error if an actor without keys has the option `cap` or `fleet`, which only keyed actors may have."""
    check_fleet(spec, user)
    if spec.cap is not None and not spec.is_in_journal:
        raise ValueError(
            f"child({spec.name}, cap={spec.cap}) says how many keys have an actor at once, and {user} has one for "
            f"all of its calls; give it key=... as well, or leave cap=... out"
        )


def check_store(spec: ChildSpec[Any], user: str) -> None:
    """Raise an error if an actor stores its state in an agent's journal, but is used outside of an agent."""
    if spec.is_in_journal:
        raise ValueError(
            f"child({spec.name}, snapshots={JOURNAL!r}) is for the tools of an agent with a checkpointer, and this is "
            f"{user}; have its state in a store: child({spec.name}, snapshots=InMemorySnapshots())"
        )


def spec_of(actor: type[A] | A | ChildSpec[A], owner: str = "", **terms: Any) -> ChildSpec[A]:
    """Return `actor` if it is a child spec; else make a child spec of the actor or class, with the options `terms`."""
    if not isinstance(actor, ChildSpec):
        return child(actor, **terms)
    if terms:
        raise TypeError(f"{owner}(child(...)): its terms are there already; got {terms!r} besides")
    return actor
