"""Surroundings of the code blocks that are marked `python no-run`, by which `tests/test_doc_fragments.py` runs them."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("_[a-z]*.py")))
