"""Turns that work in the same folder know of each other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from corral._system import folder_claims
from corral._system.folder_claims import FolderClaim


@pytest.fixture(autouse=True)
def no_folder_is_left_claimed() -> None:
    assert folder_claims.claimed_folders == {}


@pytest.mark.parametrize(
    ("one", "two", "is_shared"),
    [
        ("/work/a", "/work/a", True),
        ("/work/a", "/work/a/below/it", True),
        ("/work/a/below/it", "/work/a", True),
        ("/", "/work", True),
        ("/work/a", "/work/ab", False),
        ("/work/a", "/work/b", False),
        ("/work/a/one", "/work/a/two", False),
    ],
)
def test_both_know_that_they_share_a_folder(one: str, two: str, is_shared: bool) -> None:
    first, second = FolderClaim(one), FolderClaim(two)
    assert first.release() is is_shared
    assert second.release() is is_shared
    assert folder_claims.claimed_folders == {}


def test_one_that_starts_and_ends_meanwhile_counts() -> None:
    first = FolderClaim("/work/a")
    assert FolderClaim("/work/a/below").release()
    FolderClaim("/work/b").release()
    assert first.release()
    assert first.release(), "it stays known"


def test_one_after_the_other_share_nothing() -> None:
    assert not FolderClaim("/work/a").release()
    assert not FolderClaim("/work/a").release()


def test_a_dropped_turn_claims_nothing() -> None:
    dropped = FolderClaim("/work/a")
    del dropped
    assert not FolderClaim("/work/a").release()
    assert folder_claims.claimed_folders == {}


def test_a_third_does_not_make_the_others_share() -> None:
    one, two = FolderClaim("/work/one"), FolderClaim("/work/two")
    third = FolderClaim("/work/two/below")
    assert not one.release()
    assert two.release()
    assert third.release()


CLAIM = "import sys; from corral._system import folder_claims as f; c = f.FolderClaim('/work/a')"


def test_another_process_in_the_folder_is_known_to_both() -> None:
    code = f"{CLAIM}; print('claimed', flush=True); sys.stdin.read(); print(c.release())"
    before = FolderClaim("/work/a")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        meanwhile = FolderClaim("/work/a")
        elsewhere = FolderClaim("/work/b")
        assert before.release()
        assert meanwhile.release()
        last = FolderClaim("/work/a")
        assert last.release(), "it is still there"
        assert not elsewhere.release()
        assert other.communicate("", timeout=60)[0] == "True\n"
    assert not FolderClaim("/work/a").release()
