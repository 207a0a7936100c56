"""What the agents that speak the protocol do each in their own way, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from corral.events import ToolKind


class AcpQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one agent. The defaults are the protocol's own words and change nobody."""

    name_from_id: str = ""
    """The tool's name is what stands before this in the id of its call."""
    name_from_meta: tuple[str, ...] = ()
    """Where in ``_meta`` the tool's name stands: a path of keys."""
    name_from_title: bool = False
    """The title a call begins with is the tool's name; later titles are titles."""
    name_before: str = ""
    """The tool's name is what stands before this in the title a call begins with."""
    kinds: Mapping[str, ToolKind] = {}
    """The kind of a tool by its name, where the agent's own word is missing or wrong."""
    path_key: str = ""
    """Where the files of a call are told in its input alone: the key that names one, there or in
    a list of objects there."""
    unavailable_tool: str = ""
    """How the input of a call (``error``) begins that stands for one of a tool (``tool``)
    that the model may not use: it ends well, and is a refusal."""
    outside_title: str = ""
    """The title of a question about a place outside the workspace, whatever is to be done
    there: it says ``read`` for a write too, and so counts as one."""
    title_is_command: bool = False
    """The title of a shell call is its command, whole; its input is not sent."""
    mcp_prefixes: tuple[str, ...] = ()
    """Tools whose name begins so are of a tool server; the protocol knows no such kind."""
    mcp_from_input: bool = False
    """A call of a tool server names the server and the tool in its input, and nowhere else."""
    injected_text: tuple[str, ...] = ()
    """Pieces of the answer that begin so are no answer, but the agent's own remarks."""
    error_text: str = ""
    """A turn whose last piece of the answer begins so has failed, though the agent says that it
    ended well, if the turn counts no tokens or the piece has one of ``error_signs``."""
    error_signs: str = ""
    """A regular expression: how an error is told after model calls that succeeded."""
    nameless_errors: bool = False
    """Its messages have ids. A turn whose last piece of the answer has none has failed with that
    text."""
    denied_code: str = ""
    """What a call that the agent's own rules refused has as ``code`` in its output."""
    usage: Literal["turn", "last_step", "chunks", "session"] = "turn"
    """Whether a prompt's reply counts its whole turn, or its last step alone, or all turns
    since the session was opened here; or the counts come beside pieces of text
    (``_meta.usage``), one a model call."""
    rejected_tools_stay_silent: bool = False
    """A refused tool gets no update: its end is told at once. Else the agent's word is
    waited for, until the turn ends."""
    told_again: bool = False
    """A call that is over is told from its beginning under its id, and is no new one."""
    quiet_period: float = 0.0
    """Seconds to wait after a session was loaded: history may still come after the reply."""
    late_updates: float = 0.0
    """Seconds of silence to wait for after a turn's end was told: updates may still come."""
    model_list_complete: bool = True
    """A model that is not listed cannot be used."""
    denied_signs: tuple[str, ...] = ()
    """What the failure of a call holds that the agent's own rules refused, or that is hidden."""
    set_model: Literal["session/set_model", "session/set_config_option"] | None = (
        "session/set_config_option"
    )
    """How a session's model is chosen; ``None``: not at all."""
    missing_file_is_empty: bool = False
    """A file that is not there is answered as an empty one: an error would make the
    agent fail to create it."""
    unoffered_fs: bool = False
    """Calls ``fs/*`` without having been offered it; the floor above answers all the same."""
    uses_client_files: bool = False
    """Its file tools call ``fs/*`` where that is offered, in place of opening the file itself."""
    command_marks: tuple[str, ...] = ()
    """A prompt that begins so is taken for a command of the agent's own …"""
    command_guard: str = ""
    """… unless this stands before it."""


PLAIN = AcpQuirks()
