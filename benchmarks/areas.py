"""The benchmarks, by area. An area has one chart, and one section in ``docs/performance.md``."""

from __future__ import annotations

from benchmarks import (
    acp,
    compile_cache,
    dot,
    durable,
    fleet,
    growth,
    models,
    nodes,
    processes,
    proxy,
    runs,
    sessions,
    startup,
    stream,
    view,
)
from benchmarks.runner import Areas

AREAS: Areas = {
    "start": {
        "import": startup.imports,
        "help": startup.helps,
        "mcp": startup.mcp_servers,
        "instant": runs.instant,
        "sandbox": runs.sandbox,
        "verify": runs.verify,
        "real": runs.real,
        "compile-cache": compile_cache.compile_cache,
    },
    "streams": {
        "lines": stream.lines,
        "long-line": stream.long_line,
        "memory": stream.memory,
        "record": sessions.record,
    },
    "processes": {"concurrent": processes.concurrent, "trees": processes.trees},
    "acp": {"acp": acp.acp, "warm": sessions.warm},
    "sessions": {"search": sessions.search, "listed": sessions.listed},
    "models": {"models": models.models},
    "proxy": {"proxy": proxy.proxy},
    "pipelines": {"nodes": nodes.nodes, "dot": dot.dot},
    "durable": {
        "durable": durable.nodes,
        "batch": durable.batch,
        "steps": durable.steps,
        "prefect": durable.prefect,
        "programs": durable.programs,
        "workers": durable.workers,
        "takeover": durable.takeover,
    },
    "view": {"view": view.view},
    "growth": {"growth": growth.growth},
    "fleet": {"fleet": fleet.fleet},
}
