"""The least that a program with click's ``--help`` can be, with as many commands as corral."""

import click


@click.group()
@click.version_option("0.1.0")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Read this.")
def command(config: str | None) -> None:
    """Drive every coding agent through one gate."""


@command.command()
@click.argument("prompt", required=False)
def run(prompt: str | None) -> None:
    """Give an agent a prompt and see it through."""


@command.command()
def agents() -> None:
    """List, install, inspect and test agents."""


@command.command()
def sessions() -> None:
    """List, show and export past sessions."""


@command.command()
def fake() -> None:
    """Serve a scripted model, for tests and demos."""


command()
