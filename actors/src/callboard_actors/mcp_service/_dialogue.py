"""Dialogue between a call and the client's user, and its state between two requests of a client."""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt
from mcp import types
from pydantic import ValidationError

from callboard_actors.mcp_service._offers import AgentCall, NodeCall
from callboard_actors.mcp_service._questions import (
    DeclinedError,
    InvalidAnswerError,
    NeedsAnswers,
    Tell,
    form_questions,
)
from callboard_actors.mcp_service._results import ERRORS_OF_CALLS, error_result, result_of_error

Outcome = types.CallToolResult | NeedsAnswers

MOST_COMPLAINTS: Final = 3
"""Maximum number of invalid answers for which the user is asked again; then the call is given up."""

_DECLINED: Final = "The call was not run to its end: the user has not answered what it asks."


@dataclass(slots=True)
class Dialogue:
    """Dialogue between a call and the client's user, with the number of the user's invalid answers."""

    call: NodeCall | AgentCall
    complaints: int = 0

    async def go_on(
        self,
        tell: Tell,
        asking: NeedsAnswers | None = None,
        results: Mapping[str, types.ElicitResult] | None = None,
    ) -> Outcome:
        """Run the call, or continue it with the filled-in forms of its questions; return its result or its questions.

        A failed call has an error result.
        """
        try:
            return await self.call.go_on({} if asking is None else asking.answers(results or {}), tell)
        except ERRORS_OF_CALLS as error:
            if isinstance(error, DeclinedError):
                return error_result(_DECLINED)
            if asking is None or not isinstance(error, (InvalidAnswerError, ValidationError)):
                return result_of_error(error)
            # The answer was invalid, so the question stays open.
            self.complaints += 1
            if self.complaints > MOST_COMPLAINTS:
                return error_result(f"{_DECLINED} {error}")
            return NeedsAnswers(asking.questions, str(error))


# A dialogue as the `requestState` of the protocol: the client keeps it between two requests, and no server does.

_SERIALIZER: Final = JsonPlusSerializer(pickle_fallback=False)


class DialogueState(NamedTuple):
    """State of a dialogue between two requests of a client.

    `nonce` is a random name of this state, by which a repeated answer is recognised.
    """

    nonce: str
    call: Mapping[str, Any]
    questions: Sequence[Interrupt]
    complaint: str
    complaints: int

    @property
    def asking(self) -> NeedsAnswers:
        """Questions that the client has been asked."""
        return NeedsAnswers(form_questions(self.questions), self.complaint)


def dump_dialogue(dialogue: Dialogue, asking: NeedsAnswers) -> str:
    """Return a dialogue that waits for answers as text. It may be confidential, so the SDK encrypts it."""
    questions = [question.question for question in asking.questions]
    fields = (secrets.token_urlsafe(16), dialogue.call.state, questions, asking.complaint, dialogue.complaints)
    return base64.b64encode(_SERIALIZER.dumps_typed(fields)[1]).decode()


def load_dialogue(text: str) -> DialogueState:
    """Return the state in a text of `dump_dialogue`. The SDK has checked that no client has made or changed it."""
    return DialogueState(*_SERIALIZER.loads_typed(("msgpack", base64.b64decode(text))))
