"""``corral docs``: lists, shows and searches the pages, in a terminal or not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_in_process import run_in_process
from support.screens import screen

from corral._cli.docs import PIPE_WIDTH, SHOWN
from corral._docs import pages

ROOT = Path(__file__).parents[2]


def test_it_lists_the_pages_with_their_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run_in_process("docs", monkeypatch).stdout.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[:-2]}
    assert listed["policy"] == "Policy"
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} < listed.keys()


@pytest.mark.parametrize("topic", ["policy", "policy.md", "docs/policy.md"])
def test_a_page_is_printed_unchanged_if_stdout_is_no_terminal(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_in_process(f"docs {topic}", monkeypatch)
    assert (done.returncode, done.stdout) == (0, (ROOT / "docs" / "policy.md").read_text())


@pytest.mark.parametrize("topic", ["cookbook/review-bot", "review-bot"])
def test_a_page_of_a_folder_is_found_by_its_name(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run_in_process(f"docs {topic}", monkeypatch).stdout
    assert shown == (ROOT / "docs" / "cookbook" / "review-bot.md").read_text()


@pytest.mark.parametrize("topic", ["RateLimited", "ratelimited", "rate_limit"])
def test_an_error_is_found_by_its_name_and_its_code(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_in_process(f"docs {topic}", monkeypatch)
    assert done.returncode == 0
    assert done.stdout.startswith("# RateLimited\n")
    assert "| exit code of `corral` | 7 |" in done.stdout


def test_a_search_lists_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_in_process("docs --search 'protected paths'", monkeypatch)
    assert done.returncode == 0
    assert done.stdout.startswith("protected-paths: Protected paths\n    ")


def test_a_section_names_the_words_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run_in_process("docs --search 'policy xyzzyx'", monkeypatch).stdout.splitlines()
    assert len(lines) == 2 * SHOWN
    assert lines[0].startswith("policy: ")
    assert {line.partition("  ")[2] for line in lines[::2]} == {"(without: xyzzyx)"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("how do I set a budget", "costs: Budgets"),  # "set" is in most sections
        ("ci", "review: What the reviewer gets"),  # not the beginning of "circle"
        ("resume after a crash", "sessions: How to resume a session"),
    ],
)
def test_the_best_section_is_first(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_in_process(f"docs --search '{words}'", monkeypatch).stdout.startswith(expected)


def test_a_search_counts_the_sections_that_it_does_not_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = run_in_process("docs --search policy", monkeypatch).stdout.splitlines()[-1]
    assert re.fullmatch(r"… and \d+ more sections with all of the words", last)


def test_a_line_of_a_section_is_text_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run_in_process("docs --search 'option default'", monkeypatch).stdout.splitlines()
    shown = [line.strip() for line in lines[1 : 2 * SHOWN : 2]]
    assert all(shown)
    assert [line for line in shown if line.startswith("|") or "](" in line] == []
    assert max(map(len, lines)) <= PIPE_WIDTH


def test_at_a_terminal_headings_are_bold_and_lines_are_as_wide_as_the_window(
    tmp_path: Path,
) -> None:
    words = ("docs", "--search", "option default")
    with screen(*words, cwd=tmp_path, env={}, size=(60, 60), term="xterm") as shown:
        assert shown.end() == 0
    lines = shown.text.splitlines()
    assert lines[0].startswith("\x1b[1m")
    assert {len(line) <= 60 for line in lines if line.startswith("    ")} == {True}
    assert any(line.endswith("…") for line in lines)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("docs polcy", "there is no page 'polcy'\n  Pages about it: policy"),
        ("docs --search xyzzyx", "no section has one of these words: xyzzyx"),
        ("docs --search ' '", "no section has one of these words"),
        ("docs policy --open", "--open shows all pages"),
    ],
)
def test_what_is_not_there_is_a_clear_error(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_in_process(words, monkeypatch)
    assert done.returncode == 2
    assert expected in done.stderr


def test_a_build_without_the_site_says_how_to_read_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PACKAGE", tmp_path)
    monkeypatch.setattr(pages, "CHECKOUT", tmp_path)
    done = run_in_process("docs --open", monkeypatch)
    assert done.returncode == 2
    assert "this build of corral has no site" in done.stderr


def test_a_search_takes_several_words(monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = run_in_process('docs --search "rate limit waits"', monkeypatch).stdout
    assert quoted == run_in_process("docs --search rate limit waits", monkeypatch).stdout
    assert quoted


def test_several_topics_are_refused_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_in_process("docs rate limit", monkeypatch)
    assert done.returncode == 2
    assert "corral docs --search rate limit" in done.stderr
