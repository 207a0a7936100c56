"""Tools for tests, of corral and of its users: a scripted model server, the conformance kit, the
attack kit, and a hostile repository.

Names are loaded when they are first used, so that importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.testing.attack import AttackReport, attack_agent
    from corral.testing.conformance.check import Report, check_agent
    from corral.testing.hostile import HostileRepository, hostile_repository
    from corral.testing.model_server.request import Call, Message, Request, ToolResult
    from corral.testing.model_server.script import Expect, Script, Turn, call, fail, hang, say
    from corral.testing.model_server.server import Lane, ModelServer

__all__ = [
    "AttackReport",
    "Call",
    "Expect",
    "HostileRepository",
    "Lane",
    "Message",
    "ModelServer",
    "Report",
    "Request",
    "Script",
    "ToolResult",
    "Turn",
    "attack_agent",
    "call",
    "check_agent",
    "fail",
    "hang",
    "hostile_repository",
    "say",
]

_MODULES = {
    "AttackReport": "attack",
    "HostileRepository": "hostile",
    "hostile_repository": "hostile",
    "attack_agent": "attack",
    "Call": "model_server.request",
    "Report": "conformance.check",
    "check_agent": "conformance.check",
    "Lane": "model_server.server",
    "Message": "model_server.request",
    "ModelServer": "model_server.server",
    "Request": "model_server.request",
    "ToolResult": "model_server.request",
}
"""The module of each name that is not in ``model_server.script``."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'model_server.script')}"), name)
