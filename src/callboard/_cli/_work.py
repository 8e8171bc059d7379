"""Work of the demo's agent, and the models that request it: a scripted or a real one."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolMessage

from callboard._cli._demo_database import CITIES
from callboard._cli._shown_text import CommandError
from callboard.testing import ScriptedModel, calls

_ONE_HANGS_IN = 25
_ARCHIVE_PAGES = 12


class ModelError(CommandError):
    """Raised if a real model is not available, or fails."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Calls that the model of the demo is to request."""

    paths: Sequence[str]
    cities: Sequence[str]
    pages: Sequence[int]

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self.paths) + len(self.cities) + len(self.pages)

    def __str__(self) -> str:
        return f"fetch {len(self.paths)}, query {len(self.cities)}, archive {len(self.pages)}"


def make_work(fetches: int, *, seed: int) -> Work:
    """Return random calls, determined by the seed; one fetch in 25 requests the page that hangs."""
    rng = random.Random(seed)  # noqa: S311 (nothing here is secret)
    paths = [f"/item/{number}" for number in range(fetches)]
    for place in rng.sample(range(fetches), fetches // _ONE_HANGS_IN):
        paths[place] = "/hang"
    return Work(
        paths=paths,
        cities=[rng.choice(CITIES) for _ in range(max(1, fetches // 5))],
        pages=range(1, min(fetches, _ARCHIVE_PAGES) + 1),
    )


def scripted_model(work: Work, base_url: str, *, seed: int) -> BaseChatModel:
    """Return a scripted model that requests all calls at once, and then reads the answers."""
    wanted: list[tuple[str, Mapping[str, object]]] = [
        *(("fetch", {"url": base_url + path}) for path in work.paths),
        *(("query", {"city": city}) for city in work.cities),
        *(("archive", {"page": page}) for page in work.pages),
    ]
    random.Random(seed).shuffle(wanted)  # noqa: S311 (as above)
    return ScriptedModel([calls(*wanted), _read_answers])


def _read_answers(messages: list[BaseMessage]) -> str:
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    failed = sum(answer.status == "error" for answer in answers)
    return f"I have read {len(answers)} answers: {len(answers) - failed} results, {failed} errors."


def real_model(name: str) -> BaseChatModel:
    """Return a model made by langchain's `init_chat_model`; raise `ModelError` if it is not available."""
    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError:
        raise ModelError(f"--model {name} needs langchain: pip install 'callboard[langchain]'") from None
    try:
        return init_chat_model(name)
    except Exception as error:  # each provider's package has its own error class for a missing key
        raise ModelError(f"--model {name}: {error}") from error


def request(work: Work, base_url: str) -> str:
    """Return the prompt for the model. The scripted model ignores it."""
    pages = ", ".join(map(str, work.pages))
    return (
        f"Make all of these {work.count} tool calls, in one reply if you can, each exactly once.\n"
        f"fetch, for each of these URLs: {', '.join(base_url + path for path in work.paths)}\n"
        f"query, for each of these cities, repeated ones too: {', '.join(work.cities)}\n"
        f"archive, for each of these pages: {pages}\n"
        "Some will fail or time out: do not repeat those. Then say in two sentences what came back."
    )
