"""Invalid options are refused at once, with the value and the remedy."""

import copy
import pickle
import sys
from typing import Any

import pytest

from callboard import CallPolicy, Limit, Rate, ToolNode
from callboard_actors.postgres import PostgresLimits
from callboard_actors.redis import RedisLimits

CLASSES = [(RedisLimits, "redis://localhost"), (PostgresLimits, "postgresql://localhost/app")]


def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.mark.parametrize(("cls", "url"), CLASSES)
@pytest.mark.parametrize(
    ("option", "error", "says"),
    [
        ({"lease": 0}, ValueError, r"\(lease=...\) is 0.1 to 2.592e\+06 seconds, got 0"),
        ({"lease": "10"}, TypeError, r"\(lease=...\) is a number of seconds, got '10'"),
        ({"away": "panic"}, ValueError, r"\(away=...\) is one of \('wait', 'refuse', 'local'\), got 'panic'"),
        ({"away": "local"}, ValueError, r"\(away='local', processes=...\) go together"),
        ({"processes": 4}, ValueError, r"\(away='local', processes=...\) go together"),
        ({"away": "local", "processes": 0}, ValueError, r"\(processes=...\) is a whole number from 1, got 0"),
        ({"name": "a b"}, ValueError, r"\(name=...\) is 1 to 200 letters, .*, got 'a b'"),
        ({"name": "tool:fetch"}, ValueError, r"\(name=...\) is 1 to 200 letters"),
        ({"name": "x" * 201}, ValueError, r"\(name=...\) is 1 to 200 letters"),
        ({"prefix": "shop:tool"}, ValueError, r"\(prefix=...\) is 1 to 200 letters"),
        ({"prefix": "a\0b"}, ValueError, r"\(prefix=...\) is 1 to 200 letters"),
        ({"lease": 1e305}, ValueError, r"\(lease=...\) is 0.1 to 2.592e\+06 seconds, got 1e\+305"),
        ({"prefix": "{x}"}, ValueError, r"\(prefix=...\) is 1 to 200 letters, .*, got '{x}'"),
    ],
)
def test_an_option_out_of_range_is_named(
    cls: type[Any], url: str, option: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The error is raised at the line with the option."""
    with pytest.raises(error, match=cls.__name__ + says):
        cls(url, **option)


@pytest.mark.parametrize(("cls", "url"), CLASSES)
@pytest.mark.parametrize("limit", [{"rate": Rate(1, per=1e300)}, {"rate": Rate(1, per=1e-9)}, {"concurrency": 2**70}])
def test_a_limit_that_no_server_could_count_is_refused(cls: type[Any], url: str, limit: dict[str, Any]) -> None:
    """Calls with a number that the server cannot represent would hang or run without a limit."""
    with pytest.raises(ValueError, match=r"a shared (window has 0.001|limit counts up to)"):
        ToolNode([echo], policies={"echo": CallPolicy(limit=Limit(**limit, shared=cls(url)))})


@pytest.mark.parametrize(
    ("cls", "url"),
    [
        (RedisLimits, "postgresql://clerk:secret@localhost/app"),
        (RedisLimits, "redis://:secret@"),
        (PostgresLimits, "redis://:secret@localhost"),
        (PostgresLimits, "sqlite:///limits.db"),
    ],
)
def test_a_url_of_something_else_is_refused_without_its_password(cls: type[Any], url: str) -> None:
    """The remedy shows an example of a valid URL."""
    with pytest.raises(ValueError, match="give it one such as") as caught:
        cls(url)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "url", "says"),
    [
        (RedisLimits, "redis://user:sec/ret@host", "quote it"),
        (RedisLimits, "redis://user:12/sec@host", "quote it"),
        (RedisLimits, "redis://user:sec#ret@host", "quote it"),
        (RedisLimits, "redis://user:sec@[::1", "give it one such as"),
        (RedisLimits, "redis://localhost/app", "databases of Redis are numbers, got 'app'"),
        (RedisLimits, "redis://user:sec@localhost?socket_timeout=soon", "'socket_timeout'"),
        (RedisLimits, "redis://user:sec@localhost?bogus=1", "'bogus'"),
        (RedisLimits, "redis://user:sec@localhost?max_connections=1", "'max_connections' is not to be had"),
        (PostgresLimits, "postgresql://user:sec/ret@host/app", "quote it"),
        (PostgresLimits, "postgresql://user:12/sec@host/app", "quote it"),
        (PostgresLimits, "postgresql://user:sec?ret@host/app", "quote it"),
        (PostgresLimits, "postgresql://user:sec#ret@host/app", "quote it"),
        (PostgresLimits, "postgresql://user:sec%ret@host/app", "to be quoted"),
        (PostgresLimits, "postgresql://user:sec@[::1/app", "give it one such as"),
        (PostgresLimits, "postgresql://localhost:port/app", "a port, which is a number"),
        (PostgresLimits, "postgresql://user:sec@localhost/app?bogus=1", 'invalid URI query parameter: "bogus"'),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_where_it_is_written(cls: type[Any], url: str, says: str) -> None:
    """Calls would wait for ever for a server whose name is part of the password, and logs would show it."""
    with pytest.raises(ValueError, match=says) as caught:
        cls(url)

    assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "url", "shown"),
    [
        (RedisLimits, "redis://:p%2Fw@[::1]:6380/2?socket_timeout=3", "redis://::1:6380/2"),
        (RedisLimits, "unix://user:sec@/run/redis@1.sock?db=3", "unix:///run/redis@1.sock"),
        (
            PostgresLimits,
            "postgresql://u:p%2Fw@a:5432,[::1]:5433/app?sslmode=require",
            "postgresql://a:5432,[::1]:5433/app",
        ),
        (PostgresLimits, "postgresql:///app?host=/run/postgresql", "postgresql:///app"),
    ],
)
def test_any_other_url_of_a_server_will_do(cls: type[Any], url: str, shown: str) -> None:
    """Quoted passwords, IPv6 addresses, several hosts and sockets are valid."""
    assert repr(cls(url)) == f"{cls.__name__}({shown!r})"


@pytest.mark.parametrize(("cls", "url"), CLASSES)
def test_a_missing_extra_is_said_with_the_command_that_installs_it(
    cls: type[Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised where the store is made."""
    package = "redis" if cls is RedisLimits else "psycopg"
    extra = "redis" if cls is RedisLimits else "postgres"
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'callboard-actors\[{extra}\]'"):
        cls(url)


def test_a_password_is_never_shown() -> None:
    """Representations of stores are written to logs and errors."""
    assert repr(RedisLimits("redis://user:secret@host:6380/2")) == "RedisLimits('redis://host:6380/2')"
    assert "secret" not in repr(PostgresLimits("postgresql://user:secret@host:5433/app"))


@pytest.mark.parametrize(("cls", "url"), CLASSES)
def test_a_store_can_be_copied_and_pickled(cls: type[Any], url: str) -> None:
    """Nodes can be copied and pickled together with their limits."""
    limit = Limit(concurrency=8, shared=cls(url, away="local", processes=4))

    for copied in (copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))):
        assert repr(copied.shared) == repr(limit.shared)
        with pytest.raises(ValueError, match="processes=4"):
            copied.shared.check(Limit(concurrency=3))


def test_what_is_no_store_is_refused() -> None:
    """Neither a URL nor a class is a store; a URL does not say which kind of server it means."""
    for wrong in ("redis://localhost", RedisLimits):
        with pytest.raises(TypeError, match=r"Limit\(shared=...\) takes where it is kept, such as RedisLimits\(url\)"):
            Limit(concurrency=1, shared=wrong)  # type: ignore[arg-type]


def test_tenants_of_a_limit_that_is_not_shared_are_refused() -> None:
    """Without a shared store the option would be ignored."""
    with pytest.raises(ValueError, match="is for a shared limit"):
        Limit(concurrency=1, tenant=lambda call: call["args"]["user"])
