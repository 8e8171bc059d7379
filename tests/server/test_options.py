"""Invalid options are refused at once, with the value and the remedy; Redis and PostgreSQL take the same options."""

import copy
import inspect
import pickle
import re
import sys
from typing import Any

import pytest

from callboard import CallPolicy, Limit, Rate, ToolNode
from callboard.extend import install_command
from callboard_actors.postgres import PostgresFleet, PostgresLimits
from callboard_actors.redis import RedisLimits

from ._servers import SECRET, store_at

URLS = {"redis": "redis://localhost", "postgres": "postgresql://localhost/app"}
STORES: dict[str, tuple[str, str, type[Any]]] = {
    "limits in Redis": ("limits", URLS["redis"], RedisLimits),
    "limits in PostgreSQL": ("limits", URLS["postgres"], PostgresLimits),
    "fleet": ("fleet", URLS["postgres"], PostgresFleet),
}
every_store = pytest.mark.parametrize(("what", "url", "cls"), STORES.values(), ids=STORES)


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest) -> str:
    """Return a URL at which nobody has to answer."""
    return URLS[request.param]


def echo(text: str) -> str:
    """Say it again."""
    return text


def test_limits_have_the_same_options_on_either_server() -> None:
    """Each option is explained once, and the other class says where."""
    redis_limits, postgres_limits = RedisLimits, PostgresLimits
    explained = re.findall(r"(?m)^ {4}(\w+): ", str(inspect.getdoc(redis_limits)).partition("Args:\n")[2])

    assert inspect.signature(redis_limits) == inspect.signature(postgres_limits)
    assert [name for name in explained if name[0].islower()] == list(inspect.signature(redis_limits).parameters)
    assert f"`callboard_actors.redis.{redis_limits.__name__}`" in str(inspect.getdoc(postgres_limits))


