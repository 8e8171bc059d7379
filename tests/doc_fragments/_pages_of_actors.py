"""Fragments of `actors/README.md` and of the examples in `docs/reference/actors.md`."""

from tests.doc_fragments._surroundings import Fragments

FRAGMENTS = Fragments()
