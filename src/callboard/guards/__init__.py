"""Guards: middleware that hides secrets, checks and repairs the arguments of tool calls, and cleans their results.

`Redact` keeps secrets and personal data from models, logs and stores. `Sanitize` checks arguments before the tool runs
and cleans results before a model reads them. `RepairArguments` corrects usual slips of models in arguments.
"""

from typing import TYPE_CHECKING

from callboard._util._lazy import lazy_exports

if TYPE_CHECKING:
    from callboard.guards._redact._detectors import Detector as Detector
    from callboard.guards._redact._redact import DEFAULT_DETECTORS as DEFAULT_DETECTORS
    from callboard.guards._redact._redact import MemoryVault as MemoryVault
    from callboard.guards._redact._redact import Redact as Redact
    from callboard.guards._redact._redact import StoreVault as StoreVault
    from callboard.guards._redact._redact import Vault as Vault
    from callboard.guards._redact._values import RedactedError as RedactedError
    from callboard.guards._repair._repair_arguments import RepairArguments as RepairArguments
    from callboard.guards._sanitize._hosts import Url as Url
    from callboard.guards._sanitize._paths import PathIn as PathIn
    from callboard.guards._sanitize._sanitize import Sanitize as Sanitize
    from callboard.guards._sanitize._text import Text as Text
    from callboard.guards._sanitize._untrusted import Results as Results

_HOMES = {
    "callboard.guards._redact._redact": ("DEFAULT_DETECTORS", "Redact", "MemoryVault", "StoreVault", "Vault"),
    "callboard.guards._redact._detectors": ("Detector",),
    "callboard.guards._sanitize._hosts": ("Url",),
    "callboard.guards._sanitize._paths": ("PathIn",),
    "callboard.guards._redact._values": ("RedactedError",),
    "callboard.guards._repair._repair_arguments": ("RepairArguments",),
    "callboard.guards._sanitize._sanitize": ("Sanitize",),
    "callboard.guards._sanitize._text": ("Text",),
    "callboard.guards._sanitize._untrusted": ("Results",),
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES, ["callboard.middleware", "callboard"])
