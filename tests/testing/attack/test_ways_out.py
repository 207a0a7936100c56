"""The attempts to leave the sandbox: all of them work outside of it, and each part of the sandbox
is needed to stop them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options

from corral._sessions.prepare import prepare
from corral._sessions.sandbox import command_sandbox
from corral._testing.attack.arena import Arena
from corral._testing.attack.attempts import ways_out
from corral._testing.attack.attempts.attempt import Cell
from corral._testing.attack.effects import EffectObserver
from corral._testing.attack.model import Made
from corral._testing.attack.plan import SANDBOX_POLICIES

CELLS: tuple[Cell, ...] = (
    "read outside",
    "write outside",
    "git folder",
    "network",
    "local sockets",
    "other processes",
    "credentials",
)
INSIDE: tuple[Cell, ...] = ("write inside",)
LOGINS = (".ssh/id", ".aws/credentials", ".local/share/keyrings/login", ".mozilla/logins.json",
          ".config/google-chrome/Cookies", ".codex/auth.json", ".netrc")  # fmt: skip
MACHINE_DECIDES = {
    "the kernel's keys",  # a kernel without keyrings
    "the host of a virtual machine",  # a kernel without that family of sockets
    "the root of the first process",  # which may be another user's, or another container's
    "files by the first process",
    "the memory of the first process",
    "ptrace of the first process",
    "ptrace",
    "a nested namespace",
    *(("the system's folders", "the kernel's settings") if os.geteuid() else ()),
}
"""Attempts that a machine may refuse without a sandbox."""

Change = Callable[[list[str]], list[str]]


@pytest.fixture(autouse=True)
def logins() -> None:
    """The test's own home has a file of each kind."""
    for name in LOGINS:
        file = Path.home() / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"secret of {name}\n")


def successful(folder: Path, cells: Collection[Cell], wrap: Callable[[Arena], int]) -> set[str]:
    """Cell and name of each attempt that had its effect. ``wrap`` runs the script."""
    folder.mkdir()
    attempts = [each for each in ways_out.ALL if each.scripted and each.cell in cells]
    with Arena(folder, links=True, login=()) as arena:
        arena.plant(attempts)
        arena.write_script(attempts)
        assert wrap(arena) == 0
        made: list[Made] = []
        for attempt in attempts:
            one = Made(attempt, "sh", offered=True)
            one.returned = arena.printed(attempt)
            made.append(one)
        observer = EffectObserver(arena, made, ())
        return {f"{each.cell}: {each.name}" for each in attempts if observer.seen(each)}


def command(arena: Arena) -> list[str]:
    return ["sh", str(arena.cwd / "ways-out.sh")]


def run(argv: Sequence[str], passed: Sequence[int] = ()) -> int:
    return subprocess.run(
        argv, pass_fds=passed, capture_output=True, timeout=300, check=False
    ).returncode


def in_sandbox(
    change: Change = list, policy: str = "offline", *, is_guarded: bool = True
) -> Callable[[Arena], int]:
    """In the sandbox of a run with this policy, with other arguments of bubblewrap."""

    def wrap(arena: Arena) -> int:
        chosen = SANDBOX_POLICIES[policy].policy
        given = {**scripted_options(arena.cwd), "policy": chosen, "sandbox": "require"}
        given["record_to"] = arena.recording
        sandbox = command_sandbox(prepare("gemini-acp", given), lambda _: None)
        assert sandbox is not None
        guard = sandbox.guard() if is_guarded else None
        wrapped = sandbox.wrap(guard.read_only if guard is not None else ())
        program, option, number, *rest = wrapped.argv
        assert option == "--args"
        options = os.pread(int(number), 1 << 20, 0).decode().split("\0")[:-1]
        changed = os.memfd_create("changed", 0)
        os.pwrite(changed, b"".join(word.encode() + b"\0" for word in change(options)), 0)
        passed = (*wrapped.passed, changed)
        try:
            return run([program, "--args", str(changed), *rest, *command(arena)], passed)
        finally:
            for each in passed:
                os.close(each)
            if guard is not None:
                guard.finish()

    return wrap


