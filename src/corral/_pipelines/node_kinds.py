"""The built-in node kinds, one record each.

A record has everything that a part of corral must know about a kind before it runs a node: the
DOT shape, the handler, the time limits, who may run it, its attributes. The parser, linter,
scheduler, renderers, workers and the command line all read these records. No other module keeps
a list of kind names; to compare, use the records' names (``node_kinds.WAIT_HUMAN.name``).

This module is data. It imports nothing that does I/O, so that the scheduler may use it. Handlers
that a program registers for its own kinds are in ``execution.handlers``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from corral._option_definitions import with_trait

LlmUse = Literal["none", "optional", "agent", "model"]


class NodeKind(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The value of a node's ``type``."""
    text: str = ""
    """What users read about it, as Markdown."""
    shape: str = ""
    """The DOT shape of nodes of this kind; empty: only ``type`` selects the kind."""
    drawn_as: str = "box"
    """The DOT shape that renderers draw."""
    symbol: str = "▫"
    """The mark in front of the node in a text rendering."""
    aliases: tuple[str, ...] = ()
    """Other values of ``type`` that select this kind."""
    handler: str = ""
    """``module:function`` of its handler in ``pipelines.nodes``; empty: the scheduler runs it."""
    scheduled: bool = False
    """Whether the scheduler runs it, and calls the handler only for a part of the work."""
    timeout_margin: float = 0.0
    """Seconds after the node's timeout before the handler is cancelled. A kind with a margin
    enforces the timeout itself, so that it can stop cleanly and report its results."""
    detached: bool = False
    """Whether a durable run may run it in an agent host, which survives the worker."""
    works: bool = True
    """False: it only directs the flow. Prompts and progress do not show it as a step."""
    waits: bool = False
    """Whether it waits for something outside its own process: a person or a child pipeline."""
    runs_child: bool = False
    """Whether it runs another pipeline."""
    decides: bool = False
    """Whether a label on one of its edges may be a condition."""
    cheap: bool = False
    """Whether it takes no slot of a limited queue."""
    is_pure: bool = False
    """Whether it only computes values of the context: a simulation runs it, too."""
    llm: LlmUse = "none"
    """Whether nodes of this kind call an agent or a model. ``optional``: only some do."""
    internal: bool = False
    """Whether only corral itself makes such nodes: users are not offered the name."""
    attributes: frozenset[str] = frozenset()
    """Attributes that only nodes of this kind, or of few kinds, have."""
    sets: frozenset[str] = frozenset()
    """Keys of the context that its nodes set, whatever their attributes are."""
    required: tuple[tuple[str, ...], ...] = ()
    """What a node cannot run without: one attribute of each tuple, of the node or the graph."""


def _data_kind(
    name: str,
    text: str,
    attributes: str,
    *required: tuple[str, ...],
    handler: str = "",
    cheap: bool = False,
) -> NodeKind:
    """A kind whose handler in ``nodes.data`` only computes values of the context."""
    return NodeKind(
        name=name,
        text=text,
        handler=f"data:{handler or name}",
        is_pure=True,
        cheap=cheap,
        attributes=frozenset(attributes.split()),
        required=required,
    )


CHILD_FILES = ("stack.child_dotfile", "dotfile", "pipeline", "path")
"""Attributes that name the file of a child pipeline. The graph may have the first one."""
_LLM = with_trait("node") | {
    "answer_timeout", "credential", "max_tokens", "output_key", "output_schema", "prompt",
    "questions", "rounds", "temperature", "until",
}  # fmt: skip
"""Attributes of nodes that call an agent or a model."""

_WORKTREES = ("worktree", "on_conflict", "merge")
"""Attributes of nodes whose branches or items may have their own worktrees."""

