# ruff: noqa: E402 (the lists are changed before anything imports them)
"""Adds a limit to the list of the limits, and prints the places that do not have it.

What it does not add: ``_metering/budget_gate.py`` counts what a call uses, and ``spend.js`` has the
unit of the page. Nothing else must change.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import changed_sources

NAME, FLAG = "max_words", "--max-words"
changed_sources.change(
    {
        "corral._core.spending": [
            ('    "max_calls": LimitKind(', '    "max_words": LimitKind("words", int),\n'),
            ("    max_calls: int | None\n", "    max_words: int | None\n"),
            ("    max_calls: int | None = None\n", "    max_words: int | None = None\n"),
            ("    calls: int = 0\n", "    words: int = 0\n"),
            ("    calls: int | None\n", "    words: int | None\n"),
            ("    calls: int | None = None\n", "    words: int | None = None\n"),
        ],
        "corral._option_definitions": [
            (
                '    Definition(\n        "max_calls",',
                '    Definition("max_words", "The most words.", "Limits", ("--max-words",), "N",'
                ' "count", traits=("every_agent", "node", "every_command", "one_agent")),\n',
            ),
        ],
    }
)

from support.option_docs import with_tables

import corral
from corral._cli import acp, batch, chat, compare, mcp, merge, review, run, serve
from corral._cli.pipeline import run as pipeline_run
from corral._cli.workflow import run as workflow_run
from corral._engine.run_options import PipelineKwargs, WorkflowKwargs
from corral._pipelines import attribute_definitions, run_limits
from corral._pipelines.graph import Graph
from corral._serving import allowance
from corral._serving.caller_runs import CallerRuns
from corral._serving.mcp.tools import CallerTools
from corral._view.records import StartBody
from corral.options import RunOptions
from corral.run_kwargs import RunKwargs

COMMANDS = {
    "acp": acp.command, "batch": batch.command, "chat": chat.command, "compare": compare.command,
    "mcp": mcp.command, "merge": merge.command, "pipeline run": pipeline_run.run,
    "review": review.command, "run": run.command, "serve": serve.command,
    "workflow run": workflow_run.run,
}  # fmt: skip
flags = {
    name: {flag for each in command.params for flag in each.opts}
    for name, command in COMMANDS.items()
}
tools = CallerTools(CallerRuns(allowance.Allowance())).listed()
schemas = json.loads(json.dumps({each["name"]: each["inputSchema"] for each in tools}))  # type: ignore[call-overload, index]
table = with_tables("<!-- made of the option definitions --><!-- end -->")
places = {
    **{
        f"the signature of {kind.__name__}": NAME in kind.__annotations__
        for kind in (RunKwargs, PipelineKwargs, WorkflowKwargs)
    },
    "a budget": "max_words=3" in repr(corral.Budget(**{NAME: 3})),  # type: ignore[arg-type]
    **{f"the command {name}": FLAG in known for name, known in flags.items()},
    **{
        f"a task of {name}": "--task-max-words" in flags[name]
        for name in ("batch", "pipeline run", "workflow run")
    },
    "the configuration": getattr(RunOptions.build("corral", {}, {NAME: 5}), NAME) == 5,
    **{
        f"the HTTP body {body.__name__}": NAME in body.__struct_fields__
        for body in (allowance.RunRequest, allowance.PipelineRequest, StartBody)
    },
    "the settings of a client": NAME in allowance.Narrowing.__struct_fields__,
    **{f"the MCP tool {name}": NAME in schemas[name]["properties"] for name in ("run", "start")},
    "a graph": getattr(run_limits.run_limits(Graph("g", {NAME: 7})), NAME) == 7,
    "a node": NAME in attribute_definitions.names_of("node", "codergen"),
    "an edge that raises it": "add_words" in attribute_definitions.names_of("edge"),
    "the documentation": f"| `{NAME}` | `{FLAG}` |" in table,
}
print(json.dumps([place for place, is_there in places.items() if not is_there]))
