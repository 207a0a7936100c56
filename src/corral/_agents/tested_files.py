"""The digests of the agents' programs that all tests were run with.

A program with these files needs no probe, wherever it is. ``tools/tested_files.py`` writes the
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class ProgramDigest(NamedTuple):
    """Of the files of one program."""

    package: str
    version: str
    machine: str
    """As in ``Package.binaries``."""
    installed_by: Literal["corral", "npm"]
    """``npm``: with ``npm install -g``, which puts other files beside it."""
    digest: str
    """As ``corral._system.program_files`` computes it."""


TESTED: tuple[ProgramDigest, ...] = (
    ProgramDigest(
        "@aaif/goose-binary-linux-x64",
        "1.52.0",
        "linux-x86_64",
        "corral",
        "b7feb40ae3e4b4c963bb8e3a5a2cccca56470ac0",
    ),
    ProgramDigest(
        "@agentclientprotocol/claude-agent-acp",
        "0.99.0",
        "linux-x86_64",
        "corral",
        "eaf2dfcea8bfe4656017a2b3ec9ee1d4972de207",
    ),
    ProgramDigest(
        "@agentclientprotocol/claude-agent-acp",
        "0.99.0",
        "linux-x86_64",
        "npm",
        "e726bbc90fee9a8b16c27fdb917539fda7ae3f9f",
    ),
    ProgramDigest(
        "@agentclientprotocol/codex-acp",
        "2.6.0",
        "linux-x86_64",
        "corral",
        "6b6c747f2ffd8f212e13cc249263dadf18f49af5",
    ),
    ProgramDigest(
        "@agentclientprotocol/codex-acp",
        "2.6.0",
        "linux-x86_64",
        "npm",
        "ab54091cebb26a01f70ebe936e13741de3f1b9d8",
    ),
    ProgramDigest(
        "@anthropic-ai/claude-code",
        "2.1.325",
        "linux-x86_64",
        "corral",
        "47aa86d9e93c9911eae6014f3d27549c85472a60",
    ),
    ProgramDigest(
        "@earendil-works/pi-coding-agent",
        "0.74.2",
        "linux-x86_64",
        "corral",
        "46f02717a52a4976ed04ede978af772933d0d877",
    ),
    ProgramDigest(
        "@earendil-works/pi-coding-agent",
        "0.74.2",
        "linux-x86_64",
        "npm",
        "cae7a23c76f17575fdf8e8ddd30a56b3975eb46d",
    ),
    ProgramDigest(
        "@github/copilot",
        "1.0.102",
        "linux-x86_64",
        "corral",
        "1d8ba750aa9c7d465f03de501237120c2c8571bd",
    ),
    ProgramDigest(
        "@github/copilot",
        "1.0.102",
        "linux-x86_64",
        "npm",
        "38d87be5a67a6f78700984149d6aaccfb25066c3",
    ),
    ProgramDigest(
        "@google/gemini-cli",
        "0.61.0",
        "linux-x86_64",
        "corral",
        "74486691590ffbadbc1894fa5a03b4a4cb2345ee",
    ),
    ProgramDigest(
        "@google/gemini-cli",
        "0.61.0",
        "linux-x86_64",
        "npm",
        "d8c304705550e28cac96c645cbd984540431fff1",
    ),
    ProgramDigest(
        "@openai/codex",
        "0.166.0",
        "linux-x86_64",
        "corral",
        "091cc42eb8c402bbda4ba623d4d0ef528dcfbf82",
    ),
    ProgramDigest(
        "@openai/codex",
        "0.166.0",
        "linux-x86_64",
        "npm",
        "b68438af249911e2a23eb588bfa0a84e14c19b45",
    ),
    ProgramDigest(
        "@qwen-code/qwen-code",
        "0.24.4",
        "linux-x86_64",
        "corral",
        "85c60bc46d2074fec9db2bbe1b81112261717bcd",
    ),
    ProgramDigest(
        "@qwen-code/qwen-code",
        "0.24.4",
        "linux-x86_64",
        "npm",
        "3356131f4df5548e341d7a7321621cf3b92d91de",
    ),
    ProgramDigest(
        "cline",
        "3.0.65",
        "linux-x86_64",
        "corral",
        "12f421e8c21fc281b0882ea6b1e976129803c585",
    ),
    ProgramDigest(
        "opencode-ai",
        "1.18.18",
        "linux-x86_64",
        "corral",
        "c22beb7c868aa304aa82bc601f42747edc997574",
    ),
)


def digests_of(package: str) -> Mapping[str, str]:
    """Digest → version, for ``Package.digests``."""
    return {entry.digest: entry.version for entry in TESTED if entry.package == package}