@pytest.mark.parametrize(
    ("option", "error", "says"),
    [
        ({"lease": 0}, ValueError, r"\(lease=0\) is a number of seconds, at least 0.1 and at most 2.592e\+06"),
        (
            {"lease": 1e305},
            ValueError,
            r"\(lease=1e\+305\) is a number of seconds, at least 0.1 and at most 2.592e\+06",
        ),
        ({"lease": "10"}, TypeError, r"\(lease='10'\) is a number of seconds"),
        ({"away": "panic"}, ValueError, r"\(away=...\) is one of \('wait', 'refuse'\), got 'panic'"),
        ({"name": "a b"}, ValueError, r"\(name=...\) is 1 to 200 letters, .*, got 'a b'"),
        ({"name": "tool:fetch"}, ValueError, r"\(name=...\) is 1 to 200 letters"),
        ({"name": "x" * 201}, ValueError, r"\(name=...\) is 1 to 200 letters"),
        ({"prefix": "shop:tool"}, ValueError, r"\(prefix=...\) is 1 to 200 letters"),
        ({"prefix": "a\0b"}, ValueError, r"\(prefix=...\) is 1 to 200 letters"),
        ({"prefix": "{x}"}, ValueError, r"\(prefix=...\) is 1 to 200 letters, .*, got '{x}'"),
    ],
)
def test_an_option_of_limits_out_of_range_is_named(
    url: str, option: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The error is raised at the line with the option."""
    cls = "PostgresLimits" if url.startswith("postgresql:") else "RedisLimits"

    with pytest.raises(error, match=f"{cls}.*{says}"):
        store_at(url, "limits", **option)


@pytest.mark.parametrize(
    ("option", "error", "says"),
    [
        ({"lease": 0.5}, ValueError, r"\(lease=0\.5\) is a number of seconds, at least 1 and at most 86400"),
        ({"lease": "long"}, TypeError, r"\(lease='long'\) is a number of seconds"),
        ({"patience": -1.0}, ValueError, r"\(patience=-1\.0\) is a number of seconds, at least 0"),
        ({"prefix": "a b"}, ValueError, r"\(prefix=...\) is 1 to 200 letters"),
        ({"secret": "short"}, ValueError, "has 5 bytes, and 16 are the least"),
        ({"secret": 17}, TypeError, "is a text or bytes, got one of type int"),
        ({"secret": None}, ValueError, "set CALLBOARD_FLEET_SECRET"),
    ],
)
def test_an_option_of_a_fleet_out_of_range_is_named(
    option: dict[str, Any], error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised at the line with the option."""
    monkeypatch.delenv("CALLBOARD_FLEET_SECRET", raising=False)

    with pytest.raises(error, match=f"PostgresFleet.*{says}"):
        store_at(URLS["postgres"], "fleet", **option)


def test_a_secret_may_be_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is not shown."""
    monkeypatch.setenv("CALLBOARD_FLEET_SECRET", SECRET)

    assert SECRET not in repr(store_at(URLS["postgres"], "fleet", secret=None))


@pytest.mark.parametrize("limit", [{"rate": Rate(1, per=1e300)}, {"rate": Rate(1, per=1e-9)}, {"concurrency": 2**40}])
def test_a_limit_that_no_server_could_count_is_refused(url: str, limit: dict[str, Any]) -> None:
    """Calls with a number that the server cannot represent would hang or run without a limit."""
    with pytest.raises(ValueError, match=r"a shared (window has 0.001|limit counts up to)"):
        ToolNode([echo], policies={"echo": CallPolicy(limit=Limit(**limit, shared=store_at(url, "limits")))})


OF_SOMETHING_ELSE = [
    *((RedisLimits, "postgresql://clerk:secret@localhost/app"), (RedisLimits, "redis://:secret@")),
    *((PostgresLimits, "redis://:secret@localhost"), (PostgresLimits, "sqlite:///limits.db")),
    *((PostgresFleet, "redis://:secret@localhost"), (PostgresFleet, "https://:secret@host")),
]


@pytest.mark.parametrize(
    ("cls", "url", "says"),
    [
        *((cls, url, f"{cls.__name__}.* is no URL of .*give it one such as") for cls, url in OF_SOMETHING_ELSE),
        (RedisLimits, "redis://localhost?protocol=3", r"RedisLimits\(url\): 'protocol' is not to be had"),
        (PostgresLimits, "postgresql://localhost/app?no_such=1", r"PostgresLimits\(url\) cannot be read"),
        *((RedisLimits, f"redis://user:{word}@host", "quote it") for word in ("sec/ret", "12/sec", "sec#ret")),
        (RedisLimits, "redis://user:sec@[::1", "give it one such as"),
        (RedisLimits, "redis://localhost/app", "databases of Redis are numbers, got 'app'"),
        (RedisLimits, "redis://user:sec@localhost?socket_timeout=soon", "'socket_timeout'"),
        (RedisLimits, "redis://user:sec@localhost?bogus=1", "'bogus'"),
        (RedisLimits, "redis://user:sec@localhost?max_connections=1", "'max_connections' is not to be had"),
        *(
            (PostgresLimits, f"postgresql://user:{word}@host/app", "quote it")
            for word in ("sec/ret", "12/sec", "sec?ret", "sec#ret")
        ),
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
    ("cls", "url", "expected"),
    [
        (RedisLimits, "redis://:p%2Fw@[::1]:6380/2?socket_timeout=3", "redis://[::1]:6380/2"),
        (RedisLimits, "unix://user:sec@/run/redis@1.sock?db=3", "unix:///run/redis@1.sock"),
        (
            PostgresLimits,
            "postgresql://u:p%2Fw@a:5432,[::1]:5433/app?sslmode=require",
            "postgresql://a:5432,[::1]:5433/app",
        ),
        (PostgresLimits, "postgresql:///app?host=/run/postgresql", "postgresql:///app"),
    ],
)
def test_any_other_url_of_a_server_will_do(cls: type[Any], url: str, expected: str) -> None:
    """Quoted passwords, IPv6 addresses, several hosts and sockets are valid."""
    assert repr(cls(url)) == f"{cls.__name__}({expected!r})"


@every_store
def test_a_missing_extra_is_said_with_the_command_that_installs_it(
    url: str, what: str, cls: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised where the store is made."""
    package, extra = ("redis", "redis") if url.startswith("redis:") else ("psycopg", "postgres")
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(
        ImportError,
        match=rf"{cls.__name__}\(...\) needs {package}: {re.escape(install_command('callboard-actors', extra))}",
    ):
        store_at(url, what)


@every_store
def test_a_store_can_be_copied_and_pickled(url: str, what: str, cls: type[Any]) -> None:
    """A node with a store can be copied and pickled; each copy acts as a separate process."""
    options = {"limits": {"name": "vendor"}, "fleet": {"lease": 3.0}}
    store = store_at(url, what, **options[what])

    for copied_store in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        assert type(copied_store) is cls
        assert repr(copied_store) == repr(store)
        if what == "limits":
            assert copied_store.name == "vendor"
        else:
            assert copied_store.lease == 3.0


def test_what_is_no_store_is_refused() -> None:
    """Neither a URL nor a class is a store; a URL does not say which kind of server it means."""
    for wrong in ("redis://localhost", RedisLimits):
        with pytest.raises(TypeError, match=r"Limit\(shared=...\) takes where it is kept, such as RedisLimits\(url\)"):
            Limit(concurrency=1, shared=wrong)  # type: ignore[arg-type]
