"""Extension point for stores of documents that processes share: the protocol and its records.

A store (`callboard.SharedDocuments`) applies a rule to a `Document`: it calls the rule with the `Found` document, and
writes the returned `Written`. It answers with `Done` or `Away`.
"""

from callboard._records._documents import EVERYBODY as EVERYBODY
from callboard._records._documents import Away as Away
from callboard._records._documents import Document as Document
from callboard._records._documents import Done as Done
from callboard._records._documents import Found as Found
from callboard._records._documents import Listener as Listener
from callboard._records._documents import Rule as Rule
from callboard._records._documents import SharedDocuments as SharedDocuments
from callboard._records._documents import Written as Written

__all__ = ["EVERYBODY", "Away", "Document", "Done", "Found", "Listener", "Rule", "SharedDocuments", "Written"]
