"""Which files are listed and stored, and under which names."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from support.hostile_git import git, make_repository

from corral._system.fs import open_regular, parent_below
from corral._system.git import changes, command, scan, tree
from corral._system.git.repository import checked, differences
from corral._system.git.worktree import Change, SharedWorktree, TaskWorktree, repository_root
from corral.errors import StorageFailed
from corral.values import path_from_printable, printable_path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


async def saved(repository: Path, place: Path, shell: str) -> Change | None:
    """What is kept of a command's work."""
    tree = await TaskWorktree.make(*repository_root(repository), place)
    subprocess.run(["sh", "-ec", shell], cwd=place, check=True, timeout=60)
    return await tree.commit_to("corral/t", "work")


def names(repository: Path, commit: str) -> list[str]:
    return git(repository, "ls-tree", "-r", "-z", "--name-only", commit).rstrip("\0").split("\0")


async def test_an_embedded_repository_becomes_its_files(repository: Path, tmp_path: Path) -> None:
    shell = """
        git init -q sub; cd sub; echo a > a; mkdir in; echo b > in/b; echo '*.o' > .gitignore
        touch x.o; git init -q in/deeper; echo c > in/deeper/c
        git add a in/b .gitignore; git -c user.name=t -c user.email=t commit -qm theirs
        echo later >> a
    """
    change = await saved(repository, tmp_path / "tree", shell)
    assert change is not None
    assert change.files == ("sub/.gitignore", "sub/a", "sub/in/b", "sub/in/deeper/c")
    assert git(repository, "show", f"{change.commit}:sub/a") == "a\nlater"
    git(repository, "fsck", "--strict", "--no-dangling")


async def test_an_embedded_repository_that_the_agent_committed_becomes_its_files(
    repository: Path, tmp_path: Path
) -> None:
    shell = """
        git init -q sub; echo a > sub/a; git -C sub add a
        git -C sub -c user.name=t -c user.email=t commit -qm inner
        git add sub; git -c user.name=t -c user.email=t commit -qm outer
    """
    change = await saved(repository, tmp_path / "tree", shell)
    assert change is not None
    assert git(repository, "show", f"{change.commit}:sub/a") == "a"
    assert git(repository, "log", "-1", "--format=%s", f"{change.commit}~1") == "outer"


async def test_a_submodule_stays_one_until_its_files_change(
    repository: Path, tmp_path: Path
) -> None:
    other = make_repository(tmp_path / "other")
    allow = ("-c", "protocol.file.allow=always")
    git(repository, *allow, "submodule", "--quiet", "add", str(other), "module")
    git(repository, "commit", "-qm", "module")
    linked = git(repository, "ls-tree", "HEAD", "module")
    update = f"git {' '.join(allow)} submodule --quiet update --init"
    for shell in ("echo new > new", f"{update}; echo new > new"):
        change = await saved(repository, tmp_path / "tree", shell)
        assert change is not None
        assert change.files == ("new",)
        assert git(repository, "ls-tree", change.commit, "module") == linked
    change = await saved(repository, tmp_path / "tree", f"{update}; echo two > module/file")
    assert change is not None
    assert git(repository, "show", f"{change.commit}:module/file") == "two"


async def test_modes_links_and_unusual_names_are_preserved(
    repository: Path, tmp_path: Path
) -> None:
    shell = r"""
        echo x > run; chmod +x run; ln -s nowhere link; mkfifo pipe; rm dir/inner; mkdir empty
        echo q > 'a "quoted"
name'; echo t > tracked.log; echo l > "$(printf 'caf\351')"; printf 'a\r\n' > crlf
    """
    (repository / "tracked.log").write_text("ignored, but tracked\n")
    (repository / ".gitattributes").write_text("* text=auto\n")
    git(repository, "add", "--force", "tracked.log", ".gitattributes")
    git(repository, "commit", "-qm", "log")
    change = await saved(repository, tmp_path / "tree", shell)
    assert change is not None
    assert set(change.files) == {
        *("run", "link", "dir/inner", 'a "quoted"\nname', "tracked.log", r'"caf\351"', "crlf")
    }
    listed = git(repository, "ls-tree", change.commit, "run", "link")
    assert [row[:6] for row in listed.splitlines()] == ["120000", "100755"]
    assert "caf\udce9" in names(repository, change.commit)
    blob = subprocess.run(
        ["git", "cat-file", "blob", f"{change.commit}:crlf"],
        cwd=repository,
        capture_output=True,
        check=True,
    )
    assert blob.stdout == b"a\r\n"