START = NodeKind(
    name="start",
    text="Where the run starts. There is exactly one.",
    shape="Mdiamond",
    drawn_as="Mdiamond",
    symbol="●",
    works=False,
)
EXIT = NodeKind(
    name="exit",
    text="Where the run ends. There is exactly one. Goal gates are checked here.",
    shape="Msquare",
    drawn_as="Msquare",
    symbol="◎",
    works=False,
)
CODERGEN = NodeKind(
    name="codergen",
    text=("Gives `prompt` to `agent`, or to the built-in agent on `model`. The default."),
    shape="box",
    symbol="▪",
    handler="codergen:codergen",
    timeout_margin=60.0,
    detached=True,
    llm="agent",
)
PROMPT = NodeKind(
    name="prompt",
    text="One call of `model`, without tools.",
    shape="tab",
    handler="prompt:prompt",
    timeout_margin=10.0,
    detached=True,
    llm="model",
    attributes=frozenset(("key",)),
)
TOOL = NodeKind(
    name="tool",
    text=("Runs `tool_command` in a shell. `fail_on_error=false`: any exit code is a success."),
    shape="parallelogram",
    drawn_as="parallelogram",
    symbol="▸",
    aliases=("exec",),
    handler="tool:tool",
    timeout_margin=15.0,
    detached=True,
    attributes=frozenset(("tool_command", "output_key", "fail_on_error", "sandbox")),
    required=(("tool_command",),),
)
WAIT_HUMAN = NodeKind(
    name="wait.human",
    text=(
        "Asks a person. The choices are its edges; `mode=freeform`, or a single edge "
        "without a label, asks for text."
    ),
    shape="hexagon",
    drawn_as="hexagon",
    symbol="☻",
    aliases=("human",),
    waits=True,
    attributes=frozenset(
        ("human.default_choice", "human.timeout", "mode", "default_choice", "prompt")
    ),
)
CONDITIONAL = NodeKind(
    name="conditional",
    text="Does nothing: its edges decide, on the outcome before it.",
    shape="diamond",
    drawn_as="diamond",
    symbol="◇",
    works=False,
    decides=True,
)
SWITCH = NodeKind(
    name="switch",
    text=(
        "Takes the edge whose label is the value of `key` or is `value`, otherwise the one "
        "labelled `default`; without both the conditions decide."
    ),
    drawn_as="diamond",
    symbol="◇",
    handler="data:switch",
    is_pure=True,
    decides=True,
    cheap=True,
    attributes=frozenset(("key", "value", "source")),
)
PARALLEL = NodeKind(
    name="parallel",
    text="Each edge is a branch with its own context.",
    shape="component",
    drawn_as="component",
    symbol="⋔",
    aliases=("fan_out",),
    handler="parallel:merge_branches",
    scheduled=True,
    works=False,
    attributes=frozenset(("join_policy", "max_parallel", *_WORKTREES)),
)
FAN_IN = NodeKind(
    name="parallel.fan_in",
    text="Where branches join. The values of the best one win.",
    shape="tripleoctagon",
    drawn_as="tripleoctagon",
    symbol="⋎",
    aliases=("fan_in",),
    handler="prompt:fan_in",
    timeout_margin=60.0,
    detached=True,
    llm="optional",
)
MANAGER_LOOP = NodeKind(
    name="stack.manager_loop",
    text=(
        "Starts another pipeline and observes it; fails if it fails. Its conditions see "
        "`stack.child.status` (`running`, `completed`, `failed`) and, after the end, "
        "`stack.child.outcome`. Without any `stack.*` or `manager.*` attribute it is a "
        "human gate."
    ),
    shape="house",
    drawn_as="house",
    symbol="⌂",
    waits=True,
    runs_child=True,
    llm="optional",
    attributes=frozenset(
        (
            "manager.poll_interval", "manager.max_cycles", "manager.stop_condition",
            "manager.actions", "stack.child_autostart", "stack.child_workdir", *CHILD_FILES,
        )
    ),
    required=(CHILD_FILES,),
)  # fmt: skip
INCLUDE = NodeKind(
    name="include",
    text="Runs another pipeline, with its own run folder.",
    waits=True,
    runs_child=True,
    attributes=frozenset(CHILD_FILES),
    required=(CHILD_FILES,),
)
FOR_EACH = NodeKind(
    name="for_each",
    text=(
        "Runs `prompt` or `tool_command` for each of `items` (a key, JSON, or words with "
        "commas), 4 at once, at most 1,000 (`max_items`). Texts have `{{item}}`, "
        "`{{item.field}}` and `{{index}}`. The results are `<node>.results` (`results_key`)."
    ),
    aliases=("map",),
    handler="for_each:for_each",
    detached=True,
    llm="optional",
    attributes=frozenset(
        (
            "items", "item_key", "item_timeout", "max_items", "max_parallel", "results_key",
            "tool_command", *_WORKTREES,
        )
    ),
    required=(("items",), ("prompt", "tool_command")),
)  # fmt: skip
SET = _data_kind(
    "set",
    "Sets `key` to `value`, or several keys: `set.NAME=value`.",
    "key value",
    handler="set_values",
    cheap=True,
)
"""Also ``set.NAME``, which the linter checks."""
JSON_DECODE = _data_kind(
    "json_decode",
    "The JSON in `source`, into `key`; with `prefix` each field into its own key.",
    "source key prefix",
    ("source",),
)
TEXT_OPS = ("trim", "lower", "upper", "title")
"""The values of ``ops`` of a ``string_transform``."""
STRING_TRANSFORM = _data_kind(
    "string_transform",
    f"The text in `source` after `ops` ({', '.join(f'`{op}`' for op in TEXT_OPS)}), into `key`.",
    "source ops key",
    ("source",),
    ("ops",),
)
ENV = _data_kind(
    "env",
    "The environment variable `from`, into `key`; `default`, or a failure if it is `required`.",
    "key from required default",
    ("key",),
)
HTTP = NodeKind(
    name="http",
    text=(
        "Sends a request. `bearer_env` names the variable that has the token. `expect` is "
        "the status that counts as success."
    ),
    handler="http:http",
    attributes=frozenset(
        (
            "url", "method", "headers", "json", "body", "bearer_env", "expect", "response_key",
            "status_key",
        )
    ),
    required=(("url",),),
)  # fmt: skip
SCENARIOS = NodeKind(
    name="scenarios",
    text=(
        "Runs [held-out scenarios](scenarios.md) in `scenarios`: a folder, absolute, from "
        "the workspace, with `~` or with `$VARIABLE`. `judge` is the model, `vendor:name`, "
        "that answers the questions among them."
    ),
    symbol="✓",
    handler="scenarios:scenarios",
    timeout_margin=15.0,
    detached=True,
    attributes=frozenset(("scenarios", "threshold", "judge", "keep_best")),
    sets=frozenset(
        (
            "scenarios.satisfied", "scenarios.total", "scenarios.missing", "scenarios.fraction",
            "scenarios.low", "scenarios.high", "scenarios.threshold", "scenarios.classes",
            "scenarios.summary", "scenarios.restored", "scenarios.note",
        )
    ),
    required=(("scenarios",),),
)  # fmt: skip
MERGE = NodeKind(
    name="merge",
    text=(
        "Adds `branches` (names and patterns with commas, or a placeholder for a list), or those"
        " that nodes with `merge=false` have kept, to the [merge queue](merge.md) of `into`, and"
        " waits for them. `gate_env` names variables that the gate sees; `agent` is asked about"
        " branches that no session made."
    ),
    symbol="⋎",
    handler="merging:merge",
    timeout_margin=15.0,
    detached=True,
    llm="optional",
    attributes=frozenset(
        ("branches", "into", "gate", "gate_timeout", "gate_sandbox", "gate_env", "rounds")
    ),
    sets=frozenset(
        (
            "merge.merged", "merge.failed", "merge.left", "merge.tip", "merge.pending",
            "merge.summary",
        )
    ),
    required=(("into",), ("gate",)),
)  # fmt: skip
READ_FILE = NodeKind(
    name="read_file",
    text=(
        "Reads the file `path` of the workspace into `key`. `format=json` parses it; "
        "`default` is the value if there is no file."
    ),
    handler="data:read_file",
    cheap=True,
    attributes=frozenset(("path", "key", "format", "default")),
    required=(("path",),),
)
WRITE_FILE = NodeKind(
    name="write_file",
    text=(
        "Writes `content`, or the value of `source`, to the file `path` of the workspace: "
        "atomically, or at its end (`append`)."
    ),
    handler="data:write_file",
    cheap=True,
    attributes=frozenset(("path", "content", "source", "append", "format")),
    required=(("path",), ("content", "source")),
)
BATCH_ITEM = NodeKind(
    name="batch.item",
    handler="item:item",
    timeout_margin=120.0,
    detached=True,
    llm="agent",
    internal=True,
)
COMPARE_ATTEMPT = NodeKind(
    name="compare.attempt",
    handler="compare_attempt:attempt",
    detached=True,
    llm="agent",
    internal=True,
)

