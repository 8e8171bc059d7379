"""Tool calls that run handlers of actors, with reruns after the actor died."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from langchain_core.tools import BaseTool

from callboard._calls._attempt import Attempt, own_attempt
from callboard._calls._call import SupervisedCall, current_call, note
from callboard.actors._actor import Handler
from callboard.actors._cell import Cell, asked_by
from callboard.exceptions import ActorDiedError, ActorGoneError, MailboxFullError, PoisonousCallError
from callboard.tools._errors import is_control_flow
from callboard.tools._plan import Plan
from callboard.tools._unknown_outcome import REPEATS, OutcomeUnknown, is_lost, runs_again

IDEMPOTENT = "idempotent"
"""Key in a tool's `metadata` that marks the tool as safe to repeat."""

Supervised = SupervisedCall[Any] | None


class HandlerCall:
    """Body of a tool that asks an actor's handler.

    Args:
        cell: cell of the actor.
        handler: handler of the actor's class.
        name: name of the tool.
        written: names of the arguments that the model writes.
    """

    __slots__ = ("_cell", "_handler", "_name", "_written")

    def __init__(self, cell: Cell, handler: Handler, name: str, written: frozenset[str]) -> None:
        self._cell = cell
        self._handler = handler
        self._name = name
        self._written = written

    async def __call__(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        supervised: Supervised,
        told: Callable[[ActorDiedError], ActorDiedError] = lambda died: died,
    ) -> Any:
        """Run the handler; run it again if its actor died and the call's policy allows it.

        `told` adds information for the model to the actor's error.
        """
        lost: ActorDiedError | None = None
        runs, attempt = 0, own_attempt(self._name)
        named_by = {name: value for name, value in self._call_args(attempt, kwargs).items() if name in self._written}
        while True:
            # The attempt's timeout stops while the ask waits in the mailbox, and starts again at `turn.begin`.
            turn = None if attempt is None else attempt.waits()
            try:
                return await self._cell.ask(
                    self._handler,
                    args,
                    kwargs,
                    title=self._name,
                    call=supervised,
                    passes=is_control_flow,
                    on_begin=None if turn is None else turn.begin,
                    named_by=named_by,
                )
            except ActorDiedError as died:
                runs += 1
                # The loop is bounded: a call that ends its actor repeatedly is refused with PoisonousCallError.
                if supervised is not None and is_lost(died) and runs_again(supervised.policy):
                    note("rerun", actor=self._cell.child)
                    lost = died
                    continue
                if supervised is not None and attempt is not None and supervised.policy.on_unknown == "ask":
                    raise self._question(supervised) from died
                raise told(died) from died.__cause__
            except PoisonousCallError as refused:
                if not runs:
                    raise
                raise PoisonousCallError(refused.tool, refused.call_id, refused.times, runs=runs) from lost
            except (ActorGoneError, MailboxFullError) as refused:
                if lost is None:
                    raise
                # The handler did start in an earlier round, so the outcome is unknown, and not "did not start".
                raise told(lost) from refused
            finally:
                if turn is not None:
                    turn.end()

    def _question(self, supervised: SupervisedCall[Any]) -> OutcomeUnknown:
        """Return the question to a person, with the arguments of the call after changes by middleware."""
        args = {name: value for name, value in supervised.call["args"].items() if name in self._written}
        return OutcomeUnknown(self._name, args, f"{self._cell.name} died")

    def _call_args(self, attempt: Attempt | None, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments before injection and parsing, if they are known."""
        found: Mapping[str, Any] = kwargs if attempt is None else attempt.call["args"]
        return found


def by_reference(plan: Plan) -> Plan:
    """Return the plan of a tool.

    A tool that is a method of an actor's reference follows its call policy, as actor tools do.
    """
    if (asked := asked_by(plan.fn)) is None:
        return plan
    ask = HandlerCall(*asked, plan.tool.name, frozenset(plan.tool.args) - plan.injected.forbidden)

    async def run(*args: Any, **kwargs: Any) -> Any:
        return await ask(args, kwargs, current_call())

    run.__dict__[REPEATS] = True
    return replace(plan, fn=run)


def is_idempotent(tool: BaseTool) -> bool:
    """Return whether a tool is marked as safe to repeat, in its `metadata` or on the handler that it runs."""
    metadata = getattr(tool, "metadata", None)  # a mock in place of a tool may have no fields
    mark = metadata.get(IDEMPOTENT) if isinstance(metadata, dict) else None
    if mark is not None:
        if not isinstance(mark, bool):
            raise TypeError(f"metadata[{IDEMPOTENT!r}] of the tool {tool.name!r} is True or False, got {mark!r}")
        return mark
    coroutine = getattr(tool, "coroutine", None)
    asked = None if coroutine is None else asked_by(coroutine)
    return asked is not None and asked[1].idempotent