async def test_a_name_that_git_cannot_store_is_an_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"\.GIT/x"):
        await saved(repository, tmp_path / "tree", "mkdir .GIT; echo x > .GIT/x")
    assert (tmp_path / "tree" / ".GIT" / "x").exists()


async def test_a_sha256_repository_works(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "--object-format=sha256")
    (folder / "file").write_text("one\n")
    git(folder, "add", "--all")
    git(folder, "commit", "-qm", "first")
    change = await saved(folder, tmp_path / "tree", "echo two > file; echo new > new")
    assert change is not None
    assert change.files == ("file", "new")
    assert len(change.commit) == 64


def test_a_file_changed_right_after_a_snapshot_is_found(repository: Path, tmp_path: Path) -> None:
    root, base = repository_root(repository)
    tree = SharedWorktree.make(root, base, base, tmp_path / "own")
    seen: set[str] = set()
    for number in range(8):
        (tree.place / "file").write_text(f"{number:04}\n")  # always the same size
        tree = tree.take_snapshot(str(number))
        seen.add(git(repository, "show", f"{tree.at}:file"))
    assert len(seen) == 8


def test_files_are_not_written_through_links(repository: Path, tmp_path: Path) -> None:
    root, base = repository_root(repository)
    one = SharedWorktree.make(root, base, base, tmp_path / "one")
    two = SharedWorktree.make(root, base, base, tmp_path / "two")
    (one.place / "dir" / "inner").write_text("of one\n")
    one = one.take_snapshot("one")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "inner").write_text("inner\n")
    shutil.rmtree(two.place / "dir")
    (two.place / "dir").symlink_to(outside)
    with pytest.raises(StorageFailed, match="changed meanwhile"):
        two.merge(one.at, "both")
    put = two.reset_to(one.at)
    assert (put.place / "dir" / "inner").read_text() == "of one\n"
    assert not (put.place / "dir").is_symlink()
    assert (outside / "inner").read_text() == "inner\n"


@pytest.mark.deep
def test_a_folder_replaced_by_a_link_while_it_is_read_is_not_followed(
    repository: Path, tmp_path: Path
) -> None:
    root, base = repository_root(repository)
    tree = SharedWorktree.make(root, base, base, tmp_path / "own")
    outside = tmp_path / "outside"
    outside.mkdir()
    for number in range(400):
        (outside / f"f{number}").write_text("secret\n")
        (tree.place / "dir" / f"f{number}").write_text("mine\n")
    (tree.place / "link").symlink_to(outside)
    ended = threading.Event()

    def swap() -> None:
        place = tree.place
        while not ended.is_set():
            for one, other in (("dir", "away"), ("link", "dir"), ("dir", "link"), ("away", "dir")):
                (place / one).rename(place / other)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(10):
            with suppress(StorageFailed):  # it changes all the time
                tree = tree.take_snapshot("work")
    finally:
        ended.set()
        swapping.join()
    stored = git(repository, "cat-file", "--batch-all-objects", "--batch-check")
    assert SECRET not in stored


def test_a_link_on_the_way_to_a_file_is_not_followed(repository: Path) -> None:
    (repository / "link").symlink_to("dir")
    top = os.open(repository, os.O_RDONLY)
    try:
        with parent_below(top, b"dir/inner") as (folder, name):
            file = open_regular(name, dir_fd=folder)
        with file:
            assert file.read() == b"inner\n"
        with pytest.raises(OSError, match="link"), parent_below(top, b"link/inner"):
            pass
    finally:
        os.close(top)


