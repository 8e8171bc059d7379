"""Inbox of a live run: messages that arrive while the run works, on their way to its thread of conversation."""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import uuid4

from anyio import Lock, sleep_forever
from anyio.lowlevel import checkpoint
from langchain_core.messages import HumanMessage, convert_to_messages

from callboard._loops._current import current_loop
from callboard._loops._protocol import Wakeup
from callboard._loops._shared_event import SharedEvent
from callboard.conversations._thread import Thread
from callboard.tools._background import is_notification
from callboard.tools._bounds import find_broken_text

_MOST = 500
"""Maximum number of letters in one write. A checkpointer in memory, which writes in the event loop, would hold the loop
for tens of milliseconds with more."""


def person_message(message: Any) -> HumanMessage:
    """Return a message of a person, with an id, in any form that LangChain accepts; such as a text.

    Raises TypeError for what is no message, and ValueError for another kind of message, and for text that no database
    stores.
    """
    try:
        (converted,) = convert_to_messages([message])
    except (NotImplementedError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise TypeError(
            f"say() takes a text or a message, such as HumanMessage('stop'), got {message!r:.80}"
        ) from error
    if not isinstance(converted, HumanMessage):
        raise ValueError(
            f"say() takes a message of a person, got one of type {converted.type!r}: start a run with other messages"
        )
    texts = [converted.content, converted.additional_kwargs, converted.id, converted.name]
    if (text := find_broken_text(texts)) is not None:
        raise ValueError(f"The message has {text[:80]!r}, with half of a surrogate pair, which no database can store")
    return converted if converted.id else converted.model_copy(update={"id": str(uuid4())})


class Letter:
    """Message on its way to a run. Its sender waits until the thread of the run has stored the message."""

    def __init__(self, message: HumanMessage) -> None:
        self.message = message
        self.is_stored = False
        self.error: Exception | None = None
        """Error for the sender; `None` for a letter that is stored, or that the run has returned unread."""
        self._settled = current_loop().wakeup()

    def settle(self, *, is_stored: bool, error: Exception | None = None) -> None:
        """Let the sender go on: the message is stored, or the run has returned it, or there is an error."""
        self.is_stored, self.error = is_stored, error
        self._settled.set()

    async def wait(self) -> bool:
        """Wait until the message is settled, return whether it is stored, and raise its error."""
        await self._settled.wait()
        if self.error is not None:
            raise self.error
        return self.is_stored


class Inbox:
    """Letters for one run, from any thread. The run, or a task beside it, stores them in its thread of conversation.

    A letter is stored at most once. The run closes the inbox where it ends, and returns the letters that came too late.
    """

    def __init__(self) -> None:
        self.is_open = False
        """`True` once the input of the run is stored."""
        self.on_open: Callable[[], object] | None = None
        """Function that `open` calls; set before the run begins."""
        self.opened = SharedEvent()
        """Set once the inbox is open, or the run has ended before that."""
        self._lock = threading.Lock()  # guards the fields below
        self._letters: list[Letter] = []
        """Letters that the thread of conversation has not recorded yet."""
        self._is_closed = False
        self._arrival: Wakeup | None = None
        """Latest wakeup of a task that waits for letters."""
        self.change = SharedEvent()
        """Set, and replaced by a new event, when a letter was stored, or a background call has ended."""
        self._unconfirmed: list[Letter] = []
        """Letters that are recorded, and whose write has failed or was cancelled: the end of the run repeats it."""
        self._storing: Lock | None = None
        """Lock of the run's event loop: letters are recorded one after the other, in the order of their arrival."""

    def open(self) -> None:
        """Record that the input of the run is stored."""
        if self.on_open is not None:
            self.on_open()
        self.is_open = True
        self.opened.set()

    def put(self, letter: Letter) -> bool:
        """Add a letter; return `False` if the run has ended or ends, and reads no more letters."""
        with self._lock:
            if self._is_closed:
                return False
            self._letters.append(letter)
            if self._arrival is not None:
                self._arrival.set()
            return True

    def close_if_empty(self) -> bool:
        """Close the inbox if no letter waits in it; return whether it is closed."""
        with self._lock:
            self._is_closed = self._is_closed or not self._letters
            return self._is_closed

    def close(self, error: Exception | None = None) -> None:
        """Close the inbox, and return the letters in it to their senders, with an error if there is one."""
        with self._lock:
            self._is_closed = True
            letters, self._letters = self._letters, []
        for letter in letters:
            letter.settle(is_stored=False, error=error)

    def expect_letter(self) -> Wakeup:
        """Return a wakeup for the end of a background call, or for a letter, which may be there already."""
        with self._lock:
            arrival = self._arrival = current_loop().wakeup()
            if self._letters:
                arrival.set()
            return arrival

    async def store_letters(self, thread: Thread, known_ids: Collection[str | None] = ()) -> None:
        """Store all letters that are in the inbox in the thread, for its next turn; all that wait share a write.

        A message whose id is in `known_ids` is stored already.
        """
        if not self._letters:
            return
        if self._storing is None:
            self._storing = Lock()
        async with self._storing:
            while letters := self._first_letters():
                await self._store(letters, thread, known_ids)
                await checkpoint()
        self.report_change()

    def _first_letters(self) -> list[Letter]:
        with self._lock:
            return self._letters[:_MOST]

    def report_change(self) -> None:
        """Let a run that waits for a letter look again."""
        with self._lock:
            change, self.change = self.change, SharedEvent()
        change.set()

    def report_background_end(self) -> None:
        """Let a run that waits for background calls look whether there are any left."""
        self.report_change()
        with self._lock:
            if self._arrival is not None:
                self._arrival.set()

    async def _store(self, letters: Sequence[Letter], thread: Thread, known_ids: Collection[str | None]) -> None:
        storable_letters: list[Letter] = []
        try:
            for letter in letters:
                if letter.message.id in known_ids:
                    letter.settle(is_stored=True)
                    continue
                try:
                    thread.check_storable("a message", letter.message)
                except Exception as error:
                    letter.settle(is_stored=False, error=error)
                else:
                    storable_letters.append(letter)
            await thread.receive_messages([letter.message for letter in storable_letters])
        except BaseException as error:
            reason = error if isinstance(error, Exception) else None
            recorded_messages = {id(message) for message in thread.unread}
            for letter in storable_letters:
                if id(letter.message) in recorded_messages:
                    self._unconfirmed.append(letter)
                else:
                    letter.settle(is_stored=False, error=reason)
            if reason is None:
                raise
        else:
            for letter in storable_letters:
                letter.settle(is_stored=True)
        finally:
            # Removed only now, so that the run does not end between the removal and the entries in the thread.
            # A closed inbox has no letters any more.
            with self._lock:
                if self._letters[:1] == letters[:1]:
                    del self._letters[: len(letters)]

    def has_unconfirmed_results(self) -> bool:
        """Return whether results of background calls are recorded, and their write has failed."""
        return any(is_notification(letter.message) for letter in self._unconfirmed)

    def leave_results_to_end_of_run(self) -> None:
        """Settle the unconfirmed results of background calls: the end of the run stores them, or raises an error."""
        for letter in [letter for letter in self._unconfirmed if is_notification(letter.message)]:
            self._unconfirmed.remove(letter)
            letter.settle(is_stored=True)

    def settle(self, error: Exception | None) -> None:
        """Settle the recorded letters after the run's end; `error` is `None` if the thread has stored its end."""
        letters, self._unconfirmed = self._unconfirmed, []
        for letter in letters:
            letter.settle(is_stored=error is None, error=error)


async def attend(thread: Thread, inbox: Inbox | None) -> None:
    """Renew the lease on a run's thread, and store the letters in its inbox as they arrive, until cancelled."""
    while True:
        with current_loop().scope(thread.renewal_time, 0.0):
            await (sleep_forever() if inbox is None else inbox.expect_letter().wait())
        await thread.renew_hold()
        if inbox is not None:
            await inbox.store_letters(thread)
