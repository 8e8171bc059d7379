"""Why there is no page, in words that a model can act on."""

from callboard import CallboardError
from callboard_actors._excerpts import clean

_LONGEST_URL = 300


class HttpError(CallboardError):
    """A request has no answer.

    Args:
        method: of the request.
        url: what was asked for last, after redirects.
        reason: why there is no answer, in half a sentence.
        advice: what to do about it, in a sentence.
        was_sent: whether the server may have had the request.
    """

    _what = "has no answer"

    def __init__(self, method: str, url: str, reason: str, advice: str, *, was_sent: bool) -> None:
        self.method = method
        self.url = url
        self.reason = reason
        self.advice = advice
        self.was_sent = was_sent
        super().__init__(f"{method} {shown(url)} {self._what}: {reason}. {advice}")


class UrlRefusedError(HttpError):
    """A request was not made, because of where it would have gone."""

    _what = "was not sent"

    def __init__(self, method: str, url: str, reason: str, advice: str = "Ask for another URL.") -> None:
        super().__init__(method, url, reason, advice, was_sent=False)


class UnreadableError(HttpError):
    """There is an answer, and nothing can be made of it; the next one would be no better."""

    _what = "has an answer that cannot be read"

    def __init__(self, method: str, url: str, reason: str) -> None:
        super().__init__(method, url, reason, "Try another page.", was_sent=True)


class AddressRefusedError(Exception):
    """A name has an address that nothing may be sent to; no connection was made."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__("its host has an address that is not public")
        # A model is not told of the addresses of a network; who reads the traceback is.
        self.remedy = f"The address of {host!r} is {address}; HttpClient(allow=[..., {address!r}]) lets it through."


def shown(url: str) -> str:
    """A URL without what would not be seen in it, cut where it is too long for a sentence."""
    url = clean(url)
    return url if len(url) <= _LONGEST_URL else f"{url[:_LONGEST_URL]}..."