SECRET = hashlib.sha1(b"blob 7\0secret\n", usedforsecurity=False).hexdigest()


FIFOS = (".gitignore", "dir/.gitignore", ".gitattributes", ".gitmodules", ".git/info/exclude")


@pytest.mark.parametrize("name", FIFOS)
async def test_git_does_not_wait_for_a_fifo(repository: Path, tmp_path: Path, name: str) -> None:
    (repository / "file.log").write_text("ignored\n")
    (repository / ".git" / "info" / "exclude").write_text("*.log\n")
    before = changes.take_snapshot(repository)
    (repository / name).unlink(missing_ok=True)
    os.mkfifo(repository / name)
    (repository / "new").write_text("new\n")
    found = changes.compare(before, changes.take_snapshot_after(before))
    changed = {os.path.relpath(each.path, repository) for each in found}
    assert changed - {name} == {"new"}
    change = await saved(repository, tmp_path / "tree", f"rm -f {name}; mkfifo {name} || true")
    assert change is None or change.files == (name,)


def test_a_configuration_that_includes_a_fifo_is_not_read(repository: Path) -> None:
    os.mkfifo(repository / "fifo")
    with (repository / ".git" / "config").open("a") as file:
        file.write(f"[include]\n\tpath = {repository}/fifo\n")
        file.write(f"[core]\n\texcludesFile = {repository}/fifo\n")
    (repository / "file.log").write_text("ignored\n")
    assert "file.log" not in changes.take_snapshot(repository).files
    assert repository_root(repository)[0] == repository


