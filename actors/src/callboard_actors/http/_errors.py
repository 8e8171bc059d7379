"""Errors of HTTP requests, with texts that tell a model what to do next."""

from callboard import CallboardError
from callboard_actors._util._excerpts import clean

_LONGEST_URL = 300


class HttpError(CallboardError):
    """Raised for a request that got no response, with the reason and with advice for a model.

    `reason` is a clause that continues "GET ... has no answer: "; `advice` is a complete sentence.

    `url` is that of the last request, after redirects. `was_sent` tells whether the server may have received it.
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
    """Raised for a request that was not sent, because its URL or address is not allowed."""

    _what = "was not sent"

    def __init__(self, method: str, url: str, reason: str, advice: str = "Ask for another URL.") -> None:
        super().__init__(method, url, reason, advice, was_sent=False)


class UnreadableError(HttpError):
    """Raised for a response that cannot be read. A repeated request would fail in the same way."""

    _what = "has an answer that cannot be read"

    def __init__(self, method: str, url: str, reason: str) -> None:
        super().__init__(method, url, reason, "Try another page.", was_sent=True)


class AddressRefusedError(Exception):
    """Raised if one address of a host name is not allowed. No connection was made."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__("its host has an address that is not public")
        # Not in the text, which a model reads: it must not learn addresses of a network. Tracebacks show this note.
        self.remedy = f"The address of {host!r} is {address}; HttpClient(allow=[..., {address!r}]) lets it through."


def shown(url: str) -> str:
    """Return a URL as it is quoted in error texts: without invisible characters, and cut if it is very long."""
    url = clean(url)
    return url if len(url) <= _LONGEST_URL else f"{url[:_LONGEST_URL]}..."
