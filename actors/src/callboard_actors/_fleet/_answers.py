"""What other members ask of the actors that live here."""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from callboard.fleets import FleetAsk, FleetHost, KeyMovedError, arrived
from callboard_actors._fleet._crossing import Answer
from callboard_actors._fleet._letters import Asked, Letter, What
from callboard_actors._fleet._post import Post
from callboard_actors.process import _pickled_replies
from callboard_actors.process._frames import Kind
from callboard_actors.process._pickles import loads

_WHAT: dict[Kind, What] = {Kind.VALUE: "value", Kind.RAISED: "raised", Kind.LOST: "lost"}


class Answers:
    """Has the actors that live here do what others ask. Belongs to the thread of a desk.

    Args:
        host: has the actors.
        post: of this member.
    """

    def __init__(self, host: FleetHost, post: Post) -> None:
        self._host = host
        self._post = post
        self._cancels: dict[str, Callable[[], object]] = {}
        self._heard: dict[str, int] = {}
        """The number of the last ask of each member: of one that is put again by a stranger, nothing is done."""

    def hear(self, letter: Letter) -> None:
        """Take in an ask, or that nobody waits for one any more."""
        if letter.what == "cancel":
            if (cancel := self._cancels.get(letter.ask)) is not None:
                cancel()
            return
        asked: Asked = letter.said
        if asked.number <= self._heard.get(letter.sender, 0):
            return
        self._heard[letter.sender] = asked.number
        key = loads(asked.key)
        held = self._post.held(key)
        cancel = None
        if held is not None and held.token == asked.token:
            cancel = self._host.serve(key, partial(self._answer, letter, asked, key))
            if cancel is None:
                self._post.desk.close()  # nobody has left the fleet, and the event loop of the actors is over
        if cancel is None:
            self._post.desk.start(partial(self._send_back, letter, asked))
        else:
            self._cancels[letter.ask] = cancel

    async def _send_back(self, letter: Letter, asked: Asked) -> None:
        """Have it asked again, of somebody else: nobody owns the key here, whatever the server knows."""
        # Told before the key is free: an asker that finds the key without this owner counts an ask of which the server
        # knows that it may have begun as unknown. One that asks again too early finds this owner, and is told again.
        self._post.tell(letter.sender, "moved", letter.ask, ends=True)
        held = self._post.held(loads(asked.key))
        if held is None or held.token != asked.token:
            await self._post.free(asked.gate, asked.token)

    async def _answer(self, letter: Letter, asked: Asked, key: Hashable) -> None:
        """Do it, in the event loop of the actors."""
        what, said = "cancelled", b""
        try:
            what, said = await self._done(letter, asked, key)
        finally:
            self._do(partial(self._reply, letter, asked, what, said))

    async def _done(self, letter: Letter, asked: Asked, key: Hashable) -> tuple[str, bytes]:
        tell = partial(self._tell, letter, "told")
        try:
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
        except KeyMovedError:
            return "moved", b""
        except Exception as error:
            kind, said = _pickled_replies.raised(error, "process")
        else:
            kind, said = _pickled_replies.returned(value)
        return _WHAT[kind], said

    def _begin(self, letter: Letter, asked: Asked) -> Awaitable[bool]:
        """Ask for leave to begin: it is given once, to this process or to nobody."""
        answer = Answer[bool]()
        self._do(lambda: self._post.desk.start(partial(self._ask_to_begin, letter, asked, answer)))
        return answer.wait()

    async def _ask_to_begin(self, letter: Letter, asked: Asked, answer: Answer[bool]) -> None:
        try:
            begin = partial(_begin, asked.gate, asked.token, letter.ask)
            # Noted before the server is asked: from then on the server may count the ask as begun.
            if letter.ask in self._cancels:  # else it was cancelled meanwhile, and has its reply
                self._post.note_begun(asked.gate, asked.token, letter.ask)
            if may_begin := await self._post.desk.on_line(begin):
                self._post.tell(letter.sender, "begun", letter.ask)
            answer.give(may_begin)
        except BaseException as error:
            answer.fail(error if isinstance(error, Exception) else KeyMovedError("this process has left the fleet"))
            raise

    def _tell(self, letter: Letter, what: What, said: object = None) -> None:
        self._do(lambda: self._post.tell(letter.sender, what, letter.ask, said))

    def _reply(self, letter: Letter, asked: Asked, what: Any, said: bytes) -> None:
        self._cancels.pop(letter.ask, None)
        if what == "moved":
            self._post.desk.start(partial(self._send_back, letter, asked))
        else:
            self._post.tell(letter.sender, what, letter.ask, said, ends=True)
        self._post.note_answered(asked.gate, asked.token, letter.ask)

    def _do(self, what: Callable[[], object]) -> None:
        self._post.desk.do(what)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is asked here that has no reply yet."""
        return not self._cancels


async def _begin(gate: str, token: int, ask: str, line: Any) -> bool:
    return bool(await line.begin(gate, token, ask))
