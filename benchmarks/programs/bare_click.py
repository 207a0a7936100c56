"""A minimal click program with as many commands as corral, for ``--help``."""

import click


@click.group()
@click.version_option("0.1.0")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Read this.")
def command(config: str | None) -> None:
    """Run coding agents through one interface."""


@command.command()
@click.argument("prompt", required=False)
def run(prompt: str | None) -> None:
    """Run an agent with a prompt."""


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
