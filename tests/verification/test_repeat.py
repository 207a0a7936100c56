"""Forged receipts: none of them is repeated with the answer ``same`` for a caller who demands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.verified_runs import RIGHT, git, make_project, verified_run

from corral._verification.receipt_file import StoredReceipt, read_receipt
from corral._verification.repeat import Demands, Repetition, repeat
from corral.errors import ConfigError, CorralError
from corral.receipt import Receipt, receipt_hash

CHECK = "make -s test"
CALLER = Demands(commands=(CHECK,), is_required=True, before="main")
Fields = dict[str, Any]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fields]:
    """A repository whose branch ``topic`` has the work of an honest run, and its receipt."""
    project = tmp_path_factory.mktemp("honest") / "project"
    make_project(project)
    (project / "Makefile").write_text("test:\n\tgrep -q 'a + b' calc.py\n")
    (project / "examples").mkdir()
    (project / "examples" / "Makefile").write_text("test:\n\ttrue\n")
    git(project, "add", "--all")
    git(project, "commit", "-qm", "more")
    git(project, "checkout", "-qb", "topic")
    (project / "calc.py").write_text(RIGHT)
    return project, fields_of(project, CHECK)


def tree_of(project: Path) -> str:
    git(project, "add", "--all")
    return git(project, "write-tree")


def fields_of(project: Path, check: str) -> Fields:
    """A receipt as a run would have written it of the files that are there now."""
    commit, after = git(project, "rev-parse", "main"), tree_of(project)
    before = git(project, "rev-parse", "main^{tree}")
    rows = [row.split() for row in git(project, "diff-tree", "-r", before, after).splitlines()]
    changed: list[Fields] = []
    for old_mode, new_mode, old, new, _, path in rows:
        row: Fields = {"path": path}
        if old.strip("0"):
            row["before"] = f"{old_mode[1:]}:{old}"
        if new.strip("0"):
            row["after"] = f"{new_mode}:{new}"
        changed.append(row)
    return {
        "format": 1,
        "verdict": "verified",
        "created": 1.0,
        "corral": "0.1.0",
        "run": {"run_id": "20260101-000000-abcdef.1", "agent": "a", "status": "success"},
        "before": {"tree": before, "commit": commit},
        "after": {"tree": after, "commit": commit},
        "changed": changed,
        "clean": {"tree": after},
        "checks": [{"kind": "command", "argv": ["sh", "-c", check], "command": check}],
        "evidence": [evidence(check)],
    }


def evidence(name: str, kind: str = "command", **more: object) -> Fields:
    return {"kind": kind, "name": name, "outcome": "passed", "exit_code": 0, **more}


async def answer(
    fields: Fields,
    project: Path,
    own: Path,
    demands: Demands | None = CALLER,
    *,
    record: bool = False,
) -> Repetition:
    fields["hash"] = receipt_hash(fields)
    receipt = msgspec.convert(fields, Receipt)
    own.mkdir(parents=True)
    stored = StoredReceipt(own / "r.json", receipt, is_edited=False, is_own=record)
    return await repeat(stored, project, None, own, demands=demands)


async def test_an_honest_receipt_is_the_same_for_every_caller(
    honest: tuple[Path, Fields], tmp_path: Path
) -> None:
    project, fields = honest
    for number, demands in enumerate((
        None, CALLER, Demands(commands=(CHECK,)),
        msgspec.structs.replace(CALLER, before=None),
        msgspec.structs.replace(CALLER, work=("*.py",)),
        msgspec.structs.replace(CALLER, judge_files=("!README.md",)),
    )):  # fmt: skip
        found = await answer({**fields}, project, tmp_path / str(number), demands)
        assert found.answer == "same", (demands, found.reasons)
        assert found.scope == ("work" if demands and demands.work else "names")


async def test_without_named_checks_nothing_is_required_of_a_claim(
    honest: tuple[Path, Fields], tmp_path: Path
) -> None:
    project, fields = honest
    demands = Demands(is_required=True)
    with pytest.raises(ConfigError, match="are claims"):
        await answer({**fields}, project, tmp_path / "a", demands)
    found = await answer({**fields}, project, tmp_path / "b", demands, record=True)
    assert found.answer == "same"


async def test_what_other_checks_leave_is_not_there_for_those_that_the_caller_names(
    honest: tuple[Path, Fields], tmp_path: Path
) -> None:
    project, fields = honest
    check = "! test -e left"
    names = ("touch left", check)
    checks = [{"kind": "command", "argv": ["sh", "-c", name], "command": name} for name in names]
    forged = {**fields, "checks": checks, "evidence": [*map(evidence, names)]}
    found = await answer({**forged}, project, tmp_path / "a", Demands(commands=(check,)))
    assert [each.name for each in found.evidence] == [check, "touch left"]
    assert found.answer == "same"
    found = await answer({**forged}, project, tmp_path / "b", None)
    assert found.answer == "differs"


def only(command: str) -> Fields:
    return {
        "checks": [{"kind": "command", "argv": ["sh", "-c", command], "command": command}],
        "evidence": [evidence(command)],
    }


LIES: dict[str, Fields] = {
    "another check": only("true"),
    "no check": {"checks": [], "evidence": []},
    "no check, and evidence": {"checks": [], "evidence": [evidence(CHECK)]},
    "evidence under the demanded name": {**only("true"), "evidence": [evidence(CHECK)]},
    "the demanded name shown of another program": {
        "checks": [{"kind": "command", "argv": ["true"], "command": CHECK}],
        "evidence": [evidence(CHECK)],
    },
    "another program with the demanded text": {
        "checks": [{"kind": "command", "argv": ["true", "make", "-s", "test"], "command": CHECK}],
        "evidence": [evidence(CHECK)],
    },
    "another check, and evidence under the demanded name": {
        **only("true"), "evidence": [evidence("true"), evidence(CHECK)]
    },
    **{
        f"another check, and a {kind} under the demanded name": {
            "checks": [*only("true")["checks"], {"kind": kind}],
            "evidence": [evidence("true"), evidence(CHECK, kind)],
        }
        for kind in ("command", "function", "schema")
    },
    "more evidence": {"evidence": [evidence(CHECK), evidence("answer", "schema")]},
    "more evidence of the same name": {"evidence": [evidence(CHECK), evidence(CHECK)]},
    "no evidence": {"evidence": []},
    "without its verdict": {"verdict": "gaps"},
    "a check without a command": {"checks": [{"kind": "command", "command": CHECK}]},
    "an empty command": {"checks": [{"kind": "command", "argv": [], "command": CHECK}]},
    "files in place of the command": {
        "checks": [{"kind": "files", "paths": ["calc.py"]}],
        "evidence": [evidence(CHECK, "files")],
    },
    "a failed run": {"run": {"run_id": "s.1", "agent": "a", "status": "failed"}},
    "its own gap": {"gaps": ["it is not done"]},
    "the folder of another Makefile": {"inside": "examples"},
    "a folder outside": {"inside": "../other"},
    "another clean tree": {"clean": {"tree": "1" * 40}},
    "no clean tree": {"clean": None},
    "no state before": {"before": None},
    "a commit that is not here": {"before": {"tree": "1" * 40, "commit": "1" * 40}},
    "judging files as they are": {"verify_from": "after"},
    "all is work": {"scope": "work", "work": ["**"], "verify_from": "after"},
    "no repository": {"folder": "folder"},
    **{
        f"{kind} under the demanded name": {
            "checks": [{"kind": kind}], "evidence": [evidence(CHECK, kind)]
        }
        for kind in ("function", "schema", "scenarios")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
async def test_a_forged_field_is_no_evidence(
    honest: tuple[Path, Fields], tmp_path: Path, name: str
) -> None:
    """Of work that is done; the receipt is a lie all the same."""
    project, fields = honest
    forged = {key: value for key, value in {**fields, **LIES[name]}.items() if value is not None}
    try:
        found = await answer(forged, project, tmp_path / "own")
    except CorralError:
        return
    assert found.answer != "same" or forged["verdict"] != "verified"


async def test_a_check_that_the_caller_names_must_pass_whatever_the_verdict_is(
    honest: tuple[Path, Fields], tmp_path: Path
) -> None:
    project, fields = honest
    check = "test -e nothing"
    failed = {**evidence(check), "outcome": "failed", "exit_code": 1}
    forged = {**fields, **only(check), "evidence": [failed], "verdict": "gaps", "gaps": ["x"]}
    demands = Demands(commands=(check,), before="main")
    found = await answer({**forged}, project, tmp_path / "a", demands)
    assert found.answer == "differs"
    assert found.reasons == (f"{check}: it must pass, and failed (exited with 1)",)
    found = await answer({**forged}, project, tmp_path / "b", None)
    assert found.answer == "same", "what failed then fails now"


async def test_a_check_is_run_as_the_caller_wrote_it(
    honest: tuple[Path, Fields], tmp_path: Path
) -> None:
    """There is no program with this name."""
    project, fields = honest
    checks = [{"kind": "command", "argv": [CHECK], "command": "true"}]
    found = await answer({**fields, "checks": checks}, project, tmp_path / "own")
    assert (found.answer, found.evidence[0].outcome) == ("same", "passed")


def weaker_test(project: Path) -> None:
    (project / "Makefile").write_text("test:\n\ttrue\n")


def no_test(project: Path) -> None:
    (project / "Makefile").unlink()
    (project / "makefile").write_text("test:\n\ttrue\n")


def untouched(project: Path) -> None:
    pass


def committed(project: Path) -> None:
    weaker_test(project)
    git(project, "commit", "-qam", "weaker")


def not_committed(project: Path, fields: Fields) -> Fields:
    """The state before the run, if the Makefile had been changed in it."""
    (row,) = (each for each in fields["changed"] if each["path"] == "Makefile")
    git(project, "stash", "-q", "--", "README.md")
    tree = tree_of(project)
    git(project, "stash", "pop", "-q")
    return {"tree": tree, "uncommitted": [row]}


Change = Callable[[Path], None]
NOT_DONE: dict[str, tuple[Change, Callable[[Path, Fields], Fields]]] = {
    "nothing": (untouched, lambda _, __: {}),
    "a weaker test": (weaker_test, lambda _, __: {}),
    "a weaker test, taken out": (weaker_test, lambda _, __: {"judge_files": ["!Makefile", "!/*"]}),
    "a weaker test, with blanks": (weaker_test, lambda _, __: {"judge_files": [" !Makefile"]}),
    "a weaker test, as work": (weaker_test, lambda _, __: {"scope": "work", "work": ["Makefile"]}),
    "a weaker test, as it is": (weaker_test, lambda _, __: {"verify_from": "after"}),
    "a weaker test, not committed before": (weaker_test, lambda project, fields: {
        "before": {**fields["before"], **not_committed(project, fields)},
        "changed": [each for each in fields["changed"] if each["path"] == "README.md"],
    }),
    "a weaker test, in a commit of the branch": (committed, lambda project, fields: {
        "before": {
            "tree": git(project, "rev-parse", "HEAD^{tree}"),
            "commit": git(project, "rev-parse", "HEAD"),
        },
        "changed": [each for each in fields["changed"] if each["path"] == "README.md"],
    }),
    "another test": (no_test, lambda _, __: {}),
    "another test, nowhere changed": (no_test, lambda _, __: {"changed": []}),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_DONE)
async def test_work_that_is_not_done_is_never_the_same(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    make_project(project)
    (project / "Makefile").write_text("test:\n\tgrep -q 'a + b' calc.py\n")
    git(project, "commit", "-qam", "first")
    git(project, "checkout", "-qb", "topic")
    change, lie = NOT_DONE[name]
    change(project)
    (project / "README.md").write_text("It is done.\n")
    fields = fields_of(project, CHECK)
    found = await answer({**fields, **lie(project, fields)}, project, tmp_path / "own")
    assert found.answer in ("differs", "stale"), found


async def test_a_record_is_repeated_as_the_run_was_chosen(
    honest: tuple[Path, Fields], tmp_path: Path
) -> None:
    """The same fields, as corral has stored them on this machine."""
    project, fields = honest
    later = {**fields, "verify_from": "after", "judge_files": ["!Makefile"]}
    found = await answer({**later}, project, tmp_path / "a", None, record=True)
    assert (found.answer, found.scope) == ("same", None)
    found = await answer({**fields, "work": ["x/"]}, project, tmp_path / "b", None, record=True)
    assert (found.answer, found.scope) == ("differs", "work")


async def test_uncommitted_judging_files_count_only_if_the_caller_allows_them(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    make_project(project)
    git(project, "branch", "topic")
    (project / "Makefile").write_text("test:\n\tgrep -q 'a + b' calc.py\n")
    uncommitted = fields_of(project, CHECK)
    (project / "calc.py").write_text(RIGHT)
    fields = fields_of(project, CHECK)
    fields["before"] |= {
        "tree": uncommitted["after"]["tree"],
        "uncommitted": uncommitted["changed"],
    }
    fields["changed"] = [each for each in fields["changed"] if each["path"] == "calc.py"]
    found = await answer({**fields}, project, tmp_path / "a")
    assert found.answer == "differs"
    assert "not committed before the run: Makefile (--uncommitted" in found.reasons[0]
    allowed = msgspec.structs.replace(CALLER, uncommitted=True)
    found = await answer({**fields}, project, tmp_path / "b", allowed)
    assert found.answer == "same", found.reasons


async def test_a_run_and_its_receipt_agree_elsewhere(tmp_path: Path) -> None:
    """A real run, whose receipt is a stranger's in a clone."""
    project, clone = tmp_path / "project", tmp_path / "clone"
    make_project(project)
    check = "grep -q 'a + b' calc.py"
    script = "sed -i 's/a - b/a + b/' calc.py"
    result = await verified_run(project, script, verify=check, work=["*.py"])
    assert result.verdict == "verified", result.gaps
    git(project, "checkout", "-qb", "topic")
    git(project, "commit", "-qam", "done")
    git(tmp_path, "clone", "-q", str(project), str(clone))
    git(clone, "remote", "set-head", "origin", "main")
    file = tmp_path / "r.json"
    file.write_bytes(msgspec.json.encode(result.receipt))
    demands = Demands(commands=(check,), is_required=True, work=("*.py",))
    stored = read_receipt(file)
    found = await repeat(stored, clone, None, tmp_path / "own", demands=demands)
    assert found.answer == "same", found.reasons
    by_names = msgspec.structs.replace(demands, work=())
    found = await repeat(stored, clone, None, tmp_path / "other", demands=by_names)
    assert found.answer == "differs"
    assert "calc.py was changed; the check ran with the version from before" in found.reasons[-1]
    assert json.loads(file.read_bytes())["scope"] == "work"
