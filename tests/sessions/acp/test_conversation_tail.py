"""What a prompt adds to the files of a conversation."""

from __future__ import annotations

from pathlib import Path

from corral._agents.spec import AcpTransport
from corral._sessions.backends.acp import ConversationTail


def test_each_complete_line_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "chats").mkdir()
    file = tmp_path / "chats" / "s.jsonl"
    file.write_bytes(b"before\n")
    transport = AcpTransport(conversation_files="chats/{}.jsonl")
    tail = ConversationTail(transport, tmp_path, "s")
    assert tail.read() == b""
    with file.open("ab") as out:
        out.write(b"one\ntw")
    assert tail.read() == b"one\n"
    with file.open("ab") as out:
        out.write(b"o\n")
    assert tail.read() == b"two\n"
    assert tail.read() == b""
