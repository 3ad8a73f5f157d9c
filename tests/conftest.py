"""What every test relies on."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.patience import patience

# A shell that started the tests in the background has made them, and all they start, deaf to Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test's own time limit stretches with all other waits."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(patience(seconds)), append=False)
    return (yield)
