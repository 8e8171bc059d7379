"""Ray's token authentication is needed for an address that is not loopback."""

from pathlib import Path

import anyio
import pytest

pytest.importorskip("ray")

from callboard import ActorStartError
from callboard_actors.ray import RayEngine, _connection


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(_connection.ray, "init", _no_connection)
    return tmp_path


def _no_connection(**_: object) -> None:
    raise RuntimeError("this test connects to nothing")


@pytest.mark.parametrize(
    "address", ["10.1.2.3:6379", "ray://head.example:10001", "[2001:db8::1]:6379", "127.0.0.1.evil.example:1"]
)
def test_another_machine_is_not_reached_without_a_token(address: str) -> None:
    """Everybody who reaches the ports of a cluster without a token runs code there."""
    with pytest.raises(
        ActorStartError, match=r"RAY_AUTH_MODE is not set, and there is no token in RAY_AUTH_TOKEN"
    ) as caught:
        _connection.connect(address)
    assert caught.value.is_permanent
    assert "ray get-auth-token --generate" in str(caught.value)


def test_the_address_in_the_environment_counts_for_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    with pytest.raises(
        ActorStartError, match=r"'10\.1\.2\.3:6379' is reached over a network .*RAY_AUTH_MODE is 'disabled'\."
    ):
        _connection.connect("auto")


@pytest.mark.parametrize("place", ["variable", "file", "home"])
def test_a_token_in_each_place_where_ray_looks_is_found(
    monkeypatch: pytest.MonkeyPatch, no_token: Path, place: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ActorStartError, match=r"without token authentication: there is no token in RAY_AUTH_TOKEN"):
        _connection.connect("10.1.2.3:1")
    (no_token / ".ray").mkdir()
    file = no_token / (".ray/auth_token" if place == "home" else "token")
    file.write_text("a token")
    if place == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")
    if place == "file":
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    _connection._check_token("10.1.2.3", "10.1.2.3:1")


@pytest.mark.real_clock
async def test_an_engine_that_fails_to_connect_for_any_reason_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without a home folder is such a reason. Its caller would wait for ever for the task of the engine."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "~nobody-has-this-name/token")
    with anyio.fail_after(30), pytest.raises(ActorStartError, match=r"Ray cannot be reached: .*home directory"):
        async with RayEngine("10.1.2.3:6379"):
            raise AssertionError


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "ray://127.0.0.1:1"])
def test_this_machine_is_reached_without_a_token(address: str) -> None:
    with pytest.raises(ActorStartError, match=f"no Ray can be reached at '{address}'".replace("[", r"\[")):
        _connection.connect(address)


def test_an_address_that_ray_has_found_by_itself_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "auto" on a node of a cluster leads to the head of the cluster, which may be another machine."""

    class Context:
        gcs_address = "10.1.2.3:6379"

    is_open = True

    def shut_down() -> None:
        nonlocal is_open
        is_open = False

    monkeypatch.setattr(_connection.ray, "init", lambda **_: None)
    monkeypatch.setattr(_connection.ray, "shutdown", shut_down)
    monkeypatch.setattr(_connection.ray, "get_runtime_context", Context)
    with pytest.raises(ActorStartError, match=r"'10\.1\.2\.3:6379' is reached over a network"):
        _connection.connect("auto")
    assert not is_open
