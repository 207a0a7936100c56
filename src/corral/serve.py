"""The HTTP API of ``corral serve`` inside another web application.

::

    from starlette.applications import Starlette
    from starlette.routing import Mount

    from corral import serve

    agents = serve.app(clients="clients.toml", folders=["/srv/project"], policy="edits")
    application = Starlette(routes=[Mount("/agents", agents)], lifespan=agents.lifespan)

It needs the extra ``view``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from corral._core.durations import seconds
from corral._core.spending import pop_limits
from corral._serving.allowance import DEFAULT_TIMEOUT, Allowance, CallerAnswers
from corral.errors import ConfigError
from corral.policy import PRESETS, Policy
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._serving.http.application import ServeApp

__all__ = ["app"]

_OF_CALLERS = ("cwd", "model", "resume", "fork")
"""Options of a run that a client sets, or no one."""


class ServeOptions(RunKwargs, total=False):
    """What clients may use at most, beside options of a run: ``policy`` (default ``"reads"``),
    ``timeout``, the limits of a budget, and all others."""

    agents: Sequence[str]
    """Default: each agent with a name."""
    models: Sequence[str]
    folders: Sequence[str | os.PathLike[str]]
    """Runs work there or below. Default: the current folder."""
    pipelines: Mapping[str, str | os.PathLike[str]]
    """Name -> file."""
    answers: CallerAnswers
    concurrency: int
    depth: int


def app(
    token: str | None = None,
    *,
    clients: str | os.PathLike[str] | None = None,
    drain: float = 0.0,
    **options: Unpack[ServeOptions],
) -> ServeApp:
    """An ASGI application with the operations of ``corral serve``, for FastAPI and Starlette. It
    serves while its ``lifespan`` runs: give that to the application that mounts it. At the end,
    runs get ``drain`` seconds to end by themselves.

    ``token`` is the token of the only client; ``clients`` is a file of clients instead. Raises
    ``ConfigError``, also for a client that would get more than ``options``.
    """
    from corral._serving.http.application import ServeApp
    from corral._serving.http.clients import SHORTEST, one_client, read_clients
    from corral._serving.http.server import RunServer

    if (token is None) == (clients is None):
        raise ConfigError("give token or clients, and not both")
    if token is not None and len(token) < SHORTEST:
        raise ConfigError(f"token must have at least {SHORTEST} characters")
    for name in _OF_CALLERS:
        if name in options:
            raise ConfigError(f"{name} is not an option of a server: a client sets it")
    given = options.pop("policy", None) or "reads"
    if not isinstance(given, Policy) and given not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError(f"policy must be one of {known}, or a Policy, got: {given!r}")
    timeout = options.pop("timeout", None)
    folders, pipelines = options.pop("folders", ()), options.pop("pipelines", {})
    allowance = Allowance(
        set_by="the application",
        agents=tuple(options.pop("agents", ())),
        models=tuple(options.pop("models", ())),
        policy=given if isinstance(given, Policy) else PRESETS[given],
        folders=tuple(str(Path(folder)) for folder in folders),
        pipelines={name: os.path.abspath(file) for name, file in pipelines.items()},
        timeout=DEFAULT_TIMEOUT if timeout is None else seconds(timeout),
        limits=pop_limits(options),
        concurrency=options.pop("concurrency", 4),
        depth=options.pop("depth", 1),
        answers=options.pop("answers", "questions"),
        label=options.pop("label", None) or "corral serve",
        options=cast("RunKwargs", options),
    )
    if clients is None:
        client = one_client(token or "")
        return ServeApp(RunServer(allowance, {client.name: client}), drain)
    file = Path(clients)
    return ServeApp(RunServer(allowance, read_clients(file), file), drain)
