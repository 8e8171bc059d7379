"""Promises that hold for every batch; each function yields the violations that it finds."""

from collections.abc import Iterator

from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand

from callboard import CallError, Statistics
from tests.middleware._functions import Exit, Failure

from ._batches import PASSING, WRONG, Bound, Run, Seen, messages_in
from ._bodies import Body, ExitOfTool, result_of

JUST = 1e-6
TARDY = 2.0
"""Seconds by which a busy machine may be late, on a real clock."""
AGAIN = 0.06
"""Seconds until a clean-up that outlives its grace is cancelled again on asyncio, once for each enclosing clean-up."""
GROUPS = {"call_at_once", "hedge"}
"""Middleware that runs several tasks at once."""


def no_task_is_left(record: Seen) -> Iterator[str]:
    """Promise 1: no task is left when the node returns, and at the end."""
    yield from (f"{run.tasks} when {run.ids} ended" for run in record.runs if run.tasks > 0)
    if record.tasks:
        yield f"{record.tasks} at the end"


def no_body_is_left(record: Seen) -> Iterator[str]:
    """Promise 1: every body has ended when its batch has, except bodies in threads."""
    for run in record.runs:
        for body in _bodies(record, run):
            if not body.thread and (body.ended is None or body.ended > run.ended + JUST):
                yield f"{body} outlived the run that ended at {run.ended}"


def no_body_begins_after_the_end(record: Seen) -> Iterator[str]:
    """Promise 1: no body begins after its batch has ended, or after its caller was cancelled."""
    yield from (f"{body}" for body in record.stage.bodies if body.late)
    for run in record.runs if not record.plan.threads else []:
        gone = float("inf") if run.end is None else run.began + run.end + JUST
        yield from (f"{body} began after {gone}" for body in _bodies(record, run) if body.began > gone)


def statistics_are_back_to_zero(record: Seen) -> Iterator[str]:
    """At the end the statistics show no running and no waiting call."""
    if record.statistics != Statistics(running=0, waiting=0, abandoned_threads=0):
        yield f"{record.statistics}"


def every_call_has_one_message_in_call_order(record: Seen) -> Iterator[str]:
    """Promise 2: every call has one message, and the messages are in the order of the calls."""
    for run in record.runs:
        if run.error is None and not run.gave_up:
            got = [message.tool_call_id for message in messages_in(run.result)]
            if got != run.ids:
                yield f"{got} for {run.ids}"


def a_result_is_what_the_body_returned(record: Seen) -> Iterator[str]:
    """Promise 2: a finished result is never lost, whatever happened to other calls."""
    if not set(record.plan.middleware) <= set(PASSING):
        return
    for run in record.runs:
        for message in messages_in(run.result):
            ended = message.additional_kwargs.get("callboard", {}).get("ended")
            own_bodies = [body for body in record.stage.bodies if body.call == message.tool_call_id]
            if message.status == "success" and message.content != result_of(str(message.tool_call_id)):
                yield f"{message.tool_call_id} returned {message.content!r}"
            if message.status == "success" and not any(body.ending == "returned" for body in own_bodies):
                yield f"{message.tool_call_id} has a result, and no body returned one"
            if ended is None and message.status == "error" and own_bodies and own_bodies[-1].ending == "returned":
                yield f"{message.tool_call_id} returned, and its message is {message.content!r}"


def errors_are_bare_and_the_original(record: Seen) -> Iterator[str]:
    """Promise 3: an error is the same object that a tool raised; only several errors come in a group."""
    for run in record.runs:
        if run.error is not None and not run.questions and (wrong := _foreign(record, run.error)):
            yield f"{wrong} out of {run.ids}"


def _foreign(record: Seen, error: BaseException) -> str | None:
    middleware = set(record.plan.middleware)
    if any(error is candidate or _same_command(error, candidate) for candidate in record.stage.raised):
        return None
    if isinstance(error, BaseExceptionGroup):
        several = record.plan.on_error == "finish" and len(error.exceptions) > 1
        if not several and not middleware & GROUPS:
            return f"a group: {error!r}"
        # An exit ends the call in any case. Another attempt of the middleware may have asked before it was cancelled.
        has_exit = not isinstance(error, ExceptionGroup)
        inner = [
            candidate for candidate in error.exceptions if not (has_exit and isinstance(candidate, GraphInterrupt))
        ]
        return next((wrong for candidate in inner if (wrong := _foreign(record, candidate))), None)
    if isinstance(error, (TypeError, ValueError)) and middleware & WRONG:
        return None
    if (isinstance(error, IndexError) or type(error).__name__ == "Cancelled") and middleware & GROUPS:
        return None  # no answer: the middleware's own tasks cancelled themselves, or trio reports a cancellation
    if (
        isinstance(error, TypeError)
        and middleware & {"lose_patience", "call_behind_shield"}
        and "returned None" in str(error)
    ):
        return None  # the scope of the middleware had ended
    if isinstance(error, CallError):
        return None if record.plan.handling in ("none", "failures") or middleware & GROUPS else f"unhandled {error!r}"
    own_steps = {"fail_before", "fail_after", "translate", "sync_fail", "fail to rework", "leave"}
    return None if isinstance(error, (Failure, Exit)) and middleware & own_steps else f"{error!r}"


