"""Events of actors, for the tests of this folder."""

import pytest

from ._lives import lives


@pytest.fixture(autouse=True)
def _no_lives() -> None:
    lives.clear()