@pytest.mark.deep
def test_every_attempt_works_outside_of_the_sandbox(tmp_path: Path) -> None:
    seen = successful(tmp_path / "arena", (*CELLS, *INSIDE), lambda arena: run(command(arena)))
    attempts = [each for each in ways_out.ALL if each.scripted]
    missing = {f"{each.cell}: {each.name}" for each in attempts} - seen
    assert {each.partition(": ")[2] for each in missing} <= MACHINE_DECIDES


@needs_sandbox
def test_no_attempt_works_in_the_sandbox(tmp_path: Path) -> None:
    assert successful(tmp_path / "arena", CELLS, in_sandbox()) == set()
    inside = in_sandbox(policy="offline-reads")
    assert successful(tmp_path / "read-only", INSIDE, inside) == set()


def without(*words: str) -> Change:
    """Without the first occurrence of these arguments."""

    def change(argv: list[str]) -> list[str]:
        for start in range(len(argv)):
            if [*words] == argv[start : start + len(words)]:
                return [*argv[:start], *argv[start + len(words) :]]
        raise AssertionError(f"{words} is not in {argv}")

    return change


def without_seccomp(argv: list[str]) -> list[str]:
    start = argv.index("--seccomp")
    return [*argv[:start], *argv[start + 2 :]]


def showing(folder: Callable[[], str]) -> Change:
    """With a folder of the machine in place of an empty one."""

    def change(argv: list[str]) -> list[str]:
        path = folder()
        start = argv.index(path, argv.index("--tmpfs")) - 1
        assert argv[start] == "--tmpfs"
        return [*argv[:start], "--bind", path, path, *argv[start + 2 :]]

    return change


def writable_git(argv: list[str]) -> list[str]:
    start = next(i for i, word in enumerate(argv) if word.endswith("/workspace/.git")) - 1
    return [*argv[:start], "--bind", *argv[start + 1 :]]


def writable_workspace(argv: list[str]) -> list[str]:
    start = next(i for i, word in enumerate(argv) if word.endswith("/workspace")) - 1
    assert argv[start] == "--ro-bind"
    return [*argv[:start], "--bind", *argv[start + 1 :]]


def kernel_settings(argv: list[str]) -> list[str]:
    return without("--ro-bind", "/proc/sys", "/proc/sys")(argv)


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root could write there")
WEAKER: dict[str, tuple[Change, Cell, str]] = {
    "the processes": (without("--unshare-pid"), "other processes", "offline"),
    "the shared memory": (without("--unshare-ipc"), "other processes", "offline"),
    "the network": (without("--unshare-net"), "network", "offline"),
    "the system calls": (without_seccomp, "local sockets", "offline"),
    "the home": (showing(lambda: str(Path.home())), "credentials", "offline"),
    "temporary files": (showing(lambda: "/tmp"), "read outside", "offline"),
    "writing": (showing(lambda: "/tmp"), "write outside", "offline"),
    "the repository": (writable_git, "git folder", "offline"),
    "the workspace": (writable_workspace, "write inside", "offline-reads"),
}
WEAKER_FOR_ROOT: dict[str, tuple[Change, Cell, str]] = {
    "the privileges": (without("--cap-drop", "ALL"), "git folder", "offline"),
    "the kernel": (kernel_settings, "write outside", "offline"),
}


@needs_sandbox
@pytest.mark.parametrize(
    ("change", "cell", "policy"),
    [
        *(pytest.param(*case, id=name) for name, case in WEAKER.items()),
        *(pytest.param(*case, id=name, marks=ROOT) for name, case in WEAKER_FOR_ROOT.items()),
    ],
)
@pytest.mark.deep_but_first
def test_without_one_part_of_the_sandbox_an_attempt_works(
    tmp_path: Path, change: Change, cell: Cell, policy: str
) -> None:
    assert successful(tmp_path / "arena", (cell,), in_sandbox(change, policy)) != set()


@needs_sandbox
def test_without_the_guard_a_repository_starts_programs(tmp_path: Path) -> None:
    cells: tuple[Cell, ...] = ("git folder",)
    seen = successful(tmp_path / "arena", cells, in_sandbox(is_guarded=False))
    new = {each.name for each in ways_out.GIT if each.effects[0].kind == "git"}
    assert seen == {f"git folder: {name}" for name in new}
