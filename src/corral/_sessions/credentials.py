"""Which credentials an agent gets: an API key, or the sign-in of a subscription.

With ``auth``, only that kind reaches the agent. Without it, a run is refused if both are present:
otherwise the caller could pay per token without knowing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from corral._agents import registry as agents_registry
from corral._agents.spec import AgentSpec, InProcess
from corral._core.protected_paths import Links
from corral._system import config, environment, fs, paths
from corral._system.environment import Environment
from corral.errors import AuthenticationFailed, ConfigError
from corral.options import RunOptions

if TYPE_CHECKING:
    from corral._sessions.prepared_run import PreparedRun

CredentialKind = Literal["api_key", "subscription"]


class ChosenCredentials(msgspec.Struct, frozen=True):
    environment: Environment
    files: tuple[str, ...]
    """Of the agent's credential files, those that reach it."""
    kind: CredentialKind | None
    """None if unknown."""


def choose_credentials(
    agent: AgentSpec, run: RunOptions, environment: Environment, files: tuple[str, ...]
) -> ChosenCredentials:
    """Choose the credentials. Raises ``ConfigError`` if both kinds are present,
    ``AuthenticationFailed`` if the requested one is missing."""
    available = environment.agent_values
    keys = [name for name in _key_names(agent) if available.get(name)]
    login_names = [name for name in agent.subscription_env if available.get(name)]
    login_files = [f"~/{name}" for name in files if name in (agent.login_files or files)]
    logins = [*login_names, *login_files]
    match run.auth:
        case "api_key":
            if not keys:
                raise AuthenticationFailed(
                    f"auth='api_key', but no API key for {agent.title} is set",
                    hint=f"Set {' or '.join(_key_names(agent)) or 'its key'}.",
                    phase="config",
                )
            return ChosenCredentials(_without(environment, login_names), (), "api_key")
        case "subscription":
            if not logins:
                raise AuthenticationFailed(
                    f"auth='subscription', but there is no sign-in to {agent.title} here",
                    hint="Run the agent once by itself and sign in.",
                    phase="config",
                )
            return ChosenCredentials(_without(environment, keys), files, "subscription")
        case None if keys and logins:
            raise ConfigError(
                f"{agent.title} could be paid for in two ways: {keys[0]}, or the sign-in of"
                f" {logins[0]}",
                hint="Set auth='api_key' or auth='subscription' (--auth); 'inherit' leaves it to"
                " the agent.",
            )
        case _:
            kind: CredentialKind | None = "subscription" if logins else None
            return ChosenCredentials(environment, files, "api_key" if keys else kind)


def check_model_key(agent: AgentSpec, run: RunOptions) -> None:
    """For an agent that calls the model itself: raise ``MissingKey`` before the first prompt. A
    recording needs no key."""
    is_called_here = isinstance(agent.transport, InProcess) and run.replay is None
    if is_called_here and run.model is not None and agents_registry.names_a_model(run.model):
        from corral._models import registry
        from corral._system import api_keys

        api_keys.access(registry.split_model(run.model)[0], environment.variables(run.env))


def check_ready(prepared: PreparedRun, session: str) -> None:
    """Raise what would keep the first prompt of a session from being sent, such as missing
    credentials. Nothing is started or written."""
    if isinstance(prepared.agent.transport, InProcess):
        check_model_key(prepared.agent, prepared.run)
    elif prepared.run.replay is None:
        prepared.launch(prepared.launch_context(paths.sessions() / session, Links()))


def needed(agent: AgentSpec) -> bool:
    """Whether the agent needs credentials, as far as its record says."""
    if "person" in agent.capabilities:
        return False
    return bool(agent.secret_env or agent.credential_files or agent.for_run)


def found(agent: AgentSpec) -> tuple[str, ...]:
    """The variables and the login files for this agent that are here; of the built-in agent those
    of every vendor."""
    if not needed(agent):
        return ()
    if agent.for_run is not None:
        from corral._system.api_keys import keys_that_are_set

        return keys_that_are_set()
    run = RunOptions.build(agent.name, {}, config.load(agent.name))
    available = environment.gather(agent, run).agent_values
    home = paths.user_home()
    files = [name for name in agent.login_files or agent.credential_files if fs.exists(home / name)]
    return (
        *(name for name in agent.secret_env if available.get(name)),
        *(f"~/{name}" for name in files),
    )


def _key_names(agent: AgentSpec) -> list[str]:
    return [name for name in agent.secret_env if name not in agent.subscription_env]


def _without(environment: Environment, names: list[str]) -> Environment:
    def remaining(values: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in values.items() if name not in names}

    return replace(
        environment,
        values=remaining(environment.values),
        agent_values=remaining(environment.agent_values),
    )
