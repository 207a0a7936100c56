# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""Tools for tests, of corral and of its users: a scripted model server, the conformance kit, the
attack kit, and a hostile repository.

Names are loaded when they are first used, so that importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._testing.attack import AttackReport as AttackReport, attack_agent as attack_agent
    from corral._testing.conformance.check import Report as Report, check_agent as check_agent
    from corral._testing.hostile import (
        HostileRepository as HostileRepository,
        hostile_repository as hostile_repository,
    )
    from corral._testing.model_server.request import (
        Call as Call,
        Message as Message,
        Request as Request,
        ToolResult as ToolResult,
    )
    from corral._testing.model_server.script import (
        Expect as Expect,
        Script as Script,
        Turn as Turn,
        call as call,
        fail as fail,
        hang as hang,
        say as say,
    )
    from corral._testing.model_server.server import Lane as Lane, ModelServer as ModelServer
    from corral._testing.plugin import AgentCassette as AgentCassette

_HOMES = {
    "corral._testing.attack": "AttackReport attack_agent",
    "corral._testing.conformance.check": "Report check_agent",
    "corral._testing.hostile": "HostileRepository hostile_repository",
    "corral._testing.model_server.request": "Call Message Request ToolResult",
    "corral._testing.model_server.script": "Expect Script Turn call fail hang say",
    "corral._testing.model_server.server": "Lane ModelServer",
    "corral._testing.plugin": "AgentCassette",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
