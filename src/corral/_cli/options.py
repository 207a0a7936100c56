"""Options that several commands have: their definitions, and what is made of their values.

A command names the options of a run that it has (``run_options``); what is known of each stands in
``corral._option_definitions``. The name of the click parameter is the name of the option, so the
values of a command are the options of its run (``read_options``).

Modules are imported when an option is used, so that ``--help`` stays fast.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import click

from corral._cli.command_types import DURATION, Decorator, all_of, option, plain_option
from corral._core.lookup import LAST
from corral._core.spending import LIMITS
from corral._option_definitions import BY_NAME, DEFINITIONS, Kind
from corral.errors import ConfigError, PromptError
from corral.values import as_texts, is_sequence, text_or_none

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from corral._runs.run_record import Kind as RunKind
    from corral.policy import Policy, Preset
    from corral.run_kwargs import RunKwargs

C = TypeVar("C", bound=Callable[..., object])


PRESET_NAMES = ("reads", "edits", "all")

DB = option(
    "Execution",
    "--db URL",
    "The database: a file, or postgresql://user@host/name.  [default: CORRAL_DB, else"
    " a file in corral's home]",
)
NEWEST = plain_option(
    "-n --limit", "How many, the newest first.", type=click.IntRange(1, 1_000_000), default=20
)
JSON = plain_option("--json as_json", "Print JSON.")
IMPORT = option(
    "Execution",
    "--import modules MODULE...",
    "Import this module, which registers node types.",
    is_rare=True,
)
QUEUE = option(
    "Execution", "--queue NAME", "Let the workers of this queue do the work.", is_rare=True
)


def check_output_flags(*, as_json: bool, quiet: bool) -> None:
    """Raises ``ConfigError`` for ``--json`` with ``--quiet``, which prints only the answer."""
    if as_json and quiet:
        raise ConfigError("--json and --quiet are both given")


def count_option(names: str, help: str, default: int, **settings: Any) -> Decorator:
    """An option of the section *Execution* that is an integer of at least 1."""
    number = click.IntRange(1)
    return option("Execution", f"{names} N", help, type=number, default=default, **settings)


def completing(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Complete a value with the function of this name in ``corral._cli.completion``."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        from corral._cli import completion

        function: completion.Complete = getattr(completion, kind)
        return function(ctx, param, typed)

    return complete


def resolve_last(
    name: str, wanted: RunKind | None = None, *, cwd: str | None = None, db: str | None = None
) -> str:
    """The id of the newest run for ``last``; another name as it is. Raises as ``lookup.find``."""
    if name != LAST:
        return name
    from corral._runs import kinds, lookup

    return lookup.find(LAST, db=db, kinds=[wanted] if wanted else kinds.KINDS, cwd=cwd).id


def run_argument(
    wanted: RunKind | None, name: str = "name", *, completed: str, **arguments: Any
) -> Decorator:
    """An argument that names runs. Its value is an id where ``last`` is given."""

    def resolve(
        _: click.Context, __: click.Parameter, value: str | tuple[str, ...] | None
    ) -> str | tuple[str, ...] | None:
        if isinstance(value, tuple):
            return tuple(resolve_last(each, wanted) for each in value)
        return value if value is None else resolve_last(value, wanted)

    return click.argument(name, shell_complete=completing(completed), callback=resolve, **arguments)


RUN = click.argument("name", metavar="RUN", shell_complete=completing("runs"))


def agent_option(function: C) -> C:
    """``--agent``"""
    from corral._agents.registry import DEFAULT_AGENT

    text = "The agent, or any command that speaks ACP.  [default: CORRAL_AGENT, agent of"
    text += f" corral.toml, else {DEFAULT_AGENT}]"
    return option("Agent", "-a --agent NAME", text, shell_complete=completing("agents"))(function)


AGENTS = option(
    "Agent",
    "-a --agent NAME...",
    "An agent, vendor:model (the built-in agent on that model) or AGENT@MODEL; several as A,B,C.",
    shell_complete=completing("agents"),
)
"""``--agent`` of a command with several agents."""


def read_agents(agent: tuple[str, ...]) -> list[str]:
    """The names that were given with ``AGENTS``."""
    return [name.strip() for name in ",".join(agent).split(",") if name.strip()]


class PolicyFlags(TypedDict):
    """The values of ``policy_options``."""

    approve: Preset | None
    policy_file: str | None
    allow_tool: tuple[str, ...]
    deny_tool: tuple[str, ...]
    allow_host: tuple[str, ...]


def _serve_script(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Serve the script until the command ends, with its variables in the environment."""
    if path is None:
        return
    from corral.testing import ModelServer, Script

    server = context.with_resource(ModelServer(Script.load(path)))
    os.environ.update(server.env)
    context.meta[FAKE_FILE] = path


