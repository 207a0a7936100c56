"""Checks of a launch that several agents need, made before anything is spawned."""

from __future__ import annotations

from collections.abc import Iterable

from corral.agents.spec import LaunchContext
from corral.errors import AuthenticationFailed, ConfigError, UntrustedFolder
from corral.options import RunOptions


def refuse_project_files(run: RunOptions, place: LaunchContext, what: str, hint: str = "") -> None:
    """For an agent that would obey files of the repository regardless of its settings. Raises
    ``UntrustedFolder`` unless the repository is trusted; ``what`` describes the effect."""
    if run.inherit == "nothing" and place.project_files:
        trust = "If you trust them, set inherit='project' (--inherit project)"
        raise UntrustedFolder(
            f"{what}: {', '.join(place.project_files[:5])}",
            hint=f"{trust}; {hint}." if hint else f"{trust}.",
            phase="config",
        )


def refuse_user_settings(run: RunOptions) -> None:
    """For an agent that cannot combine the user's settings with ours."""
    if run.inherit == "user":
        raise ConfigError(f"{run.agent} cannot inherit the user's settings")


def check_effort(run: RunOptions, title: str, efforts: tuple[str, ...]) -> None:
    effort = run.reasoning_effort
    if effort is not None and effort not in efforts:
        raise ConfigError(
            f"{title} has no effort {effort!r}", hint=f"It has: {', '.join(efforts)}."
        )


def find_credentials(place: LaunchContext, names: Iterable[str], title: str, hint: str) -> str:
    """The first of these variables, or of the login files, that exists. Raises
    ``AuthenticationFailed`` if none does."""
    found = [name for name in names if place.env.get(name)]
    found += [f"~/{name}" for name in place.credentials]
    if not found:
        raise AuthenticationFailed(
            f"no credentials for {title} were found", hint=hint, phase="config"
        )
    return found[0]
