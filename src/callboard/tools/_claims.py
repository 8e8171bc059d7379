"""Selection of the calls to claim together with the storage of the model's reply, before any body starts."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from langchain_core.messages import ToolCall

from callboard._records._policies import CallPolicy
from callboard.tools._call_record import CallRecord
from callboard.tools._cooperative import PORTION, Steps
from callboard.tools._setup import Setup
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
    """Return the keys of new calls that can start at once and must not run twice.

    A call that must wait for a permit is claimed when it gets one. If the process is killed before that, the call has
    not started, and may run. Calls with answers are claimed at that moment too, together with their answers.

    `threads` and `at_once` are the numbers of sync bodies and of all bodies that may run at once.
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
        # Keys of limits are ignored: a call with a free key may seem to have to wait. It is claimed by itself, later.
        started.update(rooms.keys())
        if all(started[name] <= room for name, room in rooms.items()):
            claims.append(key)
    return claims


def is_claimed(policy: CallPolicy, *, only_said: bool) -> bool:
    """Return whether a call is claimed when its body starts; with `only_said`, only if its policy sets `on_unknown`."""
    return not runs_again(policy) and not (only_said and policy.on_unknown is None)