FAKE_FILE = "corral.fake"
"""The key of the context under which the file of ``--fake`` is."""
FAKE = option(
    "Tests",
    "--fake FILE",
    "Use the scripted model of this file (corral fake new): no key is needed, nothing is spent.",
    expose_value=False,
    callback=_serve_script,
)


policy_options: Decorator = all_of(
    (
        option(
            "Permissions",
            "--approve",
            "What the agent may do. The rest is asked, or denied if no one can answer.",
            type=click.Choice(PRESET_NAMES),
        ),
        option("Permissions", "--policy policy_file FILE", "A policy file (TOML).", is_rare=True),
        option("Permissions", "--allow-tool NAME...", "Allow only this tool.", is_rare=True),
        option("Permissions", "--deny-tool NAME...", "Never allow this tool.", is_rare=True),
        option(
            "Permissions",
            "--allow-host HOST...",
            "The only hosts that commands may reach: pypi.org, *.npmjs.org, x.org:8443.",
            is_rare=True,
        ),
    )
)
"""The options that ``choose_policy`` reads."""


def choose_policy(flags: PolicyFlags) -> Policy | None:
    """The policy of the options; None if none is given. Raises ``ConfigError``."""
    from corral._system import config
    from corral.policy import PRESETS

    approve, file = flags["approve"], flags["policy_file"]
    policy = None if approve is None else PRESETS[approve]
    if file is not None:
        if approve is not None:
            raise ConfigError(
                "--approve and --policy are both given", hint="Set preset in the file."
            )
        if file in PRESET_NAMES and not Path(file).exists():
            raise ConfigError(
                f"there is no policy file {file!r}", hint=f"Did you mean --approve {file}?"
            )
        policy = config.read_policy(Path(file))
    if flags["allow_tool"] or flags["deny_tool"] or flags["allow_host"]:
        from msgspec.structs import replace

        from corral.policy import Policy, with_tools

        policy = policy or Policy()
        if flags["allow_tool"]:
            policy = with_tools(policy, flags["allow_tool"])
        policy = replace(
            policy,
            deny_tools=(*policy.deny_tools, *flags["deny_tool"]),
            network_hosts=(*policy.network_hosts, *flags["allow_host"]),
        )
    return policy


def given_options(values: Mapping[str, object]) -> RunKwargs:
    """The options of a run that have a value; configuration applies to the others. Their types are
    checked when the run is prepared."""
    return cast("RunKwargs", {name: value for name, value in values.items() if value is not None})


def choose_agent(agent: str | None, options: RunKwargs) -> str:
    """The named agent; else the agent of the recording or of the resumed session; else the
    built-in agent if the model is vendor:model; else the default. A resumed session also sets
    ``options["model"]``."""
    from corral._system import config

    if agent is not None:
        return agent
    recording, resume = options.get("replay"), options.get("resume")
    if isinstance(recording, str):
        from corral._system.cassette import format

        recorded = format.read(recording)[0].head.agent
        if recorded is not None:
            return recorded
    if isinstance(resume, str):
        from corral._sessions import store

        return store.agent_of(resume, options)
    return config.default_agent(options.get("model"))


def choose_channel(agent: str, options: RunKwargs) -> None:
    """If the agent is a person at this terminal, ask there unless another channel is named."""
    from corral._system import config
    from corral._system.terminal import is_interactive

    found = config.find_agent(agent)
    if "via" in found.supports and "via" not in options and is_interactive():
        options.update(given_options({"via": config.load(found.name).get("via", "terminal")}))


def check_prompt_is_given(text: str | None, agent: str, options: RunKwargs) -> None:
    """Raise ``PromptError`` for a missing or empty prompt, before the agent is even searched. A
    configuration may name a file, and a resumed session may have a question that is still open."""
    from corral._system import config

    if (text or "").strip() or "resume" in options:
        return
    if config.load(config.find_agent(agent).name).get("prompt_file") is None:
        raise PromptError(
            "the prompt is empty" if text is not None else "there is no prompt",
            hint='Give it as an argument (corral run "…"), as a file (--file) or on stdin.',
        )


STDIN_SECONDS = 10.0
"""How long stdin may send nothing when it is read in addition to a prompt."""


def read_prompt_and_stdin(prompt: str | None, file: str | None) -> str | None:
    """As ``read_prompt``; if there is a prompt and stdin is a pipe or a file, its content is added
    to the prompt. Raises ``PromptError``."""
    text = read_prompt(prompt, file)
    if text is None or "-" in (prompt, file) or (prompt is None and file is None):
        return text
    added = _read_piped()
    if added is None:
        return text
    if not added:
        if sys.stderr.isatty() or _EXPECTS_STDIN.search(text):
            raise PromptError("stdin is empty", hint="Add </dev/null to run without it.")
        return text
    newline = "" if added.endswith("\n") else "\n"
    return f"{text}\n\n<stdin>\n{added}{newline}</stdin>"


