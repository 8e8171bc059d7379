"""For those who write stores of documents that processes share: what they are asked for, and what they answer.

Such a store (`callboard.SharedDocuments`) follows a rule for a `Document`: it shows it what is `Found`, and does what
is `Written`. Its answer is `Done` or `Away`.
"""

from callboard._documents import EVERYBODY as EVERYBODY
from callboard._documents import Away as Away
from callboard._documents import Document as Document
from callboard._documents import Done as Done
from callboard._documents import Found as Found
from callboard._documents import Listener as Listener
from callboard._documents import Rule as Rule
from callboard._documents import SharedDocuments as SharedDocuments
from callboard._documents import Written as Written

__all__ = ["EVERYBODY", "Away", "Document", "Done", "Found", "Listener", "Rule", "SharedDocuments", "Written"]
