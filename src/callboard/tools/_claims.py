"""Which calls of a batch are noted as begun before any of them is: their claims are stored with the reply."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from langchain_core.messages import ToolCall

from callboard._types import CallPolicy
from callboard.tools._call_record import CallRecord
from callboard.tools._node_setup import Setup
from callboard.tools._portions import PORTION, Steps
from callboard.tools._unknown_outcome import runs_again


def claims_of(
    setup: Setup,
    calls: Sequence[tuple[str, ToolCall]],
    known: Mapping[str, CallRecord],
    refused: Collection[int],
    *,
    threads: int,
    at_once: int | None,
) -> Steps[list[str]]:
    """Return the keys of the calls that are new, may start at once, and must not run twice.

    A call that has to wait for a place is claimed when it has one: if the process is killed before, the call has not
    begun, and may run. Calls with answers are claimed then, too, with those answers.

    Args:
        setup: of the node.
        calls: of the batch, with their keys.
        known: what is known of calls from earlier runs, by key.
        refused: the places of calls that do not run.
        threads: how many sync bodies may run at once.
        at_once: how many bodies the run may have at once; `None` for any number.
    """
    started: Counter[str] = Counter()
    claims: list[str] = []
    for index, (key, call) in enumerate(calls):
        if index and index % PORTION == 0:
            yield
        tool = setup.tools.get(call["name"])
        if tool is None or key in known or index in refused or runs_again(setup.supervision.policy(tool.name)):
            continue
        rooms = setup.supervision.rooms(tool.name)
        if at_once is not None:
            rooms["run"] = at_once
        if setup.plan(tool).takes_thread:
            rooms["threads"] = threads
        started.update(rooms.keys())
        if all(started[name] <= room for name, room in rooms.items()):
            claims.append(key)
    return claims


def is_claimed(policy: CallPolicy, *, only_said: bool) -> bool:
    """Return whether a call is claimed when its body starts.

    Args:
        policy: of the call.
        only_said: whether its policy has to say what becomes of it then.
    """
    return not runs_again(policy) and not (only_said and policy.on_unknown is None)
