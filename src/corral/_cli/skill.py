"""``corral skill``: the skill that teaches other agents to use corral, and the plugin that has it.

Both are files of the package, below ``corral/.agents``: the folder is a plugin (and a marketplace
with this one plugin) for Claude Code and Codex, and ``library-skills`` finds the skill there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Literal

import click

from corral._cli.command_types import plain_option
from corral._cli.options import completing
from corral._cli.ui.terminal import echo
from corral._system import config, fs, paths
from corral.errors import ConfigError, StorageFailed

PLUGIN = Path(str(files("corral"))) / ".agents"
SKILL = PLUGIN / "skills" / "corral"
COMMON = ".agents/skills"
"""The folder that most agents read."""


@click.group("skill")
def command() -> None:
    """Show or install the skill that teaches agents to use corral."""


@command.command("show")
@plain_option(
    "--plugin", "Print the folder that Claude Code and Codex take as a marketplace of plugins."
)
def show(plugin: bool) -> None:
    """Print the skill."""
    echo(str(PLUGIN) if plugin else fs.read_text(SKILL / "SKILL.md").rstrip())


@command.command("install")
@plain_option(
    "-a --agent agents NAME...",
    f"Install it where this agent looks for skills.  [default: {COMMON}, which most agents read]",
    shell_complete=completing("agents"),
)
@plain_option("--user", "Install it for all your projects, in your home folder.")
@plain_option(
    "-C --cwd DIR", "The project.  [default: here]", type=click.Path(exists=True, file_okay=False)
)
@plain_option("--force", "Replace a skill that differs.")
def install(agents: tuple[str, ...], user: bool, cwd: str | None, force: bool) -> None:
    """Copy the skill to where agents look for skills.

    That is a folder of this project, or of your home.

    A skill that is there and differs (of another version of corral, or changed by you) is kept,
    unless --force is given.
    """
    if user and cwd is not None:
        raise ConfigError("--user and --cwd are both given")
    root = paths.user_home() if user else Path(cwd or os.getcwd())
    content = {
        str(path.relative_to(SKILL)): fs.read_bytes(path) for path in sorted(fs.files_below(SKILL))
    }
    targets = sorted(root / folder / SKILL.name for folder in _folders(agents))
    states = {target: _state(target, content) for target in targets}
    differing = [str(target) for target, state in states.items() if state == "differs"]
    if differing and not force:
        raise ConfigError(
            f"another version of the skill is there: {', '.join(differing)}",
            hint="It is of another version of corral, or was changed. --force replaces it.",
        )
    for target, state in states.items():
        if state != "same" and not user:  # a link in the home folder is the user's own
            _refuse_links(root, (target / name for name in content))
    for target, state in states.items():
        if state == "same":
            echo(f"{target} is up to date")
            continue
        _write(target, content)
        echo(f"{'installed' if state == 'missing' else 'replaced'} {target}")
    readers = [each for each in config.all_agents() if each.skill_folder == COMMON]
    if not agents:
        names = ", ".join(dict.fromkeys(each.title for each in readers))
        echo(f"It is read by {names}. For another agent: --agent NAME, such as --agent claude")


def _folders(agents: tuple[str, ...]) -> set[str]:
    """The folders in which agents look for skills. Raises ``ConfigError`` for one without."""
    folders: set[str] = set()
    for name in agents:
        agent = config.find_agent(name)
        if not agent.skill_folder:
            raise ConfigError(f"corral does not know where {agent.title} looks for skills")
        folders.add(agent.skill_folder)
    return folders or {COMMON}


def _state(target: Path, content: dict[str, bytes]) -> Literal["missing", "same", "differs"]:
    """A link to the same skill, as library-skills makes it, is the same."""
    if not os.path.lexists(target):
        return "missing"
    same = all(fs.read_small(target / name, len(data)) == data for name, data in content.items())
    return "same" if same else "differs"


def _refuse_links(root: Path, written: Iterable[Path]) -> None:
    """Raises ``ConfigError`` if a link of a repository would have files written outside it."""
    for file in written:
        if not Path(fs.real_path(file.parent)).is_relative_to(fs.real_path(root)):
            raise ConfigError(f"{file.parent} leads out of {root}: a folder on the way is a link")


def _write(target: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        file = target / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            fs.write_atomically(file, data, mode=0o644)
        except OSError as error:
            raise StorageFailed(f"{file} cannot be written: {error.strerror}") from error
