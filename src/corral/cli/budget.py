"""``corral sessions budget``: raise the budget of a running session, pipeline or batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from corral.cli.options import completing
from corral.cli.ui.terminal import echo
from corral.core.spending import LIMITS, Raise
from corral.errors import ConfigError, ResumeLost

if TYPE_CHECKING:
    from corral.live.records import LiveRun
    from corral.metering.budget import Budget

MOST = 10**12
UNITS = {limit: kind.unit for limit, kind in LIMITS.items() if limit != "max_cost"}
"""Limits that are raised with a flag, which is their unit."""


def _unit_flags(command: Callable[..., None]) -> Callable[..., None]:
    for limit, unit in reversed(UNITS.items()):
        text = f"For {limit}: +N more, or N in total."
        command = click.option(f"--{unit}", metavar="N", help=text)(command)
    return command


# "-1.00" is an amount that is refused with a reason, not an unknown option.
@click.command("budget", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="ID", shell_complete=completing("sessions"))
@click.argument("amount", metavar="[AMOUNT]", required=False)
@_unit_flags
@click.option("--db", metavar="DB", help="The database of a pipeline or batch.")
def budget(name: str, *, amount: str | None, db: str | None, **units: str | None) -> None:
    """Raise the budget of a running session, pipeline or batch.

    AMOUNT is in USD and changes max_cost: +1.00 is that much more, 5.00 the new limit. ID is a
    session, a run or a batch, the beginning of its id, or 'last'. A run that waits because its
    budget is spent goes on.
    """
    from corral import live

    given = {"max_cost": amount, **{name: units[unit] for name, unit in UNITS.items()}}
    texts = {limit: text for limit, text in given.items() if text is not None}
    if not texts:
        raise ConfigError("no amount is given", hint="For example: corral sessions budget ID +1.00")
    if len({text.startswith("+") for text in texts.values()}) > 1:
        raise ConfigError("write all amounts with +, or none")
    is_total = not any(text.startswith("+") for text in texts.values())
    amounts = Raise.of({limit: _number(limit, text) for limit, text in texts.items()})
    found = live.find(name)
    if found is not None and found[1].db is None:
        run = found[1]
        more = _missing(run, amounts) if is_total else amounts
        live.add_budget(run.id, **asdict(more))
        echo(f"{run.id}: the budget is raised")
        return
    run_id, where = (name, db) if found is None else (found[1].id, db or _database(found[1]))
    raised = _raise_durable(run_id, amounts, is_total, where)
    echo(f"{run_id}: {_limits(raised)}")


def _number(limit: str, text: str) -> float:
    flag = f"--{UNITS[limit]}" if limit in UNITS else "AMOUNT"
    try:
        number = int(text.replace("_", "")) if limit in UNITS else float(text)
    except ValueError:
        kind = "a whole number" if limit in UNITS else "a number"
        raise ConfigError(f"{flag} must be {kind}, such as +1 or 5, got: {text!r}") from None
    if not 0 < number < MOST:
        raise ConfigError(f"{flag} must be greater than 0, got: {text}")
    return number


def _missing(run: LiveRun, totals: Raise) -> Raise:
    """By how much the budget of a live run must be raised."""
    from corral.metering.budget import Budget

    if not run.budgets:
        raise ConfigError(f"{run.id} has no budget that can be raised")
    limits = {limit: getattr(run.budgets[0], limit) for limit in LIMITS}
    return Budget(**limits).missing(totals)


def _database(run: LiveRun) -> str | None:
    """That of a run of another process; a server's password is not known here."""
    return None if run.db is None or "***" in run.db else run.db


def _raise_durable(name: str, amounts: Raise, is_total: bool, db: str | None) -> Budget:
    """A pipeline or a batch in a database; none of its processes need run on this machine."""
    from corral.engine.dbos import database
    from corral.sessions import store

    if database.is_installed() and database.is_there(database.find(db)):
        from corral.engine import budget_raise

        if asyncio.run(budget_raise.exists(name, db=db)):
            return asyncio.run(budget_raise.add_budget(name, amounts, is_total=is_total, db=db))
    try:
        session = store.find(name).meta.id
    except ResumeLost:
        raise ConfigError(
            f"no run is called {name!r}",
            hint="corral sessions list and corral pipeline runs show what runs.",
        ) from None
    raise ConfigError(
        f"session {session} does not run: only the budget of a running one can be raised",
        hint=f"Resume it with a larger budget: corral run --resume {session} --max-cost USD",
    )


def _limits(raised: Budget) -> str:
    shown = [f"{name}={limit:g}" for name in LIMITS if (limit := getattr(raised, name)) is not None]
    return f"the budget is {', '.join(shown)}, of which ${raised.spent.cost:.4f} are spent"
