"""Every option of a run, described once.

The flags of the command line, their help, the table in ``docs/configuration.md`` and the docstrings
of ``RunKwargs`` are made of these records or equal them; ``tests/test_option_definitions.py``
checks that. Types and defaults are those of ``corral.options.RunOptions``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Section: TypeAlias = Literal[
    "Prompt",
    "Agent",
    "Permissions",
    "Limits",
    "Session",
    "Execution",
    "Verification",
    "Output",
    "Tests",
]
"""The sections of ``--help``, in their order."""

Kind: TypeAlias = Literal[
    "text", "texts", "path", "paths", "duration", "count", "amount", "on", "off", "switch"
]
"""How a value is given on the command line. ``texts`` and ``paths``: the flag may be repeated.
``on``: the flag sets True. ``off``: it sets False. ``switch``: one flag sets True, another one
False."""

Trait: TypeAlias = Literal[
    "common",
    "every_agent",
    "acp",
    "prompt",
    "pool_prompt",
    "node",
    "every_command",
    "one_agent",
    "one_run",
    "untrusted",
]
"""
- ``common``: ``--help`` shows it; ``--help-all`` also shows the others.
- ``every_agent``: corral does it, for any agent. What an agent has besides is in its ``AgentSpec``.
- ``acp``: corral does it for any agent that speaks the Agent Client Protocol.
- ``prompt``: one prompt of a session may choose it.
- ``pool_prompt``: one prompt of a pool may choose it, with every agent.
- ``node``: an attribute of a pipeline's node with the same name sets it.
- ``every_command``: every command that runs agents has its flag.
- ``one_agent``: the value belongs to one agent. Another agent that continues does not get it.
- ``one_run``: it makes sense for a single run only, not for the tasks of a batch.
- ``untrusted``: a file in the current directory may set it although it is not trusted, but not
  above a limit of the user's own file. Not the model: another one may cost many times as much.
