# ruff: noqa: E402 (the lists are changed before anything imports them)
"""Adds a node type to the list of them, and prints the places that do not have it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import changed_sources

NAME = "count_words"
changed_sources.change(
    {
        "corral._pipelines.node_kinds": [
            (
                "        JSON_DECODE,\n",
                '        _data_kind("count_words", "Counts the words of `text`, into `key`.",'
                ' "text key", ("text",)),\n',
            ),
        ],
        "corral._pipelines.nodes.data": [
            (
                "async def switch(",
                "async def count_words(work: NodeContext) -> Outcome:\n"
                "    count = len(work.node.text('text').split())\n"
                "    return Outcome(context_updates={work.node.text('key'): count})\n\n\n",
            ),
        ],
    }
)

from support.pipeline_page import reference

from corral import pipelines
from corral._pipelines import attribute_definitions

GRAPH = """digraph g {
    start [shape=Mdiamond]; n [type=count_words, key=n, %s]; exit [shape=Msquare]
    start -> n -> exit
}"""
good, bad = (pipelines.parse(GRAPH % text) for text in ('text="one two"', 'label="no text"'))
result = pipelines.run_sync(good, durable=False)
simulated = pipelines.run_sync(good, durable=False, simulate="all")
places = {
    "a run": result.context.get("n") == 2,
    "a simulation": simulated.context.get("n") == 2,
    "the linter": not pipelines.lint(good) and "text" in str(pipelines.lint(bad)),
    "its attributes": {"text", "key"} <= attribute_definitions.names_of("node", NAME),
    "the documentation": f"| `{NAME}` |" in reference(),
}
print(json.dumps([place for place, is_there in places.items() if not is_there]))
