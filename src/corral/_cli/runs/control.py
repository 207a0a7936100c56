"""``corral runs answer``, ``cancel``, ``budget`` and ``steer``: change what happens in a run. They
execute nothing: the process that works on the run reacts, or the database has it."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING

import click
import msgspec

from corral._cli.command_types import all_of, examples, plain_option
from corral._cli.options import DB, JSON, completing, database_option, read_prompt
from corral._cli.ui.terminal import echo, echo_json
from corral._core.spending import LIMITS, dollars
from corral._runs import act, verbs
from corral._runs.run_record import Run
from corral.errors import ConfigError
from corral.events import Decision

if TYPE_CHECKING:
    from corral._core.spending import BudgetState

RUN = click.argument("run", metavar="RUN", shell_complete=completing("runs"))
STDIN = "-"


@click.command(
    "answer",
    epilog=examples(
        "corral runs answer last --allow", 'corral runs answer last Yes --text "Only the docs"'
    ),
)
@click.argument("words", metavar="[RUN] [TEXT]", nargs=-1, shell_complete=completing("runs"))
@plain_option("--allow decision", "Allow the tool call.", flag_value="allow_once")
@plain_option(
    "--allow-session decision",
    "Allow it, and the same call later in the session.",
    flag_value="allow_session",
)
@plain_option("--deny decision", "Deny the tool call.", flag_value="deny")
@plain_option("--cancel decision", "Deny it, and stop the agent.", flag_value="cancel")
@plain_option("--request ID", "Which request or gate, if several are open.", default="")
@plain_option("--text comment", "A comment beside the choice of a gate.", default="")
@plain_option("--skip", "Refuse to answer a gate: it fails.")
@plain_option("-f --file FILE", "Read the text from FILE; - is stdin.")
@plain_option("--token TOKEN", "Instead of RUN: the token of a notification; - is stdin.")
@DB
def answer(
    words: tuple[str, ...],
    *,
    decision: Decision | None,
    request: str,
    comment: str,
    skip: bool,
    file: str | None,
    token: str | None,
    db: str | None,
) -> None:
    """Answer what RUN waits for: a permission with --allow or --deny, a question or a gate with
    TEXT, --file or stdin.

    For a gate, TEXT is the key, label or target of a choice, or the answer itself. For a question
    of an agent, it is an option, its number, or the answer; for several fields one line each, or a
    JSON object; --deny declines it. RUN need not be running. The first answer counts.
    """
    most = 1 if token is not None else 2
    if len(words) > most or (token is None and not words):
        raise ConfigError(
            "give the id of a run and at most one text, or --token and at most one text",
            hint="Quote a text that has spaces.",
        )
    text = words[-1] if len(words) == most else None
    if file is not None:
        if text is not None:
            raise ConfigError("TEXT and --file are both given")
        text = read_prompt(None, file)
    if sum((decision is not None, text is not None, skip)) > 1:
        raise ConfigError("only one of a decision, a text and --skip is an answer")
    if token is not None:
        used = _answer_token(token, decision, text, comment)
        echo(f"{used} received the answer")
        return
    if decision is None and text is None and not skip:
        # A comment alone answers a gate that asks for a text.
        text = "" if comment else (read_prompt(None, STDIN) or "")
        if not (text.strip() or comment):
            raise ConfigError(
                "the answer is empty",
                hint=f"For example: corral runs answer {words[0]} --allow, or a text.",
            )
    try:
        by = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no user name for this uid
        by = "corral runs answer"
    asyncio.run(
        act.answer(
            words[0],
            text,
            decision=decision,
            request=request,
            comment=comment,
            skip=skip,
            by=by,
            db=db,
        )
    )
    run = _find(words[0], db)
    echo(f"{run.id} received the answer")
    if run.state == "interrupted" or (run.state == "waiting" and not run.needs):
        resume = f"corral runs resume {run.id}{database_option(db)}"
        echo(f"the run is not active; continue with: {resume}", err=True)


def _answer_token(token: str, decision: Decision | None, text: str | None, comment: str) -> str:
    if token == STDIN:
        token = (read_prompt(None, STDIN) or "").strip()
    if decision is None and not (text or "").strip():
        raise ConfigError("the answer is missing", hint="Give --allow, --deny or a text.")
    by = "corral runs answer --token"
    used = act.answer_with_token_sync(
        token, decision=decision, answer=text or "", comment=comment, by=by
    )
    return used.run


def _find(name: str, db: str | None) -> Run:
    return asyncio.run(verbs.show(name, db=db)).run


@click.command("cancel")
@RUN
@plain_option("--reason", "The reason, stored with the run.", default="")
@DB
def cancel(run: str, reason: str, db: str | None) -> None:
    """End RUN and everything that works for it. What is finished stays."""
    found = _find(run, db)
    asyncio.run(act.cancel(found.id, reason=reason, db=db))
    echo(f"{found.id} is cancelled")


@click.command("steer")
@RUN
@click.argument("text")
@DB
def steer(run: str, text: str, db: str | None) -> None:
    """Send TEXT to the agent of RUN while it works."""
    found = _find(run, db)
    asyncio.run(act.steer(found.id, text, db=db))
    echo(f"{found.id} received the text")


UNITS = {limit: kind.unit for limit, kind in LIMITS.items() if limit != "max_cost"}
"""Limits that are raised with a flag, which is their unit."""


# "-1.00" is an amount that is refused with a reason, not an unknown option.
@click.command(
    "budget",
    context_settings={"ignore_unknown_options": True},
    epilog=examples("corral runs budget last", "corral runs budget last +1.00"),
)
@RUN
@click.argument("amount", metavar="[AMOUNT]", required=False)
@all_of(
    plain_option(f"--{unit} N", f"For {limit}: +N more, or N in total.")
    for limit, unit in UNITS.items()
)
@DB
@JSON
def budget(
    run: str, *, amount: str | None, db: str | None, as_json: bool, **units: str | None
) -> None:
    """Show or raise the limits of RUN, in any state.

    AMOUNT is in USD and changes max_cost: +1.00 is that much more, 5.00 the new limit. It counts
    for the next model call: a run that waits because its budget is spent goes on, and one that has
    failed at it goes on with `corral runs resume`.
    """
    given = {"max_cost": amount, **{name: units[unit] for name, unit in UNITS.items()}}
    texts = {limit: text for limit, text in given.items() if text is not None}
    if len({text.startswith("+") for text in texts.values()}) > 1:
        raise ConfigError("write all amounts with +, or none")
    add = any(text.startswith("+") for text in texts.values())
    amounts = {limit: _amount(limit, text) for limit, text in texts.items()}
    found = _find(run, db)
    state = asyncio.run(
        act.budget(
            found.id,
            max_cost=amounts.get("max_cost"),
            max_total_tokens=_as_int(amounts.get("max_total_tokens")),
            max_calls=_as_int(amounts.get("max_calls")),
            add=add,
            db=db,
        )
    )
    if as_json:
        echo_json(msgspec.json.encode(state))
    else:
        echo(f"{found.id}: {_text(state)}")


def _text(state: BudgetState | None) -> str:
    if state is None:
        return "there is no budget"
    limits = [f"{key}={limit:g}" for key in LIMITS if (limit := getattr(state, key)) is not None]
    paused = "; a call waits until it is raised" if state.is_paused else ""
    return f"the budget is {', '.join(limits)}, of which {dollars(state.cost)} are spent{paused}"


def _as_int(number: float | None) -> int | None:
    return None if number is None else int(number)


def _amount(limit: str, text: str) -> float:
    flag = f"--{UNITS[limit]}" if limit in UNITS else "AMOUNT"
    try:
        number = int(text.replace("_", "")) if limit in UNITS else float(text)
    except ValueError:
        kind = "a whole number" if limit in UNITS else "a number"
        raise ConfigError(f"{flag} must be {kind}, such as +1 or 5, got: {text!r}") from None
    if not 0 < number < 10**12:
        raise ConfigError(f"{flag} must be greater than 0, got: {text}")
    return number
