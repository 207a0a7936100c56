"""Every option of a run, described once.

The flags of the command line, their help, the table in ``docs/configuration.md`` and the docstrings
of ``RunKwargs`` are made of these records or equal them; ``tests/test_option_definitions.py``
checks that. Types and defaults are those of ``corral.options.RunOptions``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Section: TypeAlias = Literal[
    "Prompt", "Agent", "Permissions", "Limits", "Session", "Output", "Tests"
]
"""The sections of ``--help``, in their order."""

Kind: TypeAlias = Literal[
    "text", "texts", "path", "paths", "duration", "count", "amount", "on", "switch"
]
"""How a value is given on the command line. ``texts`` and ``paths``: the flag may be repeated.
``on``: the flag sets True. ``switch``: one flag sets True, another one False."""


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


DEFINITIONS = (
    # Prompt.
    Definition("prompt_file", "Read the prompt from this file.", "Prompt"),
    Definition("images", "Images for the prompt.", "Prompt", ("--image",), "FILE", "paths"),
    Definition("audio", "Audio files for the prompt.", "Prompt"),
    Definition(
        "attachments", "Files to send with the prompt.", "Prompt", ("--attach",), "FILE", "paths"
    ),
    Definition(
        "expand_files",
        "Let the agent expand @path in the prompt.",
        "Prompt",
        ("--expand-files",),
        kind="on",
    ),
    Definition(
        "system_prompt",
        "A text that is added to the agent's system prompt.",
        "Prompt",
        ("--system-prompt",),
        "TEXT",
    ),
    Definition(
        "replace_system_prompt", "A text that replaces the agent's system prompt.", "Prompt"
    ),
    Definition(
        "output_schema",
        "A JSON Schema, for agents with their own support; output= sets it.",
        "Prompt",
    ),
    # Agent.
    Definition(
        "model",
        "The agent's own name for the model; vendor:model runs the built-in agent on it.",
        "Agent",
        ("-m", "--model"),
        "NAME",
        default="the agent's own",
    ),
    Definition(
        "cwd", "The working directory.", "Agent", ("-C", "--cwd"), "DIR", "path", default="here"
    ),
    Definition(
        "include_directories",
        "Further folders that the agent may read.",
        "Agent",
        ("--add-dir",),
        "DIR",
        "paths",
    ),
    Definition(
        "reasoning_effort",
        "The reasoning effort of the model.",
        "Agent",
        ("--effort",),
        choices=("none", "minimal", "low", "medium", "high", "xhigh"),
    ),
    Definition("thinking", "Pass on the agent's thoughts.", "Agent", default="on"),
    Definition(
        "program",
        "The agent's program.",
        "Agent",
        ("--program",),
        "PATH",
        "path",
        default="searched",
    ),
    Definition(
        "pass_env",
        "Names of variables to pass on to the agent and its commands.",
        "Agent",
        ("--env",),
        "NAME",
        "texts",
    ),
    Definition(
        "env", "Variables for the agent, with their values, which are never logged.", "Agent"
    ),
    Definition(
        "inherit",
        "Whose settings take effect besides corral's: the repository's, or yours too.",
        "Agent",
        ("--inherit",),
        choices=("nothing", "project", "user"),
        default="nothing",
    ),
    Definition(
        "auth",
        "Which credentials are billed, if there are two.",
        "Agent",
        ("--auth",),
        choices=("api_key", "subscription", "inherit"),
    ),
    Definition("auth_method", "One of the sign-in methods that the agent offers.", "Agent"),
    Definition("session_mode", "A mode of the agent's own sessions, by its own name.", "Agent"),
    Definition("mcp_servers", "MCP servers whose tools the agent may use.", "Agent"),
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
    ),
    Definition(
        "approval_mode",
        "Another way to set the policy: default, auto_edit, yolo or plan.",
        "Permissions",
    ),
    Definition("allowed_tools", "Another way to set the policy: only these tools.", "Permissions"),
    Definition(
        "strict",
        "Refuse a policy that the agent cannot enforce.",
        "Permissions",
        ("--strict/--no-strict",),
        kind="switch",
        default="on",
    ),
    Definition(
        "sandbox",
        "Corral's sandbox: where the policy needs it, where the machine has one (auto), or always.",
        "Permissions",
        ("--sandbox",),
        choices=("needed", "off", "auto", "require", "agent"),
        default="needed",
    ),
    Definition(
        "permission_mode",
        "How open permission requests are answered: prompt asks, auto allows, deny denies.",
        "Permissions",
        default="prompt",
    ),
    Definition(
        "remote_answers",
        "Wait until another process answers permission requests, if there is no one to ask here.",
        "Permissions",
        ("--remote-answers",),
        kind="on",
    ),
    Definition(
        "answer_timeout",
        "Time until a permission request without an answer is denied.",
        "Permissions",
        ("--answer-timeout",),
        "TIME",
        "duration",
        default="5m",
    ),
    Definition(
        "allow_file_reads",
        "Read files for the agent, if it asks its client to.",
        "Permissions",
        default="off",
    ),
    Definition(
        "allow_file_writes",
        "Write files for the agent, if it asks its client to.",
        "Permissions",
        default="off",
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
    ),
    Definition(
        "idle_timeout",
        "Time without an event.",
        "Limits",
        ("--idle-timeout",),
        "TIME",
        "duration",
        default="5m",
    ),
    Definition(
        "startup_timeout",
        "Time until the first event.",
        "Limits",
        ("--startup-timeout",),
        "TIME",
        "duration",
        default="1m",
    ),
    Definition(
        "grace",
        "Time between the request to end and SIGKILL.",
        "Limits",
        kind="duration",
        default="5s",
    ),
    Definition(
        "quiet_period",
        "Silence that ends the loading of a session, and a turn after its end was reported.",
        "Limits",
        kind="duration",
        default="by agent",
    ),
    Definition(
        "max_turns",
        "Maximum number of model calls of a prompt.",
        "Limits",
        ("--max-turns",),
        "N",
        "count",
        default="100 for the built-in agent",
    ),
    Definition(
        "max_tool_rounds",
        "Maximum number of rounds of tool calls in a turn of the built-in agent.",
        "Limits",
    ),
    Definition(
        "max_repeated_calls",
        "Equal tool calls in a row after which the built-in agent ends its turn.",
        "Limits",
        ("--max-repeated-calls",),
        "N",
        "count",
        default="20",
    ),
    Definition(
        "max_cost",
        "The most that the model calls may cost.",
        "Limits",
        ("--max-cost",),
        "USD",
        "amount",
    ),
    Definition(
        "max_total_tokens",
        "The most tokens that the model calls may use.",
        "Limits",
        ("--max-total-tokens",),
        "N",
        "count",
    ),
    Definition(
        "max_calls",
        "The most model calls.",
        "Limits",
        ("--max-calls",),
        "N",
        "count",
    ),
    Definition(
        "on_budget",
        "At such a limit: end the run, or hold the next model call until the limit is raised.",
        "Limits",
        ("--on-budget",),
        choices=("stop", "pause"),
        default="stop",
    ),
    Definition(
        "on_limit",
        "At a rate limit: fail, wait until it ends, or fallback:AGENT[,AGENT].",
        "Limits",
        ("--on-limit",),
        "WHAT",
        default="fail",
    ),
    Definition(
        "max_wait",
        "The longest wait for a rate limit; at one that takes longer, the run fails.",
        "Limits",
        ("--max-wait",),
        "TIME",
        "duration",
        default="24h",
    ),
    Definition(
        "meter",
        "Count the model calls with a proxy that holds the API key; unset, where it is possible.",
        "Limits",
        ("--meter/--no-meter",),
        kind="switch",
    ),
    Definition(
        "retries",
        "How often a failed model call is repeated, 0 to 9.",
        "Limits",
        ("--retries",),
        "N",
        "count",
        default="2",
    ),
    # Session.
    Definition(
        "resume",
        "Continue a session, also of another agent: its id, the beginning of it, or 'last'.",
        "Session",
        ("--resume",),
        "ID",
    ),
    Definition(
        "fork",
        "Continue in a new session; the resumed one does not change.",
        "Session",
        ("--fork",),
        kind="on",
    ),
    Definition(
        "keep",
        "Store the session.",
        "Session",
        ("--keep/--no-keep",),
        kind="switch",
        default="on",
    ),
    Definition(
        "record",
        "Store a transcript with the session: prompts, events, changes of files.",
        "Session",
        default="on",
    ),
    Definition(
        "label",
        "A text in every event, in the result and in the stored session.",
        "Session",
        ("--label",),
        "TEXT",
    ),
    Definition(
        "notify",
        "A command or URL to notify when a person is needed, or the run has ended.",
        "Session",
        ("--notify",),
        "TARGET",
    ),
    Definition(
        "notify_on",
        "What is notified: that a person is needed, the end, or both (all).",
        "Session",
        ("--notify-on",),
        choices=("all", "person", "end"),
        default="all",
    ),
    Definition(
        "track_files",
        "Compare the files of the working directory before and after.",
        "Session",
        default="on",
    ),
    # Output.
    Definition(
        "otel",
        "Send OpenTelemetry spans to this OTLP endpoint; env: where the OTEL_ variables say.",
        "Output",
        ("--otel",),
        "URL",
    ),
    # Tests.
    Definition(
        "record_to",
        "Record the communication with the agent's program to this file.",
        "Tests",
        ("--record-to",),
        "FILE",
        "path",
    ),
    Definition(
        "replay",
        "Replay such a recording instead of the agent's program.",
        "Tests",
        ("--replay",),
        "FILE",
        "path",
    ),
)
BY_NAME = {each.name: each for each in DEFINITIONS}
