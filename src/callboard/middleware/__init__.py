"""Links around a tool call, for `ToolNode(middleware=[...])`: each takes the request and what comes next."""

from typing import TYPE_CHECKING

from callboard._lazy import lazy

if TYPE_CHECKING:
    from callboard._call import note as note
    from callboard.middleware._alternatives import Value as Value
    from callboard.middleware._approval import RequireApproval as RequireApproval
    from callboard.middleware._breaker import CircuitBreaker as CircuitBreaker
    from callboard.middleware._cache import Cache as Cache
    from callboard.middleware._detectors import Detector as Detector
    from callboard.middleware._fallback import Fallback as Fallback
    from callboard.middleware._hosts import Url as Url
    from callboard.middleware._output import OutputBudget as OutputBudget
    from callboard.middleware._paths import PathIn as PathIn
    from callboard.middleware._redact import Redact as Redact
    from callboard.middleware._redact_errors import RedactedError as RedactedError
    from callboard.middleware._redaction import DEFAULT_DETECTORS as DEFAULT_DETECTORS
    from callboard.middleware._repair import RepairArguments as RepairArguments
    from callboard.middleware._retry import Retry as Retry
    from callboard.middleware._sanitize import Sanitize as Sanitize
    from callboard.middleware._supervise import Supervise as Supervise
    from callboard.middleware._text import Text as Text
    from callboard.middleware._untrusted import Results as Results
    from callboard.middleware._vault import MemoryVault as MemoryVault
    from callboard.middleware._vault import StoreVault as StoreVault
    from callboard.middleware._vault import Vault as Vault

_HOMES = {
    "._call": ("note",),
    "_alternatives": ("Value",),
    "_approval": ("RequireApproval",),
    "_breaker": ("CircuitBreaker",),
    "_cache": ("Cache",),
    "_detectors": ("Detector",),
    "_fallback": ("Fallback",),
    "_hosts": ("Url",),
    "_output": ("OutputBudget",),
    "_paths": ("PathIn",),
    "_redact": ("Redact",),
    "_redact_errors": ("RedactedError",),
    "_redaction": ("DEFAULT_DETECTORS",),
    "_repair": ("RepairArguments",),
    "_retry": ("Retry",),
    "_sanitize": ("Sanitize",),
    "_supervise": ("Supervise",),
    "_text": ("Text",),
    "_untrusted": ("Results",),
    "_vault": (
        "MemoryVault",
        "StoreVault",
        "Vault",
    ),
}
"""Loaded late: a node imports this package, and few nodes need all of its links. `Supervise` is made of LangChain."""

# The table above is the truth.
__all__ = sorted(name for names in _HOMES.values() for name in names)  # noqa: PLE0605 # pyright: ignore[reportUnsupportedDunderAll]

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
