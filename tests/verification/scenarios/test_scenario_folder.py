"""A folder of scenarios is read completely, and each mistake in it is an error before a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral import errors
from corral._verification.scenarios.scenario_check import scenarios
from corral._verification.scenarios.scenario_folder import folder_digest, read_folder

HTTP = 'start = "python3 app.py"\n[http]\nurl = "/health"\n'
JUDGE = 'prompt = "Is it clear?"\nrubric = "Yes, if it is."\n'


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    folder = tmp_path / "held-out"
    folder.mkdir()
    return folder


def test_each_kind_is_read(held_out: Path) -> None:
    (held_out / "adds.toml").write_text('class = "sums"\nweight = 2\ncommand = "./add 1 2"\n')
    (held_out / "health.toml").write_text('timeout = "5s"\n' + HTTP)
    (held_out / "readme.toml").write_text(JUDGE + 'files = "README.md"\n')
    (held_out / "test_parser.py").write_text("")
    (held_out / "test_named.py").write_text("")
    (held_out / "named.toml").write_text('class = "names"\npytest = "test_named.py"\n')
    (held_out / "scenarios.toml").write_text('build = "make"\nbuild_timeout = "1m"\n')
    (held_out / "files").mkdir()
    (held_out / "README.md").write_text("about")
    (held_out / ".gitignore").write_text("")
    found = read_folder(held_out)
    assert [(each.name, each.kind, each.class_name, each.weight) for each in found.scenarios] == [
        ("adds.toml", "command", "sums", 2.0),
        ("health.toml", "http", "http", 1.0),
        ("named.toml", "pytest", "names", 1.0),
        ("readme.toml", "judge", "judge", 1.0),
        ("test_parser.py", "pytest", "pytest", 1.0),
    ]
    assert (found.build, found.build_timeout, found.needs_judge) == ("make", 60.0, True)
    assert found.scenarios[1].timeout == 5.0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("notes.txt", "", "notes.txt is not a scenario"),
        ("tests.py", "", "tests.py is not a scenario"),
        ("a.toml", "command = ", "is not TOML"),
        ("a.toml", "", "none of them"),
        ("a.toml", 'command = "x"\n' + JUDGE, "command and judge"),
        ("a.toml", 'comand = "x"', "a.toml: unknown key 'comand', did you mean 'command'?"),
        ("a.toml", 'command = "x"\nclass = "two words"', "class must be a word"),
        ("a.toml", 'command = "x"\nweight = 0', "weight"),
        ("a.toml", 'command = "x"\ntimeout = "soon"', "not a duration"),
        ("a.toml", 'command = "x"\ntimeout = 0', "timeout must be more than 0"),
        ("a.toml", 'command = "x"\nstart = "y"', "start needs http"),
        ("a.toml", 'command = "x"\nrubric = "y"', "belong to a prompt"),
        ("a.toml", 'prompt = "Is it clear?"', "needs a rubric"),
        ("a.toml", JUDGE + 'files = "/etc/passwd"', "below the workspace"),
        ("a.toml", JUDGE + 'files = "../x"', "below the workspace"),
        ("a.toml", 'pytest = "test_missing.py"', "does not exist"),
        ("a.toml", 'pytest = "../test_x.py"', "test_NAME.py"),
        ("a.toml", '[http]\nurl = "/x"', "needs start"),
        ("a.toml", 'start = "x"\n[http]\nurl = "https://example.org/"', "url must be a path"),
        ("a.toml", 'start = "x"\n[http]\nurl = "/x"\nmethod = "BREW"', "method must be"),
        ("a.toml", 'start = "x"\n[http]\nurl = "/x"\nbody = ""\njson = 1', "body and json"),
        ("a.toml", 'start = "x"\n[http]\nurl = "/x"\nheader = 1', "header"),
        ("scenarios.toml", 'built = "make"', "built"),
    ],
)
def test_a_mistake_is_named(held_out: Path, name: str, text: str, message: str) -> None:
    (held_out / name).write_text(text)
    with pytest.raises(errors.ConfigError, match=message):
        read_folder(held_out)


def test_a_folder_without_scenarios_is_refused(held_out: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="contains no scenarios"):
        read_folder(held_out)
    with pytest.raises(errors.ConfigError, match="does not exist"):
        read_folder(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ConfigError, match="is not a folder"):
        read_folder(tmp_path / "file")


def test_a_test_is_named_once(held_out: Path) -> None:
    (held_out / "test_x.py").write_text("")
    for name in ("a.toml", "b.toml"):
        (held_out / name).write_text('pytest = "test_x.py"')
    with pytest.raises(errors.ConfigError, match="both name"):
        read_folder(held_out)


def test_links_are_refused_because_their_targets_are_not_hidden(
    held_out: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.toml").write_text('command = "true"')
    (held_out / "a.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(errors.ConfigError, match=r"a\.toml is a link"):
        read_folder(held_out)
    (held_out / "a.toml").unlink()
    os.link(tmp_path / "elsewhere.toml", held_out / "a.toml")
    with pytest.raises(errors.ConfigError, match="second name"):
        read_folder(held_out)


def test_the_digest_depends_on_names_and_contents(held_out: Path) -> None:
    (held_out / "a.toml").write_text('command = "true"')
    first = folder_digest(str(held_out))
    assert read_folder(held_out).digest == first
    (held_out / "a.toml").write_text('command = "false"')
    second = folder_digest(str(held_out))
    (held_out / "a.toml").rename(held_out / "b.toml")
    assert len({first, second, folder_digest(str(held_out))}) == 3


def test_a_question_needs_a_judging_model(held_out: Path) -> None:
    (held_out / "a.toml").write_text(JUDGE)
    with pytest.raises(errors.ConfigError, match="no model is given"):
        scenarios(held_out)


@pytest.mark.parametrize("threshold", [0, -0.1, 1.1, True, float("nan")])
def test_a_threshold_is_a_fraction(held_out: Path, threshold: float) -> None:
    (held_out / "a.toml").write_text('command = "true"')
    with pytest.raises(errors.ConfigError, match="threshold"):
        scenarios(held_out, threshold=threshold)
