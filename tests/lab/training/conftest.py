from __future__ import annotations

from collections.abc import Iterator

import pytest
from _processes import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Starts processes that train."""
    server = Server()
    yield server
    server.close()
