"""Names of loggers that a worker process sends are resolved in few steps, whatever the names are."""

import logging
from typing import Any

import pytest

from callboard.extend import dispatch_event


class _Counting(dict[str, Any]):
    """Dict of loggers that counts its look-ups."""

    lookups = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


@pytest.fixture
def loggers(monkeypatch: pytest.MonkeyPatch) -> _Counting:
    table = _Counting(logging.Logger.manager.loggerDict)
    monkeypatch.setattr(logging.Logger.manager, "loggerDict", table)
    return table


@pytest.mark.parametrize("name", ["." * 60_000, "a." * 30_000, "x" * 60_000], ids=["dots", "parts", "one part"])
def test_a_long_name_of_a_logger_is_looked_up_in_few_steps(name: str, loggers: _Counting) -> None:
    """A name of 60 kB of dots once blocked the event loop for a second, because each dot cost a copy and a look-up."""
    dispatch_event({"log": [name, logging.WARNING, "said", 0.0, 1, ["there.py", 1, "fn"]]})

    assert loggers.lookups <= 201


def test_a_name_of_a_logger_leads_to_the_nearest_one_that_is_there(caplog: pytest.LogCaptureFixture) -> None:
    """A record goes to the nearest existing parent logger; no new logger is created."""
    logging.getLogger("near")
    dispatch_event({"log": ["near.by.far", logging.WARNING, "said", 0.0, 1, ["there.py", 1, "fn"]]})

    assert [record.name for record in caplog.records] == ["near.by.far"]
    assert "near.by.far" not in logging.Logger.manager.loggerDict
