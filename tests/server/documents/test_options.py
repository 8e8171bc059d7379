"""Invalid options are refused at once, with the value and the remedy."""

import copy
import pickle
import sys
from typing import Any

import pytest

from callboard.middleware import Cache, CircuitBreaker
from callboard_actors.postgres import PostgresDocuments
from callboard_actors.redis import RedisDocuments, RedisLimits

CLASSES = [(RedisDocuments, "redis://localhost"), (PostgresDocuments, "postgresql://localhost/app")]


@pytest.mark.parametrize(("cls", "url"), CLASSES)
@pytest.mark.parametrize(
    ("option", "error", "says"),
    [
        ({"lease": 0}, ValueError, r"\(lease=...\) is 0.1 to 2.592e\+06 seconds, got 0"),
        ({"lease": "10"}, TypeError, r"\(lease=...\) is a number of seconds, got '10'"),
        ({"patience": 0.0}, ValueError, r"\(patience=...\) is 0.01 to"),
        ({"away": "wait"}, ValueError, r"\(away=...\) is one of \('local', 'refuse'\), got 'wait'"),
        ({"largest": 1000}, ValueError, r"\(largest=...\) is 65,536 to 67,108,864 bytes, got 1000"),
        ({"largest": 1e6}, ValueError, r"\(largest=...\) is 65,536 to"),
        ({"prefix": "a:b"}, ValueError, r"\(prefix=...\) is 1 to 200 letters"),
    ],
)
def test_an_option_out_of_range_is_named(
    cls: type[Any], url: str, option: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The error is raised at the line with the option."""
    with pytest.raises(error, match=cls.__name__ + says):
        cls(url, **option)


@pytest.mark.parametrize(
    ("cls", "url"),
    [
        (RedisDocuments, "postgresql://clerk:secret@localhost/app"),
        (PostgresDocuments, "redis://:secret@localhost"),
    ],
)
def test_a_url_of_something_else_is_refused_without_its_password(cls: type[Any], url: str) -> None:
    """The remedy shows an example of a valid URL."""
    with pytest.raises(ValueError, match=f"{cls.__name__}.*give it one such as") as caught:
        cls(url)

    assert "secret" not in str(caught.value)


def test_an_option_of_a_url_that_nobody_knows_is_refused() -> None:
    """A misspelt option of the URL would be ignored by the server."""
    with pytest.raises(ValueError, match=r"RedisDocuments\(url\): 'protocol' is not to be had"):
        RedisDocuments("redis://localhost?protocol=3")
    with pytest.raises(ValueError, match=r"PostgresDocuments\(url\) cannot be read"):
        PostgresDocuments("postgresql://localhost/app?no_such=1")


@pytest.mark.parametrize(("package", "cls", "url"), [("redis", *CLASSES[0]), ("psycopg", *CLASSES[1])])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str, cls: type[Any], url: str) -> None:
    """The error says how to install the extra."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ImportError, match=rf"{cls.__name__}\(...\) needs {package}: pip install"):
        cls(url)


@pytest.mark.parametrize("wrong", [RedisDocuments, RedisLimits("redis://localhost"), "redis://localhost"])
def test_what_is_no_store_of_documents_is_refused(wrong: Any) -> None:
    """A store of limits is no store of documents."""
    with pytest.raises(TypeError, match=r"Cache\(shared=...\) is a store of documents, such as .*RedisDocuments"):
        Cache({"work"}, shared=wrong)
    with pytest.raises(TypeError, match=r"CircuitBreaker\(shared=...\) is a store of documents"):
        CircuitBreaker(shared=wrong)


@pytest.mark.parametrize("option", [{"name": "a"}, {"version": 2}])
def test_an_option_that_is_for_a_store_is_refused_without_one(option: dict[str, Any]) -> None:
    """Without a store the option would have no effect."""
    with pytest.raises(ValueError, match=rf"Cache\({next(iter(option))}=...\) is for what many processes share"):
        Cache({"work"}, **option)


def test_a_name_that_is_none_is_refused() -> None:
    """Another object than a text or a number would have a different name in each process."""
    shared = RedisDocuments("redis://localhost")
    with pytest.raises(TypeError, match=r"Cache\(version=...\) is a text or a number, got <object"):
        Cache({"work"}, shared=shared, version=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"CircuitBreaker\(name=...\) is a text or a number"):
        CircuitBreaker(shared=shared, name=["a"])  # type: ignore[arg-type]


def test_a_circuit_that_the_store_has_no_room_for_is_refused() -> None:
    """A circuit larger than its document would be lost with each call."""
    with pytest.raises(ValueError, match=r"CircuitBreaker\(minimum=100000, probes=1, shared=...\).*largest=65,536"):
        CircuitBreaker(minimum=100_000, shared=RedisDocuments("redis://localhost", largest=65_536))


@pytest.mark.parametrize(("cls", "url"), CLASSES)
def test_a_store_may_be_copied_and_pickled(cls: type[Any], url: str) -> None:
    """A node with a store can be copied and pickled; each copy acts as a separate process."""
    store = cls(url, lease=3.0)
    for one in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        assert repr(one) == repr(store)
        assert one.lease == 3.0
        one.listen(_Listener())


class _Listener:
    def heard(self, document: object) -> None:
        pass
