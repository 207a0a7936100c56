"""``new`` of pipelines and of workflows: files to start with, which are in the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

from corral._cli.command_types import plain_option
from corral._cli.ui.terminal import echo
from corral.errors import ConfigError


class Starter:
    """A file of the folder ``starters`` of a package. ``name``: as users write it."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        """Names its own file where it shows how to run it."""
        self.name: str = file.rpartition(".")[0].replace("_", "-")
        self.about: str = text.partition("\n")[0].strip('/" ')


def find_starters(package: str, suffix: str) -> dict[str, Starter]:
    """The starters of a package, by their names."""
    files = (resources.files(package) / "starters").iterdir()
    found = [Starter(file.name, file.read_text("utf-8"))
             for file in files if file.name.endswith(suffix)]  # fmt: skip
    return {each.name: each for each in sorted(found, key=lambda each: each.name)}


def new_command(package: str, suffix: str, about: str, advice: str) -> click.Command:
    """The command ``new NAME [FILE]``. ``advice``: what comes next; ``{}`` is the file."""

    @click.command("new", help=f"{about} Without FILE, it is named after NAME; an existing file is"
                   " not overwritten.")  # fmt: skip
    @click.argument("name", required=False)
    @click.argument("file", required=False)
    @plain_option("--list listed", "List the names.")
    def new(name: str | None, file: str | None, listed: bool) -> None:
        known = find_starters(package, suffix)
        if listed:
            for each in known.values():
                echo(f"{each.name:20} {each.about}")
            return
        if (starter := known.get(name or "")) is None:
            problem = f"there is no template {name!r}" if name else "name a template"
            raise ConfigError(problem, hint=f"Known: {', '.join(known)}.")
        path = Path(file or starter.file)
        write_new_file(path, starter.text.replace(starter.file, str(path)))
        echo(f"{path}")
        echo(advice.format(path), err=True)

    return new


def write_new_file(path: Path, text: str) -> None:
    """Raises ``ConfigError`` if the file exists, or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} already exists", hint="Name another file.") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
