"""Access of running calls to documents in a shared store, and a check of the option `shared`."""

from typing import TypeVar

from callboard._calls._call import waiting
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._loops._current import wakeup
from callboard._records._documents import Away, Document, Done, Rule, SharedDocuments
from callboard._records._policies import has_members_of
from callboard.exceptions import CallRejectedError

T = TypeVar("T")


async def ask(store: SharedDocuments, document: Document, rule: Rule[T], request: ToolCallRequest) -> Done[T] | None:
    """Apply `rule` to a document of a store and wait for its result; return `None` if the store cannot be reached."""
    answered = wakeup()
    answers: list[Done[T] | Away | Exception] = []

    def take(answer: Done[T] | Away | Exception) -> None:
        answers.append(answer)
        answered.set()

    # `take()` runs in a thread of the store. If this task is cancelled while it waits, the change still happens.
    store.change(document, rule, take)
    with waiting():
        await answered.wait()
    answer = answers.pop()
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, Away):
        if answer.refuses:  # the call must not run without the store
            raise CallRejectedError(request.tool_call["name"], request.tool_call["id"], answer.reason)
        return None
    return answer


def check_store(whose: str, store: object, **needs_one: object) -> None:
    """Raise an error if `store` is no document store, or if it is `None` although an option needs a store."""
    if store is None:
        if given := [option for option, value in needs_one.items() if value is not None]:
            raise ValueError(f"{whose}({given[0]}=...) is for what many processes share; give it a store: shared=...")
        return
    if not has_members_of(SharedDocuments, store):
        raise TypeError(
            f"{whose}(shared=...) is a store of documents, such as callboard_actors.redis.RedisDocuments(url), "
            f"got {store!r}"
        )
    for option, value in needs_one.items():
        if value is not None and not isinstance(value, (str, int)):
            raise TypeError(f"{whose}({option}=...) is a text or a number, got {value!r}")
