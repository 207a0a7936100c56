"""The rows of a sandbox are derived from what it is built of."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from corral._system.sandbox import bubblewrap, sandbox, seccomp
from corral._system.sandbox.box import Box, SandboxEndpoint
from corral._system.sandbox.sandbox import Support
from corral.policy import SANDBOX_CELLS, SandboxRow

BUBBLEWRAP = Support(method="bubblewrap")


def rows(box: Box, support: Support = BUBBLEWRAP) -> dict[str, SandboxRow]:
    home = os.path.expanduser("~")
    found = sandbox.enforced_rows(support, box, home, [f"{home}/.ssh", f"{home}/.netrc"])
    assert tuple(row.cell for row in found) == SANDBOX_CELLS
    return {row.cell: row for row in found}


def levels(box: Box, support: Support = BUBBLEWRAP) -> dict[str, str | None]:
    return {cell: row.enforcer for cell, row in rows(box, support).items()}


@pytest.fixture
def box(workspace: Path) -> Box:
    for name in (".ssh/id", ".netrc"):
        file = Path.home() / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("secret")
    return Box(cwd=str(workspace), writable=(str(workspace),))


def test_a_usual_box_denies_every_way_out(box: Box) -> None:
    denied = {*SANDBOX_CELLS} - {"write inside"}
    assert levels(box) == {**dict.fromkeys(denied, "sandbox"), "write inside": None}
    read_only = msgspec.structs.replace(box, writable=(), readable=box.writable)
    assert rows(read_only)["write inside"] == SandboxRow("write inside", "deny", "sandbox")


def test_what_a_box_shows_is_not_denied(box: Box) -> None:
    home = os.path.expanduser("~")
    shown = rows(msgspec.structs.replace(box, readable=(home,)))
    assert shown["read outside"].enforcer == shown["credentials"].enforcer == "impossible"
    assert shown["credentials"].note == f"{home}/.ssh, {home}/.netrc"
    covered = rows(msgspec.structs.replace(box, readable=(f"{home}/.ssh",)))
    assert covered["credentials"].note == f"{home}/.ssh"


def test_the_network_row_names_what_can_be_reached(box: Box) -> None:
    box = msgspec.structs.replace(box, endpoints=(SandboxEndpoint("model.example", 443),))
    assert rows(box)["network"].note == "only model.example can be reached"
    free = msgspec.structs.replace(box, network=True)
    assert rows(free)["network"] == SandboxRow("network", "allow")


def test_further_writable_folders_are_named(box: Box, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    box = msgspec.structs.replace(box, writable=(*box.writable, str(more)))
    row = rows(box)["write outside"]
    assert (row.enforcer, row.note) == ("sandbox", f"also writable: {more}")


@pytest.mark.parametrize(
    ("option", "cell"), [("--unshare-pid", "other processes"), ("--unshare-net", "network")]
)
def test_a_namespace_that_is_left_out_is_not_reported(
    box: Box, monkeypatch: pytest.MonkeyPatch, option: str, cell: str
) -> None:
    usual = bubblewrap.layout

    def weaker(box: Box, home: str) -> list[str]:
        return [word for word in usual(box, home) if word != option]

    monkeypatch.setattr(bubblewrap, "layout", weaker)
    assert levels(box)[cell] == "impossible"


def test_a_processor_without_a_filter_is_reported(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seccomp, "is_supported", lambda: False)
    assert levels(box)["local sockets"] == "impossible"


def test_landlock_limits_writing_and_nothing_else(box: Box) -> None:
    landlock = levels(box, Support(method="landlock"))
    assert [cell for cell, level in landlock.items() if level == "sandbox"] == ["write outside"]
    assert sandbox.enforced_rows(Support(method=None), box, "/home/x") == ()