"""


class Definition(msgspec.Struct, frozen=True):
    """One option."""

    name: str
    """In Python, and the key in corral.toml."""
    text: str
    """What it does: one sentence."""
    section: Section
    flags: tuple[str, ...] = ()
    """On the command line; empty: only Python and corral.toml have it."""
    value: str = ""
    """What stands for the value in ``--help``."""
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    default: str = ""
    """What applies if the option is not given, if that can be said in a few words."""
    traits: tuple[Trait, ...] = ()


DEFINITIONS = (
    # Prompt.
    Definition(
        "prompt_file",
        "Read the prompt from this file.",
        "Prompt",
        traits=("every_agent", "pool_prompt", "one_run"),
    ),
    Definition(
        "images",
        "Images for the prompt.",
        "Prompt",
        ("--image",),
        "FILE",
        "paths",
        traits=("acp", "prompt", "pool_prompt", "node"),
    ),
    Definition(
        "audio",
        "Audio files for the prompt.",
        "Prompt",
        traits=("acp", "prompt", "pool_prompt"),
    ),
    Definition(
        "attachments",
        "Files to send with the prompt.",
        "Prompt",
        ("--attach",),
        "FILE",
        "paths",
        traits=("acp", "prompt", "pool_prompt", "node"),
    ),
    Definition(
        "expand_files",
        "Let the agent expand @path in the prompt.",
        "Prompt",
        ("--expand-files",),
        kind="on",
        traits=("every_command",),
    ),
    Definition(
        "system_prompt",
        "A text that is added to the agent's system prompt.",
        "Prompt",
        ("--system-prompt",),
        "TEXT",
        traits=("acp", "pool_prompt", "node", "every_command"),
    ),
    Definition(
        "replace_system_prompt", "A text that replaces the agent's system prompt.", "Prompt"
    ),
    Definition(
        "output_schema",
        "A JSON Schema, for agents with their own support; output= sets it.",
        "Prompt",
        traits=("one_run",),
    ),
    # Agent.
    Definition(
        "model",
        "The agent's own name for the model; vendor:model runs the built-in agent on it.",
        "Agent",
        ("-m", "--model"),
        "NAME",
        default="the agent's own",
        traits=("common", "every_agent", "prompt", "every_command", "one_agent"),
    ),
    Definition(
        "cwd",
        "The working directory.",
        "Agent",
        ("-C", "--cwd"),
        "DIR",
        "path",
        default="here",
        traits=("common", "every_agent", "pool_prompt", "every_command"),
    ),
    Definition(
        "include_directories",
        "Further folders that the agent may read.",
        "Agent",
        ("--add-dir",),
        "DIR",
        "paths",
        traits=("every_command",),
    ),
    Definition(
        "reasoning_effort",
        "The reasoning effort of the model.",
        "Agent",
        ("--effort",),
        choices=("none", "minimal", "low", "medium", "high", "xhigh"),
        traits=("prompt", "node", "every_command", "one_agent"),
    ),
    Definition(
        "thinking",
        "Pass on the agent's thoughts.",
        "Agent",
        default="on",
        traits=("acp", "pool_prompt"),
    ),
    Definition(
        "program",
        "The agent's program.",
        "Agent",
        ("--program",),
        "PATH",
        "path",
        default="searched",
        traits=("every_agent", "every_command", "one_agent"),
    ),
    Definition(
        "probe",
        "Run an untested program with a scripted model first; trust ignores what that found out.",
        "Agent",
        ("--probe",),
        choices=("never", "once", "require", "trust"),
        default="once",
        traits=("every_agent", "every_command"),
    ),
    Definition(
        "pass_env",
        "Names of variables to pass on to the agent and its commands.",
        "Agent",
        ("--env",),
        "NAME",
        "texts",
        traits=("every_agent", "node", "every_command"),
    ),
    Definition(
        "env",
        "Variables for the agent, with their values, which are never logged.",
        "Agent",
        traits=("every_agent",),
    ),
    Definition(
        "inherit",
        "Whose settings take effect besides corral's: the repository's, or yours too.",
        "Agent",
        ("--inherit",),
        choices=("nothing", "project", "user"),
        default="nothing",
        traits=("every_command",),
    ),
    Definition(
        "auth",
        "Which credentials are billed, if there are two.",
        "Agent",
        ("--auth",),
        choices=("api_key", "subscription", "inherit"),
        traits=("every_agent", "every_command", "one_agent"),
    ),
    Definition(
        "auth_method",
        "One of the sign-in methods that the agent offers.",
        "Agent",
        traits=("acp", "one_agent"),
    ),
    Definition(
        "session_mode",
        "A mode of the agent's own sessions, by its own name.",
        "Agent",
        traits=("acp", "node", "one_agent"),
    ),
    Definition(
        "mcp_servers",
        "MCP servers whose tools the agent may use.",
        "Agent",
        ("--mcp",),
        "NAME=COMMAND|URL",
        "texts",
        traits=("acp", "every_command"),
    ),
    Definition(
        "via",
        "How the agent 'manual' reaches the person.",
        "Agent",
        ("--via",),
        choices=("file", "editor", "terminal"),
        default="terminal if there is one, else file",
    ),
    Definition("config", "A table of options; the options of the call win over it.", "Agent"),
    # Permissions.
    Definition(
        "policy",
        "What the agent may do: a Policy, or reads, edits or all.",
        "Permissions",
        default="Policy()",
        traits=("every_agent", "prompt", "node"),
    ),
    Definition(
        "approval_mode",
        "Another way to set the policy: default, auto_edit, yolo or plan.",
        "Permissions",
    ),
    Definition(
        "allowed_tools",
        "Another way to set the policy: only these tools.",
        "Permissions",
        traits=("node",),
    ),
    Definition(
        "strict",
        "Refuse a policy that the agent cannot enforce.",
        "Permissions",
        ("--strict/--no-strict",),
        kind="switch",
        default="on",
        traits=("every_agent", "every_command"),
    ),
    Definition(
        "sandbox",
        "Corral's sandbox: where the policy needs it, where the machine has one (auto), or always.",
        "Permissions",
        ("--sandbox",),
        choices=("needed", "off", "auto", "require", "agent"),
        default="needed",
        traits=("common", "every_agent", "node", "every_command"),
    ),
    Definition(
        "hidden",
        "Folders that the agent must not read, wherever they are: the run gets corral's sandbox.",
        "Permissions",
        ("--hide",),
        "PATH",
        "paths",
        traits=("every_agent", "every_command"),
    ),
    Definition(
        "permission_mode",
        "How open permission requests are answered: prompt asks, auto allows, deny denies.",
        "Permissions",
        default="prompt",
        traits=("acp",),
    ),
    Definition(
        "remote_answers",
        "Wait until another process answers permission requests, if there is no one to ask here.",
        "Permissions",
        ("--remote-answers",),
        kind="on",
        traits=("every_agent", "every_command"),
    ),
    Definition(
        "answer_timeout",
        "Time until a permission request without an answer is denied.",
        "Permissions",
        ("--answer-timeout",),
        "TIME",
        "duration",
        default="5m",
        traits=("every_agent", "every_command"),
    ),
    Definition(
        "allow_file_reads",
        "Read files for the agent, if it asks its client to.",
        "Permissions",
        default="off",
        traits=("acp",),
    ),
    Definition(
        "allow_file_writes",
        "Write files for the agent, if it asks its client to.",
        "Permissions",
        default="off",
        traits=("acp",),
    ),
    # Limits.
    Definition(
        "timeout",
        "Time for each prompt: 90 (seconds), 5m, 1h30m.",
        "Limits",
        ("--timeout",),
        "TIME",
        "duration",
        default="10m",
        traits=(
            "common",
            "every_agent",
            "prompt",
            "pool_prompt",
            "node",
            "every_command",
            "untrusted",
        ),
    ),
    Definition(
        "idle_timeout",
        "Time without an event.",
        "Limits",
        ("--idle-timeout",),
        "TIME",
        "duration",
        default="5m",
        traits=("every_agent", "prompt", "pool_prompt", "every_command", "untrusted"),
    ),
    Definition(
        "startup_timeout",
        "Time until the first event.",
        "Limits",
        ("--startup-timeout",),
        "TIME",
        "duration",
        default="1m",
        traits=("every_agent", "every_command", "untrusted"),
    ),
    Definition(
        "grace",
        "Time between the request to end and SIGKILL.",
        "Limits",
        kind="duration",
        default="5s",
        traits=("every_agent", "pool_prompt", "untrusted"),
    ),
    Definition(
        "quiet_period",
        "Silence that ends the loading of a session, and a turn after its end was reported.",
        "Limits",
        kind="duration",
        default="by agent",
        traits=("acp",),
    ),
    Definition(
        "max_turns",
        "Maximum number of model calls of a prompt.",
        "Limits",
        ("--max-turns",),
        "N",
        "count",
        default="100 for the built-in agent",
        traits=("node", "every_command", "untrusted"),
    ),
    Definition(
        "max_tool_rounds",
        "Maximum number of rounds of tool calls in a turn of the built-in agent.",
        "Limits",
        kind="count",
        traits=("node",),
    ),
    Definition(
        "max_repeated_calls",
        "Equal tool calls in a row after which the built-in agent ends its turn.",
        "Limits",
        ("--max-repeated-calls",),
        "N",
        "count",
        default="20",
        traits=("node",),
    ),
    Definition(
        "max_cost",
        "The most that the model calls may cost.",
        "Limits",
        ("--max-cost",),
        "USD",
        "amount",
        traits=("common", "every_agent", "node", "every_command", "one_agent"),
    ),
    Definition(
        "max_total_tokens",
        "The most tokens that the model calls may use.",
        "Limits",
        ("--max-total-tokens",),
        "N",
        "count",
        traits=("every_agent", "node", "every_command", "one_agent"),
    ),
    Definition(
        "max_calls",
        "The most model calls.",
        "Limits",
        ("--max-calls",),
        "N",
        "count",
        traits=("every_agent", "node", "every_command", "one_agent"),
    ),
    Definition(
        "on_budget",
        "At such a limit: end the run, or hold the next model call until the limit is raised.",
        "Limits",
        ("--on-budget",),
        choices=("stop", "pause"),
        default="stop",
        traits=("every_agent", "every_command", "one_agent"),
    ),
    Definition(
        "on_limit",
        "At a rate limit: fail, wait until it ends, or fallback:AGENT[,AGENT].",
        "Limits",
        ("--on-limit",),
        "WHAT",
        default="fail",
        traits=("every_agent", "node", "every_command"),
    ),
    Definition(
        "max_wait",
        "The longest wait for a rate limit; at one that takes longer, the run fails.",
        "Limits",
        ("--max-wait",),
        "TIME",
        "duration",
        default="24h",
        traits=("every_agent", "node", "every_command"),
    ),
    Definition(
        "meter",
        "Count the model calls with a proxy that holds the API key; unset, where it is possible.",
        "Limits",
        ("--meter/--no-meter",),
        kind="switch",
        traits=("every_agent", "every_command", "one_agent"),
    ),
    Definition(
        "retries",
        "How often a failed model call is repeated, 0 to 9.",
        "Limits",
        ("--retries",),
        "N",
        "count",
        default="2",
        traits=("every_command", "untrusted"),
    ),
    # Session.
    Definition(
        "resume",
        "Continue a session, also of another agent: its id, the beginning of it, or 'last'.",
        "Session",
        ("--resume",),
        "ID",
        traits=("common", "acp", "one_agent", "one_run"),
    ),
    Definition(
        "fork",
        "Continue in a new session; the resumed one does not change.",
        "Session",
        ("--fork",),
        kind="on",
        traits=("one_agent", "one_run"),
    ),
    Definition(
        "keep",
        "Store the session.",
        "Session",
        ("--keep/--no-keep",),
        kind="switch",
        default="on",
        traits=("every_agent",),
    ),
    Definition(
        "record",
        "Store a transcript with the session: prompts, events, changes of files.",
        "Session",
        default="on",
        traits=("every_agent",),
    ),
    Definition(
        "label",
        "A text in every event, in the result and in the stored session.",
        "Session",
        ("--label",),
        "TEXT",
        traits=("every_agent", "pool_prompt", "every_command"),
    ),
    Definition(
        "notify",
        "A command or URL to notify when a person is needed, or the run has ended.",
        "Session",
        ("--notify",),
        "TARGET",
        traits=("every_agent", "every_command"),
    ),
    Definition(
        "notify_on",
        "What is notified: that a person is needed, the end, or both (all).",
        "Session",
        ("--notify-on",),
        choices=("all", "person", "end"),
        default="all",
        traits=("every_agent", "every_command"),
    ),
    Definition(
        "track_files",
        "Compare the files of the working directory before and after.",
        "Session",
        default="on",
        traits=("every_agent", "pool_prompt"),
    ),
    # Verification.
    Definition(
        "verify",
        "Commands or checks that the work must pass, in a clean tree of what the agent left.",
        "Verification",
        ("--verify",),
        "CMD",
        "texts",
        traits=("common", "every_agent", "node"),
    ),
    Definition(
        "verify_from",
        "Where the files that judge the work come from: before the run, or as the agent left them.",
        "Verification",
        ("--verify-from",),
        choices=("before", "after"),
        default="before",
        traits=("every_agent", "node"),
    ),
    Definition(
        "verify_with",
        "Ignored files and folders that the checks need, besides installed dependencies.",
        "Verification",
        ("--verify-with",),
        "PATTERN",
        "texts",
        traits=("every_agent", "node"),
    ),
    Definition(
        "verify_timeout",
        "Time for each check.",
        "Verification",
        ("--verify-timeout",),
        "TIME",
        "duration",
        default="10m",
        traits=("every_agent", "node"),
    ),
    Definition(
        "work",
        "What the run may have changed, as patterns of .gitignore; all else is as before it.",
        "Verification",
        ("--work",),
        "PATTERN",
        "texts",
        traits=("every_agent", "node"),
    ),
    Definition(
        "judge_files",
        "More files that judge the work, as patterns of .gitignore; !PATTERN takes one out.",
        "Verification",
        ("--judge-file",),
        "PATTERN",
        "texts",
        traits=("every_agent", "node"),
    ),
    Definition(
        "put_back",
        "Put files that judge the work back as they were before the run, in the workspace itself.",
        "Verification",
        ("--put-back",),
        kind="on",
        traits=("every_agent", "node"),
    ),
    Definition(
        "scenarios",
        "A folder of held-out scenarios that the work must satisfy: corral docs scenarios.",
        "Verification",
        ("--scenarios",),
        "DIR",
        "path",
        traits=("every_agent",),
    ),
    Definition(
        "scenario_threshold",
        "The fraction of the scenarios that must be satisfied.",
        "Verification",
        ("--scenario-threshold",),
        "FRACTION",
        "amount",
        default="0.9",
        traits=("every_agent",),
    ),
    Definition(
        "judge",
        "The model, as vendor:name, that answers the questions among the scenarios.",
        "Verification",
        ("--judge",),
        "MODEL",
        traits=("every_agent",),
    ),
    # Output.
    Definition(
        "otel",
        "Send OpenTelemetry spans to this OTLP endpoint; env: where the OTEL_ variables say.",
        "Output",
        ("--otel",),
        "URL",
        traits=("every_agent", "every_command"),
    ),
    # Tests.
    Definition(
        "record_to",
        "Record the communication with the agent's program to this file.",
        "Tests",
        ("--record-to",),
        "FILE",
        "path",
        traits=("every_agent", "one_agent", "one_run"),
    ),
    Definition(
        "replay",
        "Replay such a recording instead of the agent's program.",
        "Tests",
        ("--replay",),
        "FILE",
        "path",
        traits=("every_agent", "one_agent", "one_run"),
    ),
)
EXECUTION = (
    Definition(
        "repository",
        "Work in a separate git worktree: of the repository that contains this folder, or, on each"
        " machine, of a clone of this URL or bare repository. The work becomes a branch there.",
        "Execution",
        ("--repository",),
        "REPO",
        traits=("common",),
    ),
    Definition(
        "commit",
        "The commit to start from.",
        "Execution",
        ("--commit",),
        "REV",
        default="HEAD",
    ),
    Definition(
        "artifacts",
        "Where the run's artifacts/ are copied: any file system that fsspec supports.",
        "Execution",
        ("--artifacts",),
        "URL",
    ),
    Definition("run_id", "The id of the run, a new one.", "Execution", ("--run-id",), "ID"),
    Definition(
        "run_dir", "The run folder, new or empty.", "Execution", ("--run-dir",), "DIR", "path"
    ),
    Definition(
        "queue", "Let the workers of this queue do the work.", "Execution", ("--queue",), "NAME"
    ),
    Definition(
        "durable",
        "Run in memory; cannot be resumed.",
        "Execution",
        ("--no-durable",),
        kind="off",
        traits=("common",),
    ),
)
"""How a run of a pipeline or a workflow is executed: what ``pipelines.run`` and ``workflows.run``
have besides the options of a run, and the command line has too."""
BY_NAME = {each.name: each for each in (*DEFINITIONS, *EXECUTION)}


def with_trait(trait: Trait) -> frozenset[str]:
    """The names of the options that have it."""
    return frozenset(each.name for each in DEFINITIONS if trait in each.traits)


def of_kind(*kinds: Kind) -> tuple[str, ...]:
    """The names of the options with one of these kinds."""
    return tuple(each.name for each in DEFINITIONS if each.kind in kinds)