_EXPECTS_STDIN = re.compile(
    r"\b(stdin|standard input|piped"
    r"|(this|the following) (git )?(diff|patch|log|output|input|text))\b",
    re.IGNORECASE,
)
"""A prompt that speaks of what is piped. At a terminal a pipe is enough: a person typed it."""


def _read_piped() -> str | None:
    """The content of stdin if it is a pipe, a socket or a file, else None. Raises ``PromptError``
    if it stays open and sends nothing: waiting for ever would be a hang, and going on would drop
    data."""
    import select
    import stat

    mode = os.fstat(sys.stdin.fileno()).st_mode
    if stat.S_ISREG(mode):
        return _read_stdin()
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    if not select.select([sys.stdin.fileno()], [], [], STDIN_SECONDS)[0]:
        raise PromptError(
            f"stdin is an open pipe that sent nothing for {STDIN_SECONDS:g} s",
            hint="Add </dev/null to run without it, or give - as the prompt to wait for it.",
        )
    return _read_stdin()


def read_prompt(prompt: str | None, file: str | None) -> str | None:
    """The prompt from the argument, a file or stdin; None if none was given (a configuration may
    name a file). Raises ``PromptError``."""
    if prompt is not None and file is not None:
        raise PromptError("a prompt and --file are both given", hint="Give one of them.")
    if "-" in (prompt, file):
        return _read_stdin()
    if prompt is not None:
        return prompt
    if file is None:
        return None if sys.stdin.isatty() else _read_stdin()
    try:
        return Path(file).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{file} is not UTF-8: {error}") from error
    except OSError as error:
        raise PromptError(f"the prompt file {file} cannot be read: {error.strerror}") from error


def _read_stdin() -> str:
    from corral._system.terminal import read_from_terminal

    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"stdin is not UTF-8: {error}") from error
    read_from_terminal()
    return text


def import_modules(modules: Iterable[str]) -> None:
    """Import the modules of ``--import``, user code that registers node types. As with
    ``python -m``, the current directory is on the path. Raises ``ConfigError``."""
    for name in modules:
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        try:
            import_module(name)
        except Exception as error:  # user code may raise anything on import
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"the module {name!r} cannot be imported: {reason}") from error


def check_queue(queue: str | None) -> None:
    """Raises ``ConfigError`` for ``--queue`` with ``--fake``: workers would call real models."""
    if queue is not None and script_option():
        raise ConfigError(
            "--queue and --fake are both given: the model of --fake is for this command only",
            hint="Start the worker with the variables that `corral fake serve` prints.",
        )


def script_option() -> str:
    """`` --fake FILE`` to append to a printed command, if this command has one; or ``""``."""
    context = click.get_current_context(silent=True)
    path = None if context is None else context.meta.get(FAKE_FILE)
    if path is None:
        return ""
    import shlex

    return f" --fake {shlex.quote(path)}"


def name_other_files(db: str | None) -> None:
    """Say on stderr which files have the runs of corrals of other formats, where the default file
    is listed."""
    from corral._cli.ui.terminal import echo
    from corral._engine.dbos import database

    if database.find(db).path == database.default_file():
        for file in database.other_default_files():
            echo(f"corral: runs of another format are listed with --db {file}", err=True)


def database_option(db: str | None) -> str:
    """`` --db URL`` to append to a printed command, without the password; or ``""``."""
    if not db:
        return ""
    import shlex

    from corral._engine.dbos.database import without_password

    return f" --db {shlex.quote(without_password(db))}"


def moment(option: str, text: str) -> float:
    """A point in time, given as a date or an age, in seconds since the epoch. Raises
    ``ConfigError``."""
    import time

    from corral._core.durations import seconds

    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except ValueError:
        pass
    try:
        return time.time() - seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}, or a date such as 2026-11-30") from error


ALL = tuple(each.name for each in DEFINITIONS if each.flags)
"""The options that have a flag."""
EVERYWHERE = tuple(each.name for each in DEFINITIONS if "every_command" in each.traits)
"""The options of every command that runs agents."""
VERIFICATION = tuple(each.name for each in DEFINITIONS if each.section == "Verification")
"""The options of what the work must pass."""
_COMPLETED = {"model": "models", "resume": "sessions"}
"""Option → the function of ``corral._cli.completion`` that completes its value."""
_ARGUMENTS: Mapping[Kind, dict[str, Any]] = {
    "text": {},
    "texts": {"multiple": True},
    "path": {"type": click.Path()},
    "paths": {"type": click.Path(), "multiple": True},
    "duration": {"type": DURATION},
    "count": {"type": int},
    "amount": {"type": float},
    "on": {"is_flag": True},
    "off": {"is_flag": True, "flag_value": False, "default": None},
    "switch": {"default": None},
}
_EMPTY = ("on", "texts", "paths")
"""Kinds of which click passes False or an empty tuple if the flag is not given, not None."""


