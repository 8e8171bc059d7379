"""A process that relays a body to another process passes on its context, and sends its messages back."""

import anyio
import pytest

from callboard import progress, remaining
from callboard.extend import NonsenseError, attached_context, dispatch_event, forwarded_context, inject_context

_GIVEN = {"levels": {"": 30}, "left": 10.0, "grace": 1.5, "bound": {"user": "u"}}


async def test_what_is_carried_on_is_what_came_along_with_the_time_that_is_left() -> None:
    with forwarded_context(_GIVEN, lambda told: None):
        with anyio.fail_after(1):
            found = inject_context()
    assert {**found, "left": 10.0} == _GIVEN
    assert 9.0 < found["left"] <= 10.0


async def test_words_go_back_as_they_are_and_nonsense_does_not() -> None:
    told: list[object] = []
    with forwarded_context(_GIVEN, told.append):
        dispatch_event({"progress": ["half", 1, 2]})
        with pytest.raises(NonsenseError):
            dispatch_event({"nonsense": 1})
    assert told == [{"progress": ["half", 1, 2]}]


async def test_a_body_that_arrives_in_between_is_no_longer_passed_on() -> None:
    told: list[object] = []
    with forwarded_context(_GIVEN, lambda told: None), attached_context(inject_context(), told.append):
        progress("here")
        assert remaining() <= 10.0
        assert inject_context().get("bound") != {"user": "nobody"}
        assert "left" in inject_context()
    assert told == [{"progress": ["here", None, None]}]