def _same_command(error: BaseException, raised: BaseException) -> bool:
    """Return whether two commands are equal: commands of several calls are combined, and a single one is copied."""
    return isinstance(error, ParentCommand) and isinstance(raised, ParentCommand) and repr(error) == repr(raised)


def what_is_handled_does_not_come_out(record: Seen) -> Iterator[str]:
    """Errors that `handle_tool_errors` accepts become messages."""
    if record.plan.handling not in ("all", "text"):
        return
    for run in record.runs:
        if isinstance(run.error, Exception) and not isinstance(run.error, GraphBubbleUp):
            yield f"{run.error!r} out of {run.ids}"


def control_flow_passes(record: Seen) -> Iterator[str]:
    """Promise 4: questions, commands for the graph and exits never become messages of their call."""
    if not set(record.plan.middleware) <= set(PASSING):
        return
    for run in record.runs:
        for message in messages_in(run.result):
            last = [body for body in _bodies(record, run) if body.call == message.tool_call_id][-1:]
            ended = message.additional_kwargs.get("callboard", {}).get("ended")
            if ended is None and last and last[0].ending in ("ParentCommand", "GraphInterrupt", "CallsInterrupted"):
                yield f"{last[0]} ended with the message {message.content!r}"


def all_questions_surface_together(record: Seen) -> Iterator[str]:
    """Promise 5: each question appears once, with an id of its own."""
    for run in record.runs:
        values = [question.value for question in run.questions if isinstance(question.value, str)]
        ids = [question.id for question in run.questions]
        if len(set(ids)) < len(ids):
            yield f"{ids} are not different"
        calm = set(record.plan.middleware) <= set(PASSING) and not _is_timed(record)
        if run.questions and calm and (missing := run.open - set(values)):
            yield f"{sorted(missing)} of {run.ids} are not among {values}"


def answers_reach_their_questions(record: Seen) -> Iterator[str]:
    """Promise 5: each answer reaches its question, and the question is closed."""
    yield from record.stage.misled
    if record.endless:
        yield f"the calls go on asking: {[question.value for question in record.runs[-1].questions]}"


def what_finished_does_not_run_again(record: Seen) -> Iterator[str]:
    """Promises 2 and 5: a result in the ledger is kept, and a body that returned is in the ledger."""
    keeps_results = set(record.plan.middleware) <= set(PASSING) - {"wait_after"}
    soon = 1.0 if record.plan.threads else JUST  # a thread may return just after its caller has ended
    for index, run in enumerate(record.runs):
        calls_of_run = {body.call for body in _bodies(record, run)}
        if repeated := calls_of_run & run.settled:
            yield f"{sorted(repeated)} had settled"
        if not keeps_results or _is_timed(record):
            continue
        in_time = (body for body in record.stage.bodies[: run.bodies] if body.ending == "returned")
        previous = [earlier for earlier in record.runs[:index] if earlier.ids == run.ids]
        returned = {body.call for body in in_time if previous and (body.ended or 0) < previous[-1].ended - soon}
        if lost := returned & calls_of_run:
            yield f"{sorted(lost)} had returned"


def limits_hold(record: Seen) -> Iterator[str]:
    """Promise 7: the bodies that run at once respect the limits of node, tool and key; nested nodes have no limits."""
    bodies = [body for body in record.stage.bodies if "/" not in body.call]
    plan = record.plan
    bounds = [("the node", plan.bound, bodies)]
    bounds += [
        (policy.tool, policy.bound, [body for body in bodies if body.tool == policy.tool]) for policy in plan.policies
    ]
    for name, bound, limited_bodies in bounds:
        if bound is None:
            continue
        for key in {body.key for body in limited_bodies} if bound.by_key else {""}:
            bodies_of_key = [body for body in limited_bodies if body.key == key or not bound.by_key]
            yield from (f"{name}, {key or 'all'}: {detail}" for detail in _over(bound, bodies_of_key, plan.unit))
    if plan.max_concurrency is not None and not plan.neighbours:
        yield from (f"max_concurrency: {detail}" for detail in _over(Bound(plan.max_concurrency), bodies, plan.unit))


def _over(bound: Bound, bodies: list[Body], unit: float) -> Iterator[str]:
    moves = sorted(
        (moment, step)
        for execution in bodies
        for moment, step in ((execution.began, 1), (execution.ended or execution.began, -1))
    )
    running = 0
    for moment, step in moves if bound.concurrency is not None else []:
        running += step
        if running > (bound.concurrency or 0):
            yield f"{running} bodies at {moment}"
            return
    begun = sorted(body.began for body in bodies)
    if unit < 1:
        return  # a thread begins some time after its place was assigned
    for first, last in zip(begun, begun[bound.rate or len(begun) :], strict=False):
        if last - first < bound.per * unit * 0.99:
            yield f"more than {bound.rate} starts between {first} and {last}"
            return


