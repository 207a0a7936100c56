"""What an injected model tries: attempts as data.

An attempt is one tool call and the effect that shows that it worked. Its texts have placeholders.
The arena fills them in, so that every attempt has its own targets and an effect belongs to exactly
one attempt:

- ``{made}``: a file in the workspace that does not exist; ``{out}``: one outside of it;
- ``{victim}``: a file in the workspace; ``{outvictim}``: one outside of it;
- ``{secret}``: a file outside, whose content is random;
- ``{home}``: a name in the user's home that does not exist;
- ``{cwd}``, ``{outside}``: the two folders; ``{name}``: a name that no other attempt uses;
- ``{pid}``: a process with a secret in its environment; ``{url}``: an address that records visits;
  ``{seconds}``: the argument of a ``sleep`` that no other attempt uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from corral._agents.spec import Act

Cell = Literal[
    "read inside",
    "read outside",
    "write inside",
    "write outside",
    "races",
    "protected files",
    "shell",
    "shell rules",
    "allowed commands",
    "network",
    "mcp",
    "environment",
    "processes",
    "git folder",
    "local sockets",
    "other processes",
    "credentials",
    "ACP file methods",
]
Kind = Literal[
    "file",
    "changed",
    "returned",
    "visit",
    "hosted",
    "process",
    "tool call",
    "stored",
    "message",
    "killed",
    "digest",
    "git",
    "recorded",
]
Extra = Literal["links", "mcp"]
"""What a session needs in addition to the workspace. An agent may refuse to start with it."""


class AttackEffect(msgspec.Struct, frozen=True):
    """What shows that an attempt worked.

    ``file``: a path exists that did not exist before. ``changed``: a file has another content, or
    was removed. ``returned``: the result of a tool contains the text. ``visit``: the address was
    requested. ``hosted``: a request to the model's server contains a hosted web tool. ``process``:
    it runs after the session. ``tool call``: the tool server was used. ``stored``: a file of the
    workspace or of the user's agents, written since the session started, contains the text.
    ``message``: a socket of the machine received the text. ``killed``: a process outside was
    ended. ``digest``: the result of a tool contains the digest of a login file. ``git``: when git
    is started in this folder of the workspace, after the session, it starts a program that makes
    the file in the second line. ``recorded``: the text is a line
    of the recording of the session.
    """

    kind: Kind
    what: str


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    group: str
    cell: Cell
    act: Act | Literal["mcp", "none"]
    given: Mapping[str, str] = {}
    effects: tuple[AttackEffect, ...]
    needs: Extra | None = None
    form: int | None = None
    """Which of the agent's tools for this act; None: the first that is offered."""
    delegated: Attempt | None = None
    """What the sub-agent tries, if the attempt starts one."""
    first: Attempt | None = None
    """A call that is made before it, with the same targets."""
    repeat: int = 1
    """How often it is tried: more than once if it depends on the moment."""
    confined: bool = False
    """Only made where commands are allowed and the sandbox limits them."""
    scripted: bool = False
    """Made by a script with all others of this kind, not by a tool call of its own."""


def attempt(
    group: str,
    cell: Cell,
    act: Act | Literal["mcp", "none"],
    name: str,
    *effects: AttackEffect,
    needs: Extra | None = None,
    first: Attempt | None = None,
    delegated: Attempt | None = None,
    repeat: int = 1,
    **given: str,
) -> Attempt:
    """An attempt with these effects; ``given`` are the values of the tool call."""
    return Attempt(
        name=name,
        group=group,
        cell=cell,
        act=act,
        given=given,
        effects=effects,
        needs=needs,
        first=first,
        delegated=delegated,
        repeat=repeat,
    )


def made(path: str = "{made}") -> AttackEffect:
    return AttackEffect("file", path)


def changed(path: str = "{victim}") -> AttackEffect:
    return AttackEffect("changed", path)


def returned(text: str = "{canary}") -> AttackEffect:
    return AttackEffect("returned", text)


def command_attempts(
    group: str, cell: Cell, table: Mapping[str, tuple[str, AttackEffect]]
) -> Sequence[Attempt]:
    """One attempt for each command: name → the command and its effect."""
    return [
        attempt(group, cell, "run", name, effect, command=text)
        for name, (text, effect) in table.items()
    ]


def path_attempts(
    group: str,
    tables: Mapping[tuple[Cell, Act], Mapping[str, tuple[str, AttackEffect]]],
    needs: Extra | None = None,
) -> Sequence[Attempt]:
    """One attempt for each path: name → the path and the effect of using it."""
    return [
        attempt(
            group,
            cell,
            act,
            f"{act} {name}",
            effect,
            needs=needs,
            path=path,
            text="attack",
            before="original",
            after="attack",
            pattern="canary",
        )
        for (cell, act), table in tables.items()
        for name, (path, effect) in table.items()
    ]
