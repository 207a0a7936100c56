"""The error classes: distinguished, restored from events, and mapped to exit codes."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from corral import errors
from corral.errors import CallerError, CorralError, Phase, RemoteError, classes_by_code, from_event
from corral.events import Error, Status, from_json, to_json

TREE = sorted(classes_by_code().values(), key=lambda kind: kind.__name__)

EXITS = {
    "CorralError": 1,
    "CallerError": 2,
    "ConfigError": 2,
    "PromptError": 2,
    "UnknownProvider": 2,
    "MissingKey": 6,
    "MediaInvalid": 2,
    "NoObject": 9,
    "UnknownAgent": 2,
    "PolicyError": 2,
    "PolicyNotEnforceable": 2,
    "SchemaInvalid": 2,
    "NotPermitted": 2,
    "PipelineInvalid": 2,
    "FormatUnsupported": 2,
    "RemoteError": 1,
    "NotInstalled": 12,
    "BrokenInstall": 12,
    "VersionTooOld": 12,
    "NotProven": 12,
    "ResumeLost": 4,
    "UntrustedFolder": 5,
    "SandboxFailed": 1,
    "SettingsRejected": 1,
    "PolicyNotLoaded": 5,
    "AuthenticationFailed": 6,
    "AccessDenied": 6,
    "PermissionRefused": 5,
    "ModelNotFound": 1,
    "InvalidRequest": 1,
    "InputRejected": 1,
    "RateLimited": 7,
    "QuotaSpent": 7,
    "ContextLengthExceeded": 1,
    "ContentRefused": 1,
    "EmptyAnswer": 1,
    "NetworkFailed": 1,
    "ServerFailed": 1,
    "TimedOut": 3,
    "StartupTimeout": 3,
    "IdleTimeout": 3,
    "TotalTimeout": 3,
    "TurnLimit": 8,
    "RepeatedCalls": 8,
    "ToolFailed": 1,
    "StepError": 1,
    "BudgetExceeded": 8,
    "PriceUnknown": 8,
    "SchemaNotMet": 9,
    "ReplayMismatch": 1,
    "StreamBroken": 11,
    "ProcessFailed": 1,
    "KilledBySignal": 1,
    "StorageFailed": 1,
    "Interrupted": 130,
}


def test_the_exit_codes_of_the_command_line_are_these() -> None:
    assert {kind.__name__: kind.cli_exit for kind in TREE} == EXITS


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)(?:\s{2}|$)", line)
        if found and found[2] in EXITS:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else ""
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in TREE}
    assert drawn == real | {"CorralError": ""}


def test_every_code_belongs_to_one_class() -> None:
    pending, seen = [CorralError], list[str]()
    while pending:
        kind = pending.pop()
        seen.append(kind.code)
        pending += [k for k in kind.__subclasses__() if k.__module__ == errors.__name__]
    assert len(seen) == len(set(seen)) == len(TREE)


@pytest.mark.parametrize("kind", TREE)
def test_every_error_is_a_caller_error_or_a_remote_error(kind: type[CorralError]) -> None:
    trunks = [issubclass(kind, CallerError), issubclass(kind, RemoteError)]
    assert trunks.count(True) == (0 if kind is CorralError else 1)
    assert kind.phase in get_args(Phase)
    assert kind.status in get_args(Status)


@pytest.mark.parametrize("kind", TREE)
def test_an_error_is_restored_from_its_event_with_all_its_facts(kind: type[CorralError]) -> None:
    raised = kind(
        "it broke",
        hint="fix it",
        phase="tool",
        retryable=True,
        exit_code=3,
        signal=9,
        stderr="said",
        frame="{",
        argv=("a", "b"),
        agent_version="1",
        retry_after=2.0,
        resets_at=3.0,
    )
    back = from_event(from_error_json(raised), result="the result")
    assert type(back) is kind
    assert back.result == "the result"
    assert str(back) == "it broke\n  fix it"
    for name in (*errors.FACTS, "phase", "retryable", "message", "hint"):
        assert getattr(back, name) == getattr(raised, name), name


def from_error_json(raised: CorralError) -> Error:
    event = from_json(to_json(raised.event()))
    assert isinstance(event, Error)
    return event


def test_an_error_without_facts_carries_none() -> None:
    assert errors.RateLimited("slow").event() == Error(
        "rate_limit", "slow", retryable=True, phase="request"
    )


def test_an_unknown_code_is_a_remote_error() -> None:
    back = from_event(Error("invented_later", "m", facts={"odd": 1, "exit_code": 2}))
    assert type(back) is RemoteError
    assert back.exit_code == 2


def test_an_unknown_agent_is_a_key_error_with_a_readable_message() -> None:
    error = errors.UnknownAgent("no agent is called 'x'", hint="Known: y.")
    assert isinstance(error, KeyError)
    assert str(error) == "no agent is called 'x'\n  Known: y."


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        (errors.RateLimited, True),
        (errors.QuotaSpent, False),
        (errors.ServerFailed, True),
        (errors.NetworkFailed, True),
        (errors.EmptyAnswer, True),
        (errors.AuthenticationFailed, False),
        (errors.ContextLengthExceeded, False),
        (errors.TurnLimit, False),
    ],
)
def test_every_error_states_whether_it_is_retryable(
    kind: type[CorralError], retryable: bool
) -> None:
    assert kind("m").retryable is retryable
    assert kind("m", retryable=not retryable).retryable is not retryable
