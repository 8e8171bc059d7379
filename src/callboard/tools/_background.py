"""Background calls: a call goes on after its batch, and its result becomes a message of its own.

The model reads at once that the call goes on. A second tool message for one call would be an invalid conversation for
providers, so the result comes as a message of the user's role that is marked as the output of a tool.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt

from callboard._calls._batch import Batch
from callboard._calls._call import BatchContext, CallOptions
from callboard._calls._draining import Operation
from callboard._langchain._errors import error_message, is_control_flow
from callboard._langchain._invoke import invoke
from callboard._langchain._outputs import Output, facts_of
from callboard._langchain._unknown_outcomes import UNKNOWN
from callboard._loops._shared_event import SharedEvent
from callboard._loops._side_tasks import end_task
from callboard.exceptions import CallCancelledError, CallError
from callboard.tools._batch_call import BatchCall, BatchResources, Body
from callboard.tools._error_policy import default_text
from callboard.tools._results import messages_in

_QUESTION_REFUSED = (
    "Error: this background call asked a person, which only a call in the foreground can do. Whether it had any effect "
    "before that is unknown."
)

_COMMAND_REFUSED = "Error: this background call ended with a command, which only a call in the foreground can give."


class BackgroundCall(BatchCall):
    """Call that may go on after its batch; it runs in a task of its own, as a batch of its own."""

    __slots__ = ("_failure", "_is_storing", "_refusal", "admitted", "begun", "done", "handle")

    def __init__(
        self, batch: BatchResources, key: str, index: int, terms: CallOptions, batch_context: BatchContext
    ) -> None:
        super().__init__(batch, key, index, terms, batch_context)
        self.admitted, self.begun, self.done = SharedEvent(), SharedEvent(), SharedEvent()
        """Set when no drain has refused the call, when its body has begun, and when its task has ended.

        Each is set at the end at the latest.
        """
        self.handle: str | None = None
        """Name of the call in the background; `None` as long as its batch waits for it."""
        self._is_storing = False
        self._failure: BaseException | None = None
        self._refusal: Exception | None = None

    def use_config(self, config: RunnableConfig) -> None:
        """Run the call under a config, in the place of the config of its batch."""
        self._config = config

    @property
    def can_be_handed_over(self) -> bool:
        """`True` if the call has not ended, also not in this moment."""
        return not self._is_storing and not self.done.is_set

    def hand_over_to_background(self) -> ToolMessage:
        """Let the call go on in the background; return the message that answers it meanwhile."""
        messages = messages_in(self.batch.state, self.batch.setup.messages_key)
        assert self.batch.reports.background is not None
        self.handle = self.batch.reports.background.new_handle(self.call["id"] or "", messages)
        self.note("backgrounded", {"handle": self.handle})
        return ToolMessage(
            f"The call goes on in the background, as {self.handle}. Its result will come in a message of its own. Do "
            "not repeat the call, and do not wait for it: go on with other work, or answer.",
            name=self.name,
            tool_call_id=self.call["id"],
            additional_kwargs={"callboard": {"background": self.handle}},
        )

    async def perform(self, thread_id: str) -> None:
        """Run the call as a batch, and keep its failure for `take_output`."""
        setup = self.batch.setup
        try:
            with Operation(setup.in_flight, self.loop, grace=None, thread_id=thread_id) as operation:
                live = setup.supervision.batches
                operation.batch = batch = Batch([self], on_error="finish", is_signal=is_control_flow, live=live)
                await batch.run()
        except BaseException as error:
            # Kept for the code that waits for the call: an error must not leave the task.
            is_cancelled = isinstance(error, self.loop.cancelled_class)
            if not (is_cancelled and self.ended):
                self._failure = CallCancelledError(self.name, self.id) if is_cancelled else error
            if is_cancelled:
                raise
        finally:
            self.begun.set()
            self.done.set()

    def refuse(self, error: Exception) -> None:
        """End a call that does not begin, because its agent is being drained."""
        self._failure = self._refusal = error
        self.record_task_end()

    async def wait_until_admitted(self) -> None:
        """Wait until the call is admitted; raise the error of a call that a drain has refused."""
        await self.admitted.wait()
        if self._refusal is not None:
            raise self._refusal

    def take_output(self) -> Output:
        """Return the output of the call, after its end; raise its error."""
        error, self._failure = self._failure or self.error, None
        if error is not None:
            raise error
        assert self.result is not None
        return self.result

    @property
    def fatal_error(self) -> BaseException | None:
        """Error of the ended call that is for the program and not for its model, such as KeyboardInterrupt."""
        error = self._failure or self.error
        return None if isinstance(error, Exception) else error

    def notification(self) -> HumanMessage:
        """Return the message for the model about the end of a call in the background."""
        assert self.handle is not None
        try:
            output = self.take_output()
        except GraphInterrupt:
            return self.notification_about(_QUESTION_REFUSED)
        except Exception as error:
            text = f"Error: {error}" if isinstance(error, CallError) else default_text(error)
            return self.notification_about(text, error)
        except BaseException as error:
            return self.notification_about(f"Error: {type(error).__name__}")
        messages = output if isinstance(output, list) else [output]
        if len(messages) == 1 and isinstance(messages[0], ToolMessage):
            return notification(self.handle, messages[0].model_copy(update={"name": self.name}))
        return self.notification_about(_COMMAND_REFUSED)

    def notification_about(self, text: str, error: Exception | None = None) -> HumanMessage:
        """Return the message for the model with an error text in the place of a result."""
        assert self.handle is not None
        return notification(self.handle, error_message(text, self.call, error))

    async def _store_output(self, output: Output) -> None:
        if self.handle is None:
            self._is_storing = True
            await super()._store_output(output)

    async def _store_question(self, interrupt: GraphInterrupt) -> None:
        if self.handle is None:
            self._is_storing = True
            await super()._store_question(interrupt)

    def _body(self, terms: CallOptions | None) -> Body:
        return partial(self._begin_body, super()._body(terms))

    async def _begin_body(self, body: Body, *args: Any) -> object:
        # An attempt in the background needs no claim: the call is answered, and does not run again.
        running = (body if self.handle is None else invoke)(*args)
        self.begun.set()
        return await running


def without_run_deadline(batch_context: BatchContext) -> BatchContext:
    """Return a batch context without the deadline of the run, which a background call may outlive."""
    return batch_context._replace(now=batch_context.loop.now(), until=math.inf)


class ForegroundCall(BatchCall):
    """Part of a background call that its batch waits for: until the call ends, or goes on without the batch.

    Observers see the background call alone.
    """

    __slots__ = ("_background_call",)

    def __init__(
        self, batch: BatchResources, key: str, index: int, terms: CallOptions, batch_context: BatchContext
    ) -> None:
        unobserved_context = batch_context._replace(observers=batch_context.observers._replace(calls=()))
        super().__init__(batch, key, index, terms, unobserved_context)
        self._background_call = BackgroundCall(batch, key, index, terms, without_run_deadline(batch_context))

    @property
    def performer(self) -> BackgroundCall:
        return self._background_call

    async def run(self, config: RunnableConfig | None = None) -> Output:
        wrap_call = self.batch.reports.wrap_call
        return await (
            self._run_in_foreground(config)
            if wrap_call is None
            else wrap_call(self.batch.ledger, self.index, self._run_in_foreground)
        )

    async def _run_in_foreground(self, config: RunnableConfig | None = None) -> Output:
        """Start the call, wait until it ends or its time in the foreground is over, and return its output."""
        call, loop = self._background_call, self.loop
        assert self.batch.reports.background is not None
        if config is not None:
            call.use_config(config)
        task = self.batch.reports.background.start(call)
        try:
            await call.begun.wait()
            if not call.done.is_set:
                seconds = 0.0 if self.policy.background is True else self.policy.background or 0.0
                with loop.scope(loop.now() + seconds, 0.0):
                    await call.done.wait()
            if call.can_be_handed_over:
                message = call.hand_over_to_background()
                await self._store_output(message)
                return message
            await call.done.wait()
        except BaseException:
            await end_task(task)
            raise
        return call.take_output()


# Messages about background calls in a conversation.


def notification(handle: str, message: ToolMessage) -> HumanMessage:
    """Return the message for the model with the result of a background call."""
    facts = message.additional_kwargs.get("callboard")  # how the call has ended, as in the foreground
    header = f"[Result of the background call {handle} of the tool {message.name!r}]\n"
    content: Any = message.content
    return HumanMessage(
        header + content if isinstance(content, str) else [{"type": "text", "text": header}, *content],
        id=handle,
        additional_kwargs={
            **message.additional_kwargs,
            "lc_source": "background_call",
            "callboard": {
                **(facts if isinstance(facts, dict) else {}),
                "background": handle,
                "call_id": message.tool_call_id,
                "status": message.status,
                "header": len(header),
            },
        },
        # As of a tool message: the model does not read it.
        artifact=message.artifact,
    )


def is_notification(message: object) -> bool:
    """Return whether a message is the result of a background call, and not the word of a person."""
    return isinstance(message, HumanMessage) and handle_in(message) is not None


def handle_in(message: BaseMessage) -> str | None:
    """Return the handle of the background call that a message is about, or `None`."""
    handle = facts_of(message).get("background")
    return handle if isinstance(handle, str) else None


def call_id_of_result(message: BaseMessage) -> str | None:
    """Return the id of the background call whose result a message is; `None` for the word of a person."""
    call_id = facts_of(message).get("call_id")
    return call_id if is_notification(message) and isinstance(call_id, str) else None


def open_handles(messages: Sequence[BaseMessage]) -> dict[str, ToolMessage]:
    """Return the background calls without a result in a conversation: their tool messages, by handle."""
    handles: dict[str, ToolMessage] = {}
    for message in messages:
        if isinstance(message, ToolMessage) and (handle := handle_in(message)) is not None:
            handles[handle] = message
        elif isinstance(message, HumanMessage) and message.id is not None:
            handles.pop(message.id, None)
    return handles


def lost_notification(handle: str, message: ToolMessage) -> HumanMessage:
    """Return the message for the model about a background call whose process ended before the call did."""
    call = ToolCall(name=message.name or "", args={}, id=message.tool_call_id)
    return notification(handle, error_message(UNKNOWN, call))
