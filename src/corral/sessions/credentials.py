"""Whose bill it is: a key of an API, or the sign-in of a subscription.

Told, only that family reaches the agent. Not told, and both are there: refused, for
whoever pays by the token without knowing it finds out at the end of the month.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from corral.agents.spec import AgentSpec
from corral.errors import AuthenticationFailed, ConfigError
from corral.options import RunOptions
from corral.system.environment import Environment

Family = Literal["api_key", "subscription"]


class Chosen(msgspec.Struct, frozen=True):
    environment: Environment
    files: tuple[str, ...]
    """Of the agent's credential files, those that reach it."""
    family: Family | None
    """None where nobody can tell."""


def choose(
    agent: AgentSpec, run: RunOptions, environment: Environment, files: tuple[str, ...]
) -> Chosen:
    """Raises ``ConfigError`` for an ambiguity, ``AuthenticationFailed`` for what is missing."""
    held = environment.family
    keys = [n for n in agent.secret_env if n not in agent.subscription_env and held.get(n)]
    logins = [name for name in agent.subscription_env if held.get(name)]
    signed = [f"~/{name}" for name in files if name in (agent.login_files or files)]
    family: Family | None = "api_key" if keys else "subscription" if logins or signed else None
    match run.auth:
        case "api_key":
            if not keys:
                raise AuthenticationFailed(
                    f"auth='api_key', and no key for {agent.title} is set",
                    hint=f"Set {' or '.join(_keys_of(agent)) or 'its key'}.",
                    phase="config",
                )
            return Chosen(_without(environment, logins), (), "api_key")
        case "subscription":
            if not logins and not signed:
                raise AuthenticationFailed(
                    f"auth='subscription', and nobody has signed in to {agent.title} here",
                    hint="Run the agent once by itself and sign in.",
                    phase="config",
                )
            return Chosen(_without(environment, keys), files, "subscription")
        case None if keys and (logins or signed):
            raise ConfigError(
                f"{agent.title} could be paid for in two ways: {keys[0]}, or the sign-in of"
                f" {(*logins, *signed)[0]}",
                hint="Say auth='api_key' or auth='subscription' (--auth); 'inherit' leaves it to"
                " the agent.",
            )
        case _:
            return Chosen(environment, files, family)


def _keys_of(agent: AgentSpec) -> list[str]:
    return [name for name in agent.secret_env if name not in agent.subscription_env]


def _without(environment: Environment, names: list[str]) -> Environment:
    def kept(values: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in values.items() if name not in names}

    return replace(environment, values=kept(environment.values), family=kept(environment.family))
