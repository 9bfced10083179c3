"""One browser for all tests of a session, and a tab for each."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Chromium, Tab, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A headless browser whose every request by name is refused."""
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def tab(browser: Chromium) -> Tab:
    """A tab of its own."""
    return browser.tab()
