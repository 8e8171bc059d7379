"""Asks from other members of a fleet, answered by the actors of this process."""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from callboard.fleets import FleetAsk, FleetHost, KeyMovedError, arrived
from callboard_actors._engine import _pickled_replies
from callboard_actors._engine._frames import Kind
from callboard_actors._engine._pickles import loads
from callboard_actors._server.fleet._crossing import Answer
from callboard_actors._server.fleet._letters import Asked, Letter, What
from callboard_actors._server.fleet._post import Post

_WHAT: dict[Kind, What] = {Kind.VALUE: "value", Kind.RAISED: "raised", Kind.LOST: "lost"}


class Answers:
    """Server side of remote asks: runs them in the actors of this process. Belongs to the fleet client's thread.

    Args:
        host: the actors of this process.
        post: router of this member.
    """

    def __init__(self, host: FleetHost, post: Post) -> None:
        self._host = host
        self._post = post
        # By id of each ask that runs here. The entry is removed when the reply is made.
        self._cancels: dict[str, Callable[[], object]] = {}
        # Number of the last ask, by sender. A message with this or a lower number is a replay, and is ignored.
        self._heard: dict[str, int] = {}

    def hear(self, letter: Letter) -> None:
        """Handle an ask, or the cancellation of one."""
        if letter.what == "cancel":
            if (cancel := self._cancels.get(letter.ask)) is not None:
                cancel()
            return
        asked: Asked = letter.said
        if asked.number <= self._heard.get(letter.sender, 0):  # the sender counts up, and the server delivers in order
            return
        self._heard[letter.sender] = asked.number
        key = loads(asked.key)
        held = self._post.held(key)
        cancel = None
        # The ask names the token that its sender knows: an ask for an earlier ownership of the key must not run.
        if held is not None and held.token == asked.token:
            cancel = self._host.serve(key, partial(self._answer, letter, asked, key))
            if cancel is None:
                # `serve` found the event loop of the actors closed without `leave()`: this member can answer nothing.
                self._post.desk.close()
        if cancel is None:
            self._post.desk.start(partial(self._send_back, letter, asked))
        else:
            # `_reply` runs in this thread, too, so it cannot run before the entry is here.
            self._cancels[letter.ask] = cancel

    async def _send_back(self, letter: Letter, asked: Asked) -> None:
        """Send an ask back: its sender must look for the owner again, because the ask's token is not valid here."""
        # "moved" is sent before the key is freed. An asker that finds the key without this owner treats an ask that may
        # have begun as unknown. An asker that repeats too early still finds this owner, and gets "moved" again.
        self._post.tell(letter.sender, "moved", letter.ask, ends=True)
        held = self._post.held(loads(asked.key))
        if held is None or held.token != asked.token:
            # The server may still name this process as the owner under that token.
            await self._post.free(asked.gate, asked.token)

    async def _answer(self, letter: Letter, asked: Asked, key: Hashable) -> None:
        """Run an ask in the event loop of the actors, and post its reply to the client's thread."""
        # The outcome if `_done` is cancelled: every ask gets exactly one reply, in the `finally` below.
        what, said = "cancelled", b""
        try:
            what, said = await self._done(letter, asked, key)
        finally:
            self._do(partial(self._reply, letter, asked, what, said))

    async def _done(self, letter: Letter, asked: Asked, key: Hashable) -> tuple[str, bytes]:
        tell = partial(self._tell, letter, "told")
        try:
            # Within the `try`: an argument that cannot be unpickled here becomes the reply to this ask.
            args, kwargs = loads(asked.arguments)
            ask = FleetAsk(
                key=key,
                handler=asked.handler,
                args=args,
                kwargs=kwargs,
                title=asked.title,
                call_id=None,
                grace=asked.grace,
            )
            with arrived(asked.carried, tell, logs=False):
                value = await self._host.answer(ask, partial(self._begin, letter, asked))
        except KeyMovedError:  # the handler did not begin, so the asker may send the ask to the next owner
            return "moved", b""
        except Exception as error:
            kind, said = _pickled_replies.raised(error, "process")
        else:
            kind, said = _pickled_replies.returned(value)
        return _WHAT[kind], said

    def _begin(self, letter: Letter, asked: Asked) -> Awaitable[bool]:
        """Ask the server for permission to begin; the server gives it to one process, or to none after a recall."""
        answer = Answer[bool]()
        self._do(lambda: self._post.desk.start(partial(self._ask_to_begin, letter, asked, answer)))
        return answer.wait()

    async def _ask_to_begin(self, letter: Letter, asked: Asked, answer: Answer[bool]) -> None:
        try:
            begin = partial(_begin, asked.gate, asked.token, letter.ask)
            # Noted before the server is asked: from then on it may count the ask as begun, and `free` must wait for it.
            if letter.ask in self._cancels:  # otherwise it was cancelled meanwhile, and has its reply
                self._post.note_begun(asked.gate, asked.token, letter.ask)
            # Repeated until answered; the server answers a repeated "begin" like the first one.
            if may_begin := await self._post.desk.on_line(begin):
                self._post.tell(letter.sender, "begun", letter.ask)
            answer.give(may_begin)
        except BaseException as error:
            # Also when this task is cancelled, as the client ends: the actor's task must not wait for ever.
            answer.fail(error if isinstance(error, Exception) else KeyMovedError("this process has left the fleet"))
            raise

    def _tell(self, letter: Letter, what: What, said: object = None) -> None:
        self._do(lambda: self._post.tell(letter.sender, what, letter.ask, said))

    def _reply(self, letter: Letter, asked: Asked, what: Any, said: bytes) -> None:
        # Runs in the client's thread, after every "told" that the handler posted.
        self._cancels.pop(letter.ask, None)
        if what == "moved":
            self._post.desk.start(partial(self._send_back, letter, asked))
        else:
            self._post.tell(letter.sender, what, letter.ask, said, ends=True)
        # Last: a key is freed only after the reply to each begun ask is in the outbox.
        self._post.note_answered(asked.gate, asked.token, letter.ask)

    def _do(self, what: Callable[[], object]) -> None:
        self._post.desk.do(what)

    @property
    def is_quiet(self) -> bool:
        """Return whether every ask that arrived here has its reply."""
        return not self._cancels


async def _begin(gate: str, token: int, ask: str, line: Any) -> bool:
    return bool(await line.begin(gate, token, ask))