def timeouts_hold(record: Seen) -> Iterator[str]:
    """Promise 6: a body ends within its timeout or budget plus one grace, and within one grace of its caller's end."""
    plan, late = record.plan, TARDY if record.plan.threads else JUST
    policies = {policy.tool: policy for policy in plan.policies}
    for body in record.stage.bodies:
        policy = policies.get(body.tool)
        times = [policy.timeout, policy.budget] if policy else []
        times += [plan.timeout] if policy is None or policy.timeout is None else []
        limits = [seconds for seconds in times if seconds is not None]
        grace = plan.grace if policy is None or policy.grace is None else policy.grace
        if body.thread or not limits or body.ended is None or "/" in body.call:
            continue
        if body.ended - body.began > (min(limits) + grace) * plan.unit + late + AGAIN * len(
            record.stage.steps[body.call]
        ):
            yield f"{body} had {min(limits)} s and a grace of {grace} s"


def callers_go_in_time(record: Seen) -> Iterator[str]:
    """Promise 1: a cancelled caller waits for one grace at most, whatever middleware is around its calls."""
    plan, late = record.plan, TARDY if record.plan.threads else JUST
    graces = [plan.grace, *(policy.grace for policy in plan.policies if policy.grace is not None)]
    deepest = sum(map(len, record.stage.steps.values()))
    for run in record.runs if set(plan.middleware) <= set(PASSING) else []:
        if run.end is not None and run.ended - run.began > (run.end + max(graces)) * plan.unit + late + AGAIN * deepest:
            yield f"{run.ended - run.began} s, for an end at {run.end} and a grace of {max(graces)}"


def a_cancelled_call_ends_alone(record: Seen) -> Iterator[str]:
    """Promise 2: a call that was cancelled alone begins no further body, and its message says so."""
    if any(run.gave_up for run in record.runs):
        return  # a caller that goes too takes the message with it
    for call_id, bodies in record.cancelled.items():
        yield from (f"{body} was cancelled" for body in record.stage.bodies[bodies:] if body.call == call_id)
    for run in record.runs if set(record.plan.middleware) <= set(PASSING) else []:
        for message in messages_in(run.result):
            ended = message.additional_kwargs.get("callboard", {}).get("ended")
            if message.tool_call_id in record.cancelled and ended != "cancelled":
                yield f"{message.tool_call_id} was cancelled, and its message is {message.content!r}"


def ledgers_round_trip(record: Seen) -> Iterator[str]:
    """Promise 10: a stored ledger is read back unchanged."""
    yield from (f"{ledger} came back as {back}" for ledger, back in record.ledgers if ledger != back)


def exits_are_heard(record: Seen) -> Iterator[str]:
    """Promise 3: an exit such as `SystemExit` ends the batch, however errors are handled."""
    if not set(record.plan.middleware) <= set(PASSING) or _is_timed(record):
        return
    for run in record.runs:
        exits = [body for body in _bodies(record, run) if body.ending == ExitOfTool.__name__ and "/" not in body.call]
        if exits and not run.gave_up and not _holds_exit(run.error):
            yield f"{exits[0]}, and the run ended with {run.error!r}"


def _holds_exit(error: BaseException | None) -> bool:
    return isinstance(error, ExitOfTool) or (
        isinstance(error, BaseExceptionGroup) and any(_holds_exit(inner) for inner in error.exceptions)
    )


def _bodies(record: Seen, run: Run) -> list[Body]:
    """Return the bodies of a run's calls, including calls of nested nodes."""
    index = record.runs.index(run)
    later_starts = [later.bodies for later in record.runs[index + 1 :] if later.ids == run.ids]
    candidates = record.stage.bodies[run.bodies : later_starts[0] if later_starts else None]
    return [body for body in candidates if body.call.partition("/")[0] in run.ids]


def _is_timed(record: Seen) -> bool:
    """Return whether a call may end although its body goes on or has returned."""
    plan = record.plan
    return plan.timeout is not None or any(
        policy.timeout is not None or policy.budget is not None for policy in plan.policies
    )


PROMISES = (
    no_task_is_left,
    no_body_is_left,
    no_body_begins_after_the_end,
    statistics_are_back_to_zero,
    every_call_has_one_message_in_call_order,
    a_result_is_what_the_body_returned,
    errors_are_bare_and_the_original,
    what_is_handled_does_not_come_out,
    control_flow_passes,
    exits_are_heard,
    all_questions_surface_together,
    answers_reach_their_questions,
    what_finished_does_not_run_again,
    limits_hold,
    timeouts_hold,
    callers_go_in_time,
    a_cancelled_call_ends_alone,
    ledgers_round_trip,
)
