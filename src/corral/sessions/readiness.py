"""What is missing to use an agent here: its credentials, and the way to its model's service.

Nothing is started. The agent's own ``launch``, which is a pure function, chooses the credentials
exactly as for a run.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral.agents.spec import InProcess
from corral.errors import AuthenticationFailed, ConfigError, CorralError, NetworkFailed
from corral.sessions.network_watch import unreachable
from corral.sessions.prepared_run import PreparedRun
from corral.system.http.reachability import why_unreachable

_NOTES = ("authentication: ", "credentials: ")


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a prompt could be sent."""

    credential: str | None = None
    """The variable or the login file that would be used, if it is known."""
    accepts: tuple[str, ...] = ()
    """The variables and login files that the agent takes."""
    service_url: str | None = None
    missing: CorralError | None = None
    """What is missing, with a hint; None if nothing is."""


async def readiness(prepared: PreparedRun) -> Readiness:
    """Check the credentials, and if they are there, the way to the model's service."""
    found = _credentials(prepared)
    if found.missing is not None or found.service_url is None:
        return found
    reason = await why_unreachable(found.service_url)
    problem: NetworkFailed | None = None if reason is None else unreachable(reason)
    return msgspec.structs.replace(found, missing=problem)


def accepted(prepared: PreparedRun) -> tuple[str, ...]:
    """Variables with a key, then the files of a login, as they are written for a person."""
    agent = prepared.agent
    files = agent.login_files or agent.credential_files
    return (*agent.secret_env, *(f"~/{name}" for name in files))


def _credentials(prepared: PreparedRun) -> Readiness:
    accepts = accepted(prepared)
    try:
        if isinstance(prepared.agent.transport, InProcess):
            # The built-in agent calls the model itself. A person needs no credentials.
            from corral.inference.client import Client

            model = prepared.run.model
            if model is None:
                return Readiness(accepts=accepts)
            agent_values = prepared.environment.agent_values
            url = Client(environ=dict(agent_values)).check(model)
            name = next(
                (name for name in prepared.agent.secret_env if agent_values.get(name)), None
            )
            return Readiness(credential=name, accepts=accepts, service_url=url)
        context = prepared.launch_context(Path(prepared.cwd))
        launch = prepared.agent.launch(prepared.run, context, "", None)
    except (AuthenticationFailed, ConfigError) as error:
        return Readiness(accepts=accepts, missing=error)
    notes = (note.removeprefix(sign) for note in launch.notes for sign in _NOTES if sign in note)
    return Readiness(credential=next(notes, None), accepts=accepts, service_url=launch.service_url)
