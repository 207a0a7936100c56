"""Where ACP agents differ from the protocol or from one another, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from corral.events import ToolKind

if TYPE_CHECKING:
    from corral._protocol.question_forms import NoteFields


class AcpQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one agent. The defaults are what the protocol says."""

    name_from_id: str = ""
    """The tool's name is the part of the call id before this text."""
    name_from_meta: tuple[str, ...] = ()
    """The path of keys in ``_meta`` that leads to the tool's name."""
    name_from_title: bool = False
    """The first title of a call is the tool's name; later titles are titles."""
    name_before_text: str = ""
    """The tool's name is the part of the first title before this text."""
    kinds: Mapping[str, ToolKind] = {}
    """Tool name → kind, where the kind that the agent sends is missing or wrong."""
    path_key: str = ""
    """The key of a path in the input or in a list of objects in it, for agents that send no
    ``locations``."""
    unavailable_tool: str = ""
    """Prefix of ``error`` in the input of a call that reports the use of an unavailable tool
    (``tool``). Such a call ends as completed, but the use was denied."""
    outside_title: str = ""
    """The title of a permission request for a path outside the workspace. Its kind is ``read``
    even for a write, so it is treated as an edit."""
    title_is_command: bool = False
    """The title of a shell call is the complete command; its input is not sent."""
    mcp_prefixes: tuple[str, ...] = ()
    """Name prefixes of tools of MCP servers. The protocol has no kind for them."""
    server_prefix: str = ""
    """The form of the prefix that the tools of each MCP server have, ``{}`` for the server: added
    to ``mcp_prefixes`` for the servers of a run."""
    mcp_from_input: bool = False
    """Calls of MCP tools name the server and the tool in the input only."""
    injected_text: tuple[str, ...] = ()
    """Prefixes of answer chunks that are messages of the agent itself and not of the model."""
    error_text: str = ""
    """Prefix of an error in the answer. If the last chunk starts with it, the turn failed,
    although the agent reports success, provided that the turn used no tokens or the chunk
    matches ``error_pattern``."""
    error_pattern: str = ""
    """A regular expression for errors that come after successful model calls."""
    errors_without_message_id: bool = False
    """Messages of the model have ids. If the last chunk of a turn has none, the turn failed and
    the chunk is the error."""
    denied_code: str = ""
    """The ``code`` in the output of a call that the agent's own rules denied."""
    usage: Literal["turn", "last_step", "chunks", "session"] = "turn"
    """What the usage in the reply to a prompt covers: the turn, its last step only, or all turns
    since the session was opened. ``chunks``: usage comes with text chunks (``_meta.usage``),
    once per model call."""
    no_update_after_denial: bool = False
    """No update comes for a denied call, so its result is emitted at once. Otherwise the
    agent's update is awaited until the turn ends."""
    repeats_finished_calls: bool = False
    """A finished call is sent once more from its beginning, with the same id."""
    quiet_period: float = 0.0
    """Seconds to wait after a session was loaded: history may come after the reply."""
    late_updates: float = 0.05
    """Seconds of silence to wait for after the end of a turn: updates may come after it, and a
    program that exits then has crashed."""
    model_list_complete: bool = True
    """A model that is not listed cannot be used."""
    denied_texts: tuple[str, ...] = ()
    """Texts in the error of a call that the agent's own rules denied, or whose tool is hidden."""
    set_model: Literal["session/set_model", "session/set_config_option"] | None = (
        "session/set_config_option"
    )
    """The method that chooses the model of a session; ``None``: the agent has no such method."""
    missing_file_is_empty: bool = False
    """Reply to the read of a missing file with an empty one: after an error the agent does not
    create the file."""
    calls_unoffered_fs: bool = False
    """Calls ``fs/*`` although it was not offered. The calls are passed to the caller anyway."""
    uses_client_files: bool = False
    """Its file tools call ``fs/*`` if that is offered, instead of opening the file."""
    note_key: str = ""
    """The key in ``_meta`` under which a property of a form says that it is the text beside the
    options of another one (``NoteFields``)."""
    note_option: str = ""
    """The option that stands for such a text."""
    command_prefixes: tuple[str, ...] = ()
    """Prefixes by which the agent takes a prompt for one of its own commands."""
    command_escape: str = ""
    """Text put before such a prompt so that it is not taken for a command."""
    mention_escape: str = ""
    """Text put before each ``@`` at the start of a word: the agent would add the file of that name
    to the prompt, without asking."""

    @property
    def note_fields(self) -> NoteFields | None:
        """Made when a form comes."""
        from corral._protocol.question_forms import NoteFields

        return NoteFields(self.note_key, self.note_option) if self.note_key else None


DEFAULT_QUIRKS = AcpQuirks()
