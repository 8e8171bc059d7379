"""What a supervisor is told of an actor: how it lives, and what becomes of it when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Generic, NoReturn, TypeVar, cast

from callboard._fleets import Fleet
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._suggestions import suggests_keywords
from callboard._types import (
    Engine,
    KeyFunction,
    LimitKey,
    check_count,
    check_engine,
    check_seconds,
    has_members_of,
    key_function,
)
from callboard.actors._actor import Actor, keeps_snapshots, made_again
from callboard.actors._ends import Lifespan
from callboard.actors._journal_snapshots import JournalSnapshots
from callboard.actors._mailbox import WhenFull, check_mailbox
from callboard.actors._restarts import RESTARTS, Restart
from callboard.actors._snapshot_store import JOURNAL, SAVES, InJournal, InMemorySnapshots, Save, Snapshots

A = TypeVar("A", bound=Actor)

INTENSITY = 3
PERIOD = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec(Generic[A]):
    """An actor and its terms; made by `child`."""

    actor: A
    name: str
    restart: Restart
    significant: bool
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

    def kept_in(self, snapshots: Snapshots | JournalSnapshots) -> "ChildSpec[A]":
        """The same terms, with the state of its actor kept in these snapshots."""
        return replace(self, snapshots=snapshots)

    @property
    def is_in_journal(self) -> bool:
        """Whether its state is kept with the thread of an agent."""
        return self.snapshots == JOURNAL

    @property
    def kind(self) -> type[A]:
        """The class of the actor that the terms are for."""
        return type(self.actor)


@suggests_keywords
def child(
    actor: type[A] | A,
    *args: Any,
    name: str | None = None,
    restart: Restart = "permanent",
    significant: bool = False,
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
    """Say how an actor lives, for a supervisor or a node.

    Args:
        actor: a class, or an object that describes one; for each life a new one is made with the same arguments.
        args: for the class.
        name: what to call it; its class's name by default.
        restart: whether it is started again when it has ended: "permanent" always, "transient" if it did not end in
            order, "temporary" never.
        significant: whether its end may be that of its supervisor, see `Supervisor(auto_shutdown=...)`.
        mailbox: how many calls may wait for it, also while it is restarted.
        when_full: what becomes of one more: "wait", "reject" it, or "drop_oldest".
        poison: how often one call, with the same arguments, may end the actor before it is refused.
        start_timeout: seconds that `start` may take.
        stop_timeout: seconds for the handlers that run, and then for `stop`; after that they are cancelled.
        max_age: seconds after which it is replaced by a new one, when no handler runs.
        max_calls: calls after which it is.
        prefix: of the names of its tools in a node, such as "browser_".
        key: in a node, a function of the tool call, or of that and a `CallContext`, that says which instance has it:
            `lambda call, context: context.config["configurable"]["thread_id"]`. There is one for each key; by default
            one for all, or with `snapshots="journal"` for each thread.
        cap: in a node, how many of them live at once; the one that was asked least recently goes first.
        idle: in a node, seconds after which an instance goes that nobody asks.
        snapshots: where the state of those that went is kept until they come back; in memory by default. "journal",
            in an agent with a checkpointer: with the thread, of which a fork or a place of the past has its own.
        save: when: "at_end" of a life, or after "each_call", before its caller is answered, so that a process that
            is killed loses none that was; at the end by default, in the journal after each call.
        intensity: where it has no supervisor that others share, as in a node and in `running`, how many restarts
            there may be within a period.
        period: seconds.
        runs_in: where its code runs, such as a pool of processes: each life has a worker of its own there. Its
            mailbox and its supervisor stay here. By default its code runs here, too.
        fleet: where it lives once for each key among many processes, such as `RedisFleet(url, secret=...)`: whoever
            asks it reaches the process that has it. States that are kept are kept there, too, by default.

    Raises:
        TypeError: for what is no actor, or an option of the wrong kind.
        ValueError: for a number out of range.
    """
    described = _described(actor, args)
    own = name if name is not None else type(described).__name__
    if not isinstance(cast("object", own), str) or not own:
        raise TypeError(f"child(name=...) is a text, got {own!r}")
    spec = ChildSpec(
        actor=described,
        name=own,
        restart=restart,
        significant=significant,
        mailbox=mailbox,
        when_full=when_full,
        poison=poison,
        lifespan=Lifespan(start=start_timeout, stop=stop_timeout, max_age=max_age, max_calls=max_calls),
        prefix=prefix,
        key=None if key is None else key_function(f"child({own}): key", key),
        cap=cap,
        idle=idle,
        snapshots=snapshots,
        save=save if save is not None else "each_call" if snapshots == JOURNAL else "at_end",
        intensity=intensity,
        period=period,
        runs_in=runs_in,
        fleet=fleet,
    )
    _check_life(f"child({own})", spec)
    _check_instances(f"child({own})", spec)
    if fleet is not None:
        _check_fleet(f"child({own})", spec)
    return spec


def _check_life(where: str, spec: ChildSpec[Any]) -> None:
    """Raise for what cannot be the terms of one actor."""
    if spec.restart not in RESTARTS:
        raise ValueError(f"{where}: restart is one of {RESTARTS}, got {spec.restart!r}")
    if not isinstance(cast("object", spec.significant), bool):
        raise TypeError(f"{where}: significant is True or False, got {spec.significant!r}")
    if spec.significant and spec.restart == "permanent":
        raise ValueError(
            f"{where} is significant and permanent: it never ends for good; make it transient or temporary"
        )
    check_mailbox(where, spec.mailbox, spec.when_full)
    check_count(f"{where}: poison", spec.poison, least=1)
    check_engine(f"{where}: runs_in", spec.runs_in)
    if spec.runs_in is not None:
        spec.runs_in.check(spec.kind, title=spec.name)
    lifespan = spec.lifespan
    for option, seconds in (("start_timeout", lifespan.start), ("stop_timeout", lifespan.stop)):
        if cast("object", seconds) is None:
            raise TypeError(f"{where}: {option} is a number of seconds, got None; float('inf') is for ever")
        check_seconds(f"{where}: {option}", seconds, zero=option == "stop_timeout")
    check_seconds(f"{where}: max_age", lifespan.max_age, zero=False)
    if lifespan.max_calls is not None:
        check_count(f"{where}: max_calls", lifespan.max_calls, least=1)


def _check_instances(where: str, spec: ChildSpec[Any]) -> None:
    """Raise for what cannot be the terms of several, and of what they keep."""
    check_count(f"{where}: intensity", spec.intensity, least=0)
    check_seconds(f"{where}: period", spec.period, zero=False)
    if spec.cap is not None:
        check_count(f"{where}: cap", spec.cap, least=1)
    check_seconds(f"{where}: idle", spec.idle, zero=False)
    if not isinstance(cast("object", spec.prefix), str):
        raise TypeError(f"{where}: prefix is a text, such as 'browser_'; got {spec.prefix!r}")
    if spec.save not in SAVES:
        raise ValueError(f"{where}: save is one of {SAVES}, got {spec.save!r}")
    if spec.is_in_journal:
        if spec.save != "each_call":
            raise ValueError(f"{where}: the journal has each call, and its state with it; leave save={spec.save!r} out")
    elif spec.snapshots is not None and not all(
        callable(getattr(spec.snapshots, one, None)) for one in ("load", "save")
    ):
        raise TypeError(
            f"{where}: snapshots is an object with async `load` and `save`, or {JOURNAL!r}; got {spec.snapshots!r}"
        )
    if (spec.snapshots is not None or spec.save != "at_end") and not keeps_snapshots(spec.kind):
        raise ValueError(f"{where}: there is nothing to save; {spec.kind.__name__} needs snapshot and restore")


def _check_fleet(where: str, spec: ChildSpec[Any]) -> None:
    """Raise for what cannot live in one process of many."""
    fleet = cast("object", spec.fleet)
    if not has_members_of(Fleet, fleet):
        raise TypeError(f"{where}: fleet is one such as RedisFleet(url, secret=...) of callboard_actors; got {fleet!r}")
    if spec.is_in_journal:
        raise ValueError(f"{where}: its state is in the journal of a thread, or its fleet has it; leave one out")
    if isinstance(spec.snapshots, InMemorySnapshots):
        raise ValueError(
            f"{where}: the next owner of a key cannot read what this process keeps in memory; leave snapshots=... out, "
            "and the fleet keeps it, or give it a store that all processes share"
        )
    if spec.runs_in is not None:
        raise ValueError(
            f"{where}: the code of an actor with a fleet runs in the process that owns its key, where it is told of "
            "its fencing token; leave runs_in=... or fleet=... out"
        )


def check_grace(spec: ChildSpec[Any], graces: Mapping[str, float | None]) -> None:
    """Raise for handlers of a fleet that could go on when another process owns their key.

    The usual grace is not refused: of a short lease, the rest of the lease cuts it.

    Args:
        spec: of the actor.
        graces: in seconds, by the name of the tool.

    Raises:
        ValueError: names the grace, the lease and what to change.
    """
    if (fleet := spec.fleet) is None:
        return
    for tool, grace in graces.items():
        if grace is not None and grace > max(fleet.clean_up, DEFAULT_GRACE):
            raise ValueError(
                f"{tool!r} has grace={grace:g}, and an owner that has lost lease={fleet.lease:g} of {fleet!r} has "
                f"{fleet.clean_up:g} s to end what runs: a second owner could begin meanwhile. Give the fleet "
                f"lease={grace * fleet.lease / fleet.clean_up:g} or more, or the tool grace={fleet.clean_up:g} or less"
            )


def check_fleet(spec: ChildSpec[Any], where: str) -> None:
    """Raise for an actor of a fleet that has no key here."""
    if spec.fleet is not None:
        raise ValueError(
            f"child({spec.name}, fleet=...) lives once for each key, and there is none in {where}; give a node "
            f"child({spec.name}, key=..., fleet=...), or use keyed({spec.name}, fleet=...)"
        )


def check_alone(spec: ChildSpec[Any], where: str) -> None:
    """Raise for an actor of which there is one for all here, with terms for several."""
    check_fleet(spec, where)
    if spec.cap is not None and not spec.is_in_journal:
        raise ValueError(
            f"child({spec.name}, cap={spec.cap}) says how many keys have an actor at once, and {where} has one for "
            f"all of its calls; give it key=... as well, or leave cap=... out"
        )


def _described(actor: object, args: tuple[Any, ...]) -> Any:
    if actor is Actor or type(actor) is Actor:
        raise TypeError("child(Actor): a class of your own is needed, class Notebook(Actor)")
    if isinstance(actor, type) and issubclass(actor, Actor):
        _check_arguments(actor, args)
        return actor(*args)
    if isinstance(actor, Actor):
        if args:
            name = type(actor).__name__
            raise TypeError(f"child({name}(...), ...): its arguments are there already; got {args!r} besides")
        return made_again(actor)  # what somebody does with theirs does not concern ours
    raise TypeError(f"an actor is an object of a subclass of Actor, or the class; got {actor!r}")


def _check_arguments(cls: type[Actor], args: tuple[Any, ...]) -> None:
    try:
        signature(cls.__init__).bind(None, *args)
    except TypeError as error:
        name = cls.__name__
        raise TypeError(f"child({name}): {error}; describe it with its arguments: child({name}(...))") from None


def check_store(spec: ChildSpec[Any], where: str) -> None:
    """Raise for an actor that is in no agent and wants its state in the journal of one."""
    if spec.is_in_journal:
        raise ValueError(
            f"child({spec.name}, snapshots={JOURNAL!r}) is for the tools of an agent with a checkpointer, and this is "
            f"{where}; have its state in a store: child({spec.name}, snapshots=InMemorySnapshots())"
        )


def spec_of(given: object) -> ChildSpec[Any]:
    """The terms of what somebody gave in place of them.

    Raises:
        TypeError: for what is no actor.
    """
    return given if isinstance(given, ChildSpec) else child(cast("Actor", given))