RUN_STEP = NodeKind(
    name="workflow.run",
    handler="step:run_agent",
    timeout_margin=120.0,
    detached=True,
    llm="agent",
    internal=True,
)
GENERATE_STEP = NodeKind(
    name="workflow.generate",
    symbol="▫",
    handler="step:generate",
    timeout_margin=10.0,
    detached=True,
    llm="model",
    internal=True,
)
COMMAND_STEP = NodeKind(
    name="workflow.command",
    drawn_as="parallelogram",
    symbol="▸",
    handler="step:command",
    timeout_margin=15.0,
    detached=True,
    internal=True,
)

MERGE_STEP = NodeKind(
    name="workflow.merge",
    symbol=MERGE.symbol,
    handler="step:merge",
    timeout_margin=15.0,
    detached=True,
    llm="optional",
    internal=True,
)

KEY_ATTRIBUTES = (
    "key", "output_key", "item_key", "output", "results_key", "response_key", "status_key",
)  # fmt: skip
"""Attributes that name a key of the context which the node sets."""

KINDS: dict[str, NodeKind] = {
    kind.name: kind
    for kind in (
        START, EXIT, CODERGEN, PROMPT, TOOL, WAIT_HUMAN, CONDITIONAL, SWITCH, PARALLEL, FAN_IN,
        MANAGER_LOOP, INCLUDE, FOR_EACH, SET,
        _data_kind(
            "json_extract",
            "The value at `path` (`a.b[0].c`) of the JSON in `source` (`last_response`), into "
            "`key` (`<node>.output`); `default` if there is none.",
            "source path key default", cheap=True,
        ),
        JSON_DECODE,
        _data_kind(
            "json_pack",
            "The values of `keys` as one JSON object, into `output`.",
            "keys output", ("keys",),
        ),
        _data_kind(
            "split",
            "The text in `source` as a list, into `key` (`<node>.output`); `sep` (a comma) is "
            "between the parts, `trim` (`true`) removes space around them. Empty parts are left "
            "out.",
            "source sep trim key", ("source",),
        ),
        _data_kind(
            "regex",
            "What the regular expression `pattern` finds in `source`, or its `group`, into "
            "`key`. `no_match` and `default` say what happens if it finds nothing.",
            "source pattern group key no_match default", ("source",), ("pattern",)
        ),
        STRING_TRANSFORM, ENV,
        _data_kind(
            "assert",
            "Fails with `message` unless the condition `expr` holds.",
            "expr condition message", ("expr", "condition"), handler="check",
        ),
        _data_kind("sleep", "Waits for `duration`.", "duration", ("duration",)),
        HTTP, SCENARIOS, MERGE, READ_FILE, WRITE_FILE, BATCH_ITEM, COMPARE_ATTEMPT,
        RUN_STEP, GENERATE_STEP, COMMAND_STEP, MERGE_STEP,
    )
}  # fmt: skip
"""Every built-in kind by its name."""
PUBLIC = tuple(name for name, kind in KINDS.items() if not kind.internal)
"""The names that a pipeline may use."""
SHAPES = {kind.shape: kind.name for kind in KINDS.values() if kind.shape}
"""DOT shape -> kind of a node without ``type``."""
ALIASES = {alias: kind.name for kind in KINDS.values() for alias in kind.aliases}
SCHEDULER_KINDS = tuple(name for name, kind in KINDS.items() if not kind.handler or kind.scheduled)
"""Kinds that the scheduler runs itself."""
LLM_KINDS = tuple(name for name in PUBLIC if KINDS[name].llm in ("agent", "model"))
"""Kinds whose nodes always send a prompt to an agent or a model."""
CHILD_KINDS = tuple(name for name, kind in KINDS.items() if kind.runs_child)


def find(name: str) -> NodeKind:
    """The record of a kind. A kind that is not built in has the defaults; it may use an LLM."""
    return KINDS.get(name) or NodeKind(name=name, llm="optional")


def attributes_of(kind: str = "") -> frozenset[str]:
    """The attributes that not every node has: of nodes of this kind, or of any kind. A kind that is
    not built in may have all of them."""
    kinds = KINDS.values() if kind not in KINDS else (KINDS[kind],)
    named = frozenset[str]().union(*(each.attributes for each in kinds))
    return named | _LLM if any(each.llm != "none" for each in kinds) else named


def of_shape(shape: str) -> NodeKind:
    """The kind of a node with this DOT shape and no ``type``: an unknown shape is a box."""
    return KINDS[SHAPES.get(shape, CODERGEN.name)]
