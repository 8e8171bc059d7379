"""The stores of Redis and PostgreSQL have the same options: only the import and the URL differ."""

import inspect
import re

import pytest

from callboard_actors import postgres, redis

TWINS = [
    (redis.RedisLimits, postgres.PostgresLimits),
    (redis.RedisDocuments, postgres.PostgresDocuments),
    (redis.RedisFleet, postgres.PostgresFleet),
]
OWN = {"url", "prefix"}
"""Options whose documentation differs between servers."""


def options(store: type[object]) -> dict[str, str]:
    """Return the documented text of each option of a store."""
    told = re.split(r"\n\n", inspect.getdoc(store).partition("Args:\n")[2])[0]  # type: ignore[union-attr]
    found = re.findall(r"(?ms)^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", told)
    return {name: " ".join(words.split()) for name, words in found}


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_a_store_has_the_same_options_on_either_server(one: type[object], other: type[object]) -> None:
    """The signatures are written twice, because type checkers and `help` read them."""
    assert inspect.signature(one) == inspect.signature(other)


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_an_option_is_explained_in_the_same_words_on_either_server(one: type[object], other: type[object]) -> None:
    """Separate explanations would drift apart."""
    said, said_there = options(one), options(other)

    assert set(said) == set(inspect.signature(one).parameters)
    assert {name for name in said if said[name] != said_there[name]} <= OWN
