"""Invalid numbers for the ready-made actors are refused with the option's name and its value."""

import math
from pathlib import Path
from typing import Any

import pytest

from callboard_actors.python import Python
from callboard_actors.shell import Shell


def _shell(**options: Any) -> Shell:
    return Shell(Path(), unrestricted=True, **options)


@pytest.mark.parametrize("make", [_shell, Python])
@pytest.mark.parametrize("value", [0, -1.5, math.inf, math.nan])
def test_seconds_that_are_no_time_are_refused(make: Any, value: float) -> None:
    """An infinite timeout would never end, and one of zero or less would never begin."""
    with pytest.raises(ValueError, match=r"(Shell|Python)\(grace=.*\) is a number of seconds"):
        make(grace=value)


@pytest.mark.parametrize("make", [_shell, Python])
@pytest.mark.parametrize("value", ["60", None, (1,)])
def test_what_is_no_number_of_seconds_is_refused_by_name(make: Any, value: object) -> None:
    """Python's own error about comparing two types would not name the option."""
    with pytest.raises(TypeError, match=r"(Shell|Python)\(timeout=.*\) is a number of seconds"):
        make(timeout=value)


@pytest.mark.parametrize("make", [_shell, Python])
@pytest.mark.parametrize("value", [99, 1000.5, "1000", None])
def test_a_size_that_is_too_small_or_no_whole_number_is_refused(make: Any, value: object) -> None:
    """A limit of too few characters would leave a model nothing to read."""
    with pytest.raises(ValueError, match=r"(Shell|Python)\(max_output=.*\) is a whole number, at least 100"):
        make(max_output=value)
