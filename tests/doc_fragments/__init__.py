"""Surroundings of the code blocks that are marked `python no-run`, by which `tests/test_doc_fragments.py` runs them."""