def run_options(
    names: Iterable[str],
    *,
    texts: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> Decorator:
    """Add the flags of these options. ``texts`` and ``defaults``: what differs in this command."""
    other_texts, other_defaults = texts or {}, defaults or {}
    added: list[Decorator] = []
    for name in names:
        defined = BY_NAME[name]
        arguments = dict(_ARGUMENTS[defined.kind])
        if defined.choices:
            arguments["type"] = click.Choice(defined.choices)
        if name in _COMPLETED:
            arguments["shell_complete"] = completing(_COMPLETED[name])
        text = help_text(name, other_texts.get(name), other_defaults.get(name))
        spec = " ".join([*defined.flags, name, defined.value])
        is_rare = "common" not in defined.traits
        added.append(option(defined.section, spec, text, is_rare=is_rare, **arguments))

    return all_of(added)


def help_text(name: str, text: str | None = None, default: str | None = None) -> str:
    """The help of an option's flag."""
    defined = BY_NAME[name]
    text = text or defined.text
    if _ARGUMENTS[defined.kind].get("multiple"):
        text = f"{text.removesuffix('.')} (repeatable)."
    default = default or defined.default
    return f"{text}  [default: {default}]" if default else text


_NAMES = "|".join(BY_NAME)
_NAMED = re.compile(
    rf"^(?P<name>{_NAMES})(?P<of_task> of task)?(?= must be | is empty| needs | and )"
    rf"|(?<= needs )(?P<needed>{_NAMES})(?=:|$)|(?<= and )(?P<other>{_NAMES})(?= both given)"
    r"|(?P<flag>--[\w-]+(?: \w+)?) \(\w+=[^()]*\)"
    r"|\w+=\w+ \((?P<twin>--[\w-]+)\)"
)
"""An option by its name in Python, where an error begins with it; and one in both forms."""


def as_flags(text: str) -> str:
    """The text of an error or a hint with the flags of options, and without their names in
    Python. What begins with the name of a file is about a key of that file, and stays."""

    def flag(found: re.Match[str]) -> str:
        name = found["name"] or found["needed"] or found["other"]
        if name is None:
            return found["flag"] or found["twin"]
        if found["of_task"]:
            return f"--task-{name.replace('_', '-')}"
        flags = BY_NAME[name].flags
        return flags[-1].partition("/")[0] if flags else name

    return _NAMED.sub(flag, text)


def limit_texts(whose: str) -> dict[str, str]:
    """The help of the limits on what ``whose`` model calls may use together."""
    texts = {limit: BY_NAME[limit].text for limit in LIMITS}
    return {limit: f"For {whose}: {text[0].lower()}{text[1:]}" for limit, text in texts.items()}


def task_limit_options(whose: str) -> Decorator:
    """The limits of one part within those of the run: ``--task-max-cost`` and so on."""

    return all_of(
        option(
            "Limits",
            f"--task-{name.replace('_', '-')} {BY_NAME[name].value}",
            text,
            type=LIMITS[name].number,
            is_rare=True,
        )
        for name, text in limit_texts(whose).items()
    )


def read_limits(flags: Mapping[str, object], prefix: str = "") -> dict[str, float]:
    """The limits that were given; with a ``prefix``, those of ``task_limit_options``."""
    given = cast("Mapping[str, float | None]", flags)
    limits = {name: given[f"{prefix}{name}"] for name in LIMITS}
    return {name: limit for name, limit in limits.items() if limit is not None}


def read_options(flags: PolicyFlags) -> RunKwargs:
    """The options that were given, of all values of a command; configuration applies to the
    others. Their types are checked when the run is prepared. Raises ``ConfigError``."""
    values: Mapping[str, object] = flags
    given: dict[str, object] = {}
    for name in ALL:
        value = values.get(name)
        if is_sequence(value):
            value = list(value)
        given[name] = value if value or BY_NAME[name].kind not in _EMPTY else None
    if isinstance(resume := given.get("resume"), str):
        given["resume"] = resolve_last(resume, "session", cwd=text_or_none(values.get("cwd")))
    given["policy"] = choose_policy(flags)
    for name in as_texts(given.get("pass_env")):
        if name.isidentifier() and name not in os.environ:
            from corral._cli.ui.terminal import echo

            echo(f"corral: --env {name}: this variable is not set here", err=True)
    return given_options(given)
