"""A pytest plugin: tests that replay a recorded agent.

::

    def test_it_answers(agent_cassette):
        result = corral.run_sync("gemini", "Say hello", **agent_cassette("gemini"))
        assert result.ok

``pytest --corral-record`` runs the real agent and records it beside the test file, in
``cassettes/``. Without the option the recording is replayed: no agent, no key, no network.
pytest loads this plugin at every start, so it imports the rest only when a test uses it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from corral.run_kwargs import RunKwargs

_UNSAFE = re.compile(r"[^\w.-]+")
MAX_NAME = 100
"""Characters. File names are limited; names of tests with parameters are not."""


class AgentCassette(Protocol):
    """The type of the fixture ``agent_cassette``.

    ::

        def test_it(agent_cassette: testing.AgentCassette) -> None:
            assert corral.run_sync("gemini", "Say hello", **agent_cassette("gemini")).ok
    """

    def __call__(self, agent: str) -> RunKwargs:
        """The options to give to ``corral.run`` or ``corral.session`` for this agent."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("corral")
    group.addoption(
        "--corral-record",
        action="store_true",
        help="run the real agents, and record them for the fixture agent_cassette",
    )


@pytest.fixture
def agent_cassette(request: pytest.FixtureRequest) -> Iterator[AgentCassette]:
    """Options for an agent that is recorded with ``--corral-record``, and replayed without."""
    # All runs of one test share one file. Without this each run would overwrite it.
    from corral._system.cassette.format import RUN

    before = os.environ.get(RUN)
    os.environ[RUN] = os.urandom(8).hex()
    yield _Cassettes(request)
    if before is None:
        os.environ.pop(RUN, None)
    else:
        os.environ[RUN] = before


class _Cassettes:
    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node = request.node
        self._is_recording = bool(request.config.getoption("--corral-record"))

    def __call__(self, agent: str) -> RunKwargs:
        # ``cassettes/FILE/TEST.AGENT.ndjson`` beside the test file.
        folder, file = os.path.split(self._node.path)
        test = self._node.nodeid.partition("::")[2]
        name = f"{_safe_name(test)}.{_safe_name(agent)}.ndjson"
        path = os.path.join(folder, "cassettes", os.path.splitext(file)[0], name)
        if self._is_recording:
            return {"record_to": path}
        if not os.path.exists(path):
            pytest.fail(
                f"there is no recording for this test: {path} is missing\n"
                f"Record it with the real agent: pytest --corral-record '{self._node.nodeid}'",
                pytrace=False,
            )
        return {"replay": path}


def _safe_name(text: str) -> str:
    """A part of a file name. Different texts have different names, also if they are shortened."""
    name = _UNSAFE.sub("-", text.replace("::", ".")).strip("-")
    if len(name) <= MAX_NAME and name == text.replace("::", ".").rstrip("]").replace("[", "-"):
        return name
    from hashlib import sha256

    return f"{name[:MAX_NAME]}-{sha256(text.encode()).hexdigest()[:8]}"