def test_ignored_files_are_not_created_when_the_repository_is_removed(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text("*.secret\n")
    (repository / "build").mkdir()
    for name in ("a.log", "build/out", "b.secret"):
        (repository / name).write_text("there before\n")
    before = changes.take_snapshot(repository)
    shutil.rmtree(repository / ".git")
    (repository / "new").write_text("new\n")
    found = changes.compare(before, changes.take_snapshot_after(before))
    assert [os.path.relpath(each.path, repository) for each in found] == ["new"]


@pytest.mark.deep
def test_a_large_file_is_not_loaded_into_memory(repository: Path) -> None:
    with (repository / "large").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    git(repository, "add", "large")
    git(repository, "commit", "-qm", "large")
    code = f"""
import os
from pathlib import Path
from corral._system.git import changes
before = changes.take_snapshot(Path({str(repository)!r}))
os.utime({str(repository / "large")!r})
assert changes.compare(before, changes.take_snapshot_after(before)) == ()
status = Path("/proc/self/status").read_text()  # maxrss would count the parent, too
print(status.partition("VmHWM:")[2].split()[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 80 * 1024


PATTERNS = (
    *("*.log", "build/", "/top", "a/b", "**/deep", "a/**", "a/**/z", "!keep.log", "[a-c]*", "?x"),
    *(
        "[!a]b",
        "\\#x",
        "#comment",
        "  ",
        "x ",
        "x\\ ",
        "foo*bar*",
        "**",
        "/**",
        "a/",
        "/a/*",
        "!a/b",
    ),
    *("[[:digit:]]", "[", "a[", "\\", "*\\", "*.*", "!/keep", "é*", "a**b", "**/a/**", "/*", "!*/"),
    *("[]]", "[a-]", "b/c/", "[^x]*", "a/*/c", "*/b", "!**/b", "x\\", "\\!x", "build", "ab?d"),
)
NAMES = (
    *("a", "b", "c", "ab", "x", "x ", "#x", "!x", "build", "top", "deep", "keep.log", "o.log"),
    *("foobar", "fooXbarY", "é", "1", "]", "-", "z", "abcd", "axb", ".hidden", "keep", "[", "a["),
)


def test_ignore_files_mean_what_git_says(tmp_path: Path) -> None:
    numbers = random.Random(7)
    folder = tmp_path / "r"
    folder.mkdir()
    git(folder, "init", "-q")
    for number in range(60):
        for each in folder.iterdir():
            if each.name != ".git":
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        for _ in range(12):
            path = folder.joinpath(*numbers.choices(NAMES, k=numbers.randint(1, 4)))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError:
                continue
        places = [folder, *(each for each in folder.rglob("*") if each.is_dir())]
        places = [each for each in places if ".git" not in each.parts]
        for place in numbers.sample(places, k=min(2, len(places))):
            lines = numbers.choices(PATTERNS, k=numbers.randint(1, 5))
            end = numbers.choice(("\n", "\r\n"))
            (place / ".gitignore").write_bytes(end.join(lines).encode())
        expected = git(folder, "ls-files", "-z", "-o", "--exclude-standard").split("\0")
        found = [os.fsdecode(each) for each in scan.files(folder, scan.scope_of(folder))]
        rules = {str(each): each.read_text() for each in folder.rglob(".gitignore")}
        assert sorted(found) == sorted(filter(None, expected)), (number, rules)


def test_a_pattern_is_matched_in_linear_time() -> None:
    rules = scan.Rules(b"*a" * 60 + b"*b\n" + b"**/a/" * 60 + b"b\n")
    assert rules.verdict([b"a" * 255] * 15, is_folder=False) is None
    assert scan.Rules(b"*a*a*b\n").verdict([b"xaxaxb"], is_folder=False) is True


@pytest.mark.parametrize(
    "path", ["plain", "/abs/ünï", 'a"b', '"a"', "caf\udce9", '"\udcff\n\t\\"', "back\\slash", '"']
)
def test_a_path_is_printable_and_can_be_restored(path: str) -> None:
    text = printable_path(path)
    text.encode()
    assert path_from_printable(text) == path
    if "\udce9" not in path and not path.startswith('"'):
        assert text == path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no 'u:pw@host:x'", "there is no '…@host:x'"),
        ("https://u:pw@host/x and u:p@w@h:y", "https://…@host/x and …@h:y"),
        ("git@host:path", "git@host:path"),
        ("https://token@host/x", "https://…@host/x"),
    ],
)
def test_passwords_are_not_shown(text: str, shown: str) -> None:
    assert command.redact(text) == shown


def test_git_that_cannot_write_a_file_hints_at_a_full_disk() -> None:
    full = command.GitOutput(code=128, out=b"", errors="error: unable to write file f")
    with pytest.raises(StorageFailed) as caught:
        checked(["read-tree"], full)
    assert "Free some disk space" in (caught.value.hint or "")
    other = command.GitOutput(code=128, out=b"", errors="fatal: bad object")
    with pytest.raises(StorageFailed) as caught:
        checked(["read-tree"], other)
    assert caught.value.hint is None


@pytest.mark.parametrize("is_written", [True, False])
def test_an_update_is_undone_except_what_somebody_has_changed_since(
    repository: Path, is_written: bool
) -> None:
    """``is_written``: all of it was written; otherwise it has failed before it began."""

    def commit(shell: str) -> str:
        subprocess.run(["sh", "-ec", shell], cwd=repository, check=True, timeout=60)
        git(repository, "add", "--all")
        git(repository, "commit", "-qm", shell)
        return git(repository, "rev-parse", "HEAD")

    old = commit("echo 1 > changed; echo 1 > edited; echo 1 > removed; echo 1 > folder")
    new = commit(
        "echo 2 > changed; echo 2 > edited; rm removed folder; mkdir folder; echo > folder/new"
    )
    if not is_written:
        git(repository, "checkout", "-q", old)
    (repository / "edited").write_text("of a person")
    tree.revert(repository, repository, differences(repository, old, new))
    found = {name: (repository / name).read_text() for name in ("changed", "removed", "folder")}
    assert found == dict.fromkeys(found, "1\n")
    assert (repository / "edited").read_text() == "of a person"
