"""Applying outputs: the requests that GitHub and GitLab get, patches of files, and refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from support.command_in_process import run_in_process
from support.repositories import git, repository

from corral._core.protected_paths import unattended_protection_of
from corral._review import outputs
from corral._review.apply import MARK, apply, find_target
from corral._review.outputs import Allowed, PatchOutput
from corral.errors import ConfigError, PermissionRefused, StorageFailed

__all__ = ["repository"]

TOKEN = "ghs_0123456789abcdefghijABCDEFGHIJ"


class Sent(NamedTuple):
    method: str
    path: str
    token: str
    body: dict[str, object] | None


class Api:
    """A server like those of GitHub and GitLab."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.statuses: dict[str, int] = {}
        """End of a path -> status; else it is 201."""
        self.url = ""
        self.comments: list[dict[str, object]] = [{"id": 5, "user": {"id": 1}, "body": ""}]
        """What a list has; the last one is the answer for a new comment."""


@pytest.fixture
def api() -> Iterator[Api]:
    found = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"null")
            token = self.headers["Authorization"] or self.headers["PRIVATE-TOKEN"]
            found.sent.append(Sent(self.command, self.path, token, body))
            status = found.statuses.get(self.path.rpartition("/")[2], 201)
            answer = b'{"message": "No::error::\\n::add-mask::x"}'
            if status < 300:
                listed = found.comments if self.command == "GET" else found.comments[-1:]
                answer = json.dumps(listed if self.command == "GET" else listed[0]).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_PUT(self) -> None:
            self.do_POST()

        def do_GET(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join(60)


@pytest.fixture
def github(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """The environment of a job of GitHub."""
    event = tmp_path / "event.json"
    event.write_text('{"pull_request": {"number": 7}}')
    for name, value in {
        "GITHUB_API_URL": api.url,
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_TOKEN": TOKEN,
        "GITHUB_EVENT_PATH": str(event),
    }.items():
        monkeypatch.setenv(name, value)
    return api


@pytest.fixture
def gitlab(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """The environment of a job of GitLab."""
    for name, value in {
        "CI_API_V4_URL": f"{api.url}/api/v4",
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "7",
        "GITLAB_TOKEN": TOKEN,
    }.items():
        monkeypatch.setenv(name, value)
    return api


def put(folder: Path, *found: dict[str, object]) -> Path:
    path = folder / "outputs.json"
    path.write_text(json.dumps({"outputs": found}))
    return path


COMMENT: dict[str, object] = {"kind": "comment", "text": "/merge\n@octocat"}
LABELS: tuple[dict[str, object], ...] = (
    {"kind": "label", "name": "bug"},
    {"kind": "label", "name": "docs"},
)
NEUTRAL = f"\\/merge\n@&#8203;octocat\n\n{MARK}"


def test_github_gets_labels_and_a_comment(
    github: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path, COMMENT, *LABELS)
    done = run_in_process(f"outputs apply {file} --github --label bug --label docs", monkeypatch)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "added the labels bug, docs\ncommented (23 characters)\n"
    place, token = "/repos/owner/name/issues/7", f"Bearer {TOKEN}"
    assert github.sent == [
        Sent("POST", f"{place}/labels", token, {"labels": ["bug", "docs"]}),
        Sent("POST", f"{place}/comments", token, {"body": NEUTRAL}),
    ]


def test_gitlab_gets_labels_and_a_comment(
    gitlab: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path, COMMENT, *LABELS)
    done = run_in_process(f"outputs apply {file} --gitlab --label bug --label docs", monkeypatch)
    assert done.returncode == 0, done.stderr
    place = "/api/v4/projects/42/merge_requests/7"
    assert gitlab.sent == [
        Sent("PUT", place, TOKEN, {"add_labels": "bug,docs"}),
        Sent("POST", f"{place}/notes", TOKEN, {"body": NEUTRAL}),
    ]


def test_nothing_is_sent_if_one_output_is_not_allowed(
    github: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path, COMMENT, *LABELS)
    done = run_in_process(f"outputs apply {file} --github --label bug", monkeypatch)
    assert done.returncode == 5
    assert "the label 'docs' is not allowed" in done.stderr
    assert github.sent == []


def test_a_dry_run_needs_no_token_and_sends_nothing(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_in_process(f"outputs apply {put(tmp_path, COMMENT)} --dry-run", monkeypatch)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("would comment (23 characters):\n  \\/merge\n")
    assert api.sent == []


def test_the_token_is_never_in_a_comment(
    github: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path, {"kind": "comment", "text": f"The token is {TOKEN}."})
    done = run_in_process(f"outputs apply {file} --github", monkeypatch)
    assert done.returncode == 0, done.stderr
    assert "GITHUB_TOKEN redacted" in json.dumps(github.sent[0].body)


@pytest.mark.parametrize("host", ["github", "gitlab"])
def test_earlier_comments_of_the_same_user_are_replaced(
    host: str,
    github: Api,
    gitlab: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = "user" if host == "github" else "author"
    api = github if host == "github" else gitlab
    api.comments = [
        {"id": number, user: {"id": author}, "body": f"x{mark}"}
        for number, author, mark in (
            (1, 1, f"\n\n{MARK}\n"),
            (2, 2, MARK),  # a stranger wrote the mark
            (3, 1, f"{MARK} and more"),
            (4, 1, ""),
            (5, 1, MARK),  # the new one
        )
    ]
    done = run_in_process(f"outputs apply {put(tmp_path, COMMENT)} --{host} --replace", monkeypatch)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("removed 1 earlier comment\n")
    places = {
        "github": "/repos/owner/name/issues/comments/1",
        "gitlab": "/api/v4/projects/42/merge_requests/7/notes/1",
    }
    sent = [(each.method, each.path) for each in api.sent]
    assert [method for method, _ in sent] == ["POST", "GET", "DELETE"]
    assert sent[-1] == ("DELETE", places[host])


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (401, 6, "The token is not valid"),
        (403, 6, "pull-requests: write"),
        (404, 6, "pull-requests: write"),
        (422, 1, "HTTP status 422"),
        (429, 7, "HTTP status 429"),
        (302, 1, "HTTP status 302"),
        (500, 1, "HTTP status 500"),
    ],
)
def test_a_refusal_of_the_api_is_an_error_that_says_what_was_done(
    github: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: int,
    text: str,
) -> None:
    github.statuses["comments"] = status
    file = put(tmp_path, COMMENT, LABELS[0])
    done = run_in_process(f"outputs apply {file} --github --label bug", monkeypatch)
    assert done.returncode == code
    assert done.stdout == "added the labels bug\n"
    assert text in done.stderr
    assert TOKEN not in done.stderr
    assert not [line for line in done.stderr.split("\n") if line.lstrip().startswith("::")]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"GITHUB_TOKEN": ""}, "there is no GITHUB_TOKEN"),
        ({"GITHUB_REPOSITORY": ""}, "GITHUB_REPOSITORY is not set"),
        ({"GITHUB_REPOSITORY": "../../user"}, "must be OWNER/NAME"),
        ({"GITHUB_REPOSITORY": "owner/name?x"}, "must be OWNER/NAME"),
        ({"GITHUB_EVENT_PATH": "", "GITHUB_REF": "refs/heads/main"}, "no pull request"),
    ],
)
def test_an_incomplete_environment_is_an_error(
    github: Api, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], message: str
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        find_target("github", None)
    assert github.sent == []


def test_the_number_is_an_option_or_in_the_name_of_the_reference(
    github: Api, gitlab: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_target("github", 9).url.endswith("/issues/9")
    assert find_target("gitlab", 9).url.endswith("/merge_requests/9")
    monkeypatch.setenv("GITHUB_EVENT_PATH", "/nothing")
    monkeypatch.setenv("GITHUB_REF", "refs/pull/12/merge")
    target = find_target("github", None)
    assert target.url.endswith("/repos/owner/name/issues/12")
    assert TOKEN not in repr(target)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "nothing",
        '{"outputs": [{"kind": "comment"}]}',
        '{"outputs": [{"kind": "run", "command": "x"}]}',
        '{"outputs": [{"kind": "comment", "text": "x", "number": 1}]}',
        '{"outputs": [], "version": 2}',
        '{"outputs": [], "::error::\\n::add-mask::x": 1}',
        '{"outputs": [' * 100_000,
    ],
)
def test_a_file_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        outputs.decode(text.encode())
    assert "\n::" not in error.value.message


@pytest.fixture
def project(repository: Path) -> Path:
    (repository / "docs").mkdir()
    (repository / "docs" / "a.md").write_text("one\n")
    (repository / "docs" / "b.md").write_text("b\n")
    (repository / "Makefile").write_text("all:\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "docs")
    (repository / "docs" / "a.md").write_text("one\n\nmore\n")  # not committed
    return repository


PATCH = """\
diff --git a/docs/a.md b/docs/a.md
--- a/docs/a.md
+++ b/docs/a.md
@@ -1,3 +1,3 @@
-one
+1

 more
diff --git a/docs/b.md b/docs/new/b.md
rename from docs/b.md
rename to docs/new/b.md
"""


def check(patch: str, folder: Path, *patterns: str, files: int = 20) -> outputs.Checked:
    allowed = Allowed(patch_paths=patterns, max_files=files)
    return outputs.check(outputs.Outputs((PatchOutput(patch),)), allowed, folder)


async def test_a_patch_changes_the_files_as_they_are_and_commits_nothing(project: Path) -> None:
    head, index = git(project, "rev-parse", "HEAD"), (project / ".git/index").read_bytes()
    checked = check(PATCH, project, "docs/")
    assert (project / "docs" / "a.md").read_text() == "one\n\nmore\n"
    done: list[str] = []
    await apply(checked, lambda: pytest.fail("no API is needed"), done.append)
    assert (project / "docs" / "a.md").read_text() == "1\n\nmore\n"
    assert (project / "docs" / "new" / "b.md").read_text() == "b\n"
    assert not (project / "docs" / "b.md").exists()
    assert done == ["patched docs/a.md, docs/b.md, docs/new/b.md"]
    assert git(project, "rev-parse", "HEAD") == head
    assert (project / ".git/index").read_bytes() == index


@pytest.mark.parametrize(
    ("patterns", "files", "reason"),
    [
        (("docs/*.md",), 20, "docs/new/b.md: no --patch-path"),
        (("docs/", "!docs/a.md"), 20, "docs/a.md: no --patch-path"),
        (("docs/",), 2, "3 files, allowed: 2"),
        ((), 20, "a patch is not allowed"),
    ],
)
def test_a_patch_may_change_only_what_was_named(
    project: Path, patterns: tuple[str, ...], files: int, reason: str
) -> None:
    with pytest.raises(PermissionRefused, match=reason):
        check(PATCH, project, *patterns, files=files)


@pytest.mark.parametrize(
    "text",
    [
        "rename from Makefile\nrename to docs/x\n",
        "old mode 100644\nnew mode 100755\n",
        "deleted file mode 100644\n--- a/Makefile\n+++ /dev/null\n@@ -1 +0,0 @@\n-all:\n",
    ],
)
def test_what_a_patch_does_counts_and_not_what_it_says(project: Path, text: str) -> None:
    names = "a/docs/x b/docs/x" if "mode 100755" in text else "a/Makefile b/docs/x"
    names = "a/Makefile b/Makefile" if "mode" in text else names
    with pytest.raises(PermissionRefused, match="Makefile"):
        check(f"diff --git {names}\n{text}", project, "docs/")


OBEYED = (
    # CI systems and forges
    ".github/workflows/x.yml", ".github/dependabot.yml", "ci/build.gitlab-ci.yml", ".gitlab/x",
    ".forgejo/workflows/x.yml", ".gitea/workflows/x.yml", ".circleci/config.yml", ".travis.yml",
    "Jenkinsfile", "ci/deploy.Jenkinsfile", "azure-pipelines.yml", ".azuredevops/x.yml",
    "bitbucket-pipelines.yml", ".buildkite/pipeline.yml", ".drone.star", ".woodpecker/x.yml",
    ".appveyor.yml", ".cirrus.star", ".teamcity/settings.kts", ".semaphore/semaphore.yml",
    "wercker.yml", "codefresh.yml", "buildspec.yml", "cloudbuild.yaml", "bitrise.yml",
    "codemagic.yaml", "ci_scripts/ci_post_clone.sh", "buddy.yml", ".tekton/push.yaml",
    "build.gocd.yaml", "screwdriver.yaml", ".zuul.d/jobs.yaml", ".prow.yaml", ".build.yml",
    ".harness/x.yaml", "Earthfile", "netlify.toml", "vercel.json", ".readthedocs.yaml",
    "atlantis.yaml", ".pre-commit-config.yaml", "lefthook.yml", "renovate.json5", ".mergify.yml",
    ".github/CODEOWNERS", "Dangerfile", ".goreleaser.yaml", ".releaserc.json",
    "shippable.yml", ".vela.yaml", ".packit.yaml", ".copr/Makefile", ".obs/workflows.yml",
    "dagger.json", ".rultor.yml", ".scrutinizer.yml", "bors.toml", ".kodiak.toml",
    # coding agents and review services
    "AGENTS.md", "sub/CLAUDE.md", "GEMINI.md", "WARP.md", "AGENT.md", ".aider.conf.yml",
    ".claude/settings.json", ".codex/config.toml", ".cursor/rules/x.mdc", ".windsurfrules",
    ".clinerules", ".continue/config.yaml", ".junie/guidelines.md", ".trae/rules/x.md",
    ".kilocode/mcp.json", ".roorules", ".amazonq/rules/x.md", ".augment-guidelines",
    ".openhands/setup.sh", ".factory/droids/x.md", ".tabnine/agent/x", ".qoder/rules/x.md",
    ".devin/x", ".crush.json", ".rules", ".replit", ".idx/airules.md", ".coderabbit.yaml",
    ".pr_agent.toml", "sweep.yaml", "greptile.json", ".goosehints", ".kiro/steering/x.md",
    # package managers and editors
    ".npmrc", ".yarnrc.yml", ".vscode/tasks.json", ".devcontainer/devcontainer.json",
)  # fmt: skip


def new_file(path: str) -> str:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        "@@ -0,0 +1 @@\n+x\n"
    )


@pytest.mark.parametrize("path", OBEYED)
def test_no_pattern_allows_what_a_ci_system_or_an_agent_obeys(path: str) -> None:
    assert unattended_protection_of(path) is not None


def patched(patch: str, folder: Path, *patterns: str) -> tuple[str, ...]:
    checked = check(patch, folder, *patterns).patch
    return () if checked is None else checked.paths


def test_a_new_hidden_folder_must_be_named(project: Path) -> None:
    """No list has every program that obeys one."""
    (project / ".storybook").mkdir()
    (project / ".storybook" / "main.ts").write_text("x\n")
    git(project, "add", "--all")
    for path in ("docs/.newci/run.yml", ".newagent/rules/x.md"):
        with pytest.raises(PermissionRefused, match="is a new folder that programs may obey"):
            check(new_file(path), project, "*")
    assert patched(new_file(".storybook/b.ts"), project, "*") == (".storybook/b.ts",)
    assert patched(new_file(".newci/run.yml"), project, "*", ".newci/") == (".newci/run.yml",)
    assert patched(new_file("docs/.gitkeep"), project, "*") == ("docs/.gitkeep",)
    with pytest.raises(PermissionRefused, match="a CI system runs or obeys it"):
        check(new_file(".github/workflows/x.yml"), project, "*", ".github/")


async def test_a_patch_does_not_follow_a_link_that_replaces_a_folder(
    project: Path, tmp_path: Path
) -> None:
    checked = check(PATCH, project, "docs/")
    outside = tmp_path / "outside"
    (project / "docs").rename(outside)
    (project / "docs").symlink_to(outside)
    with pytest.raises(StorageFailed):
        await apply(checked, lambda: pytest.fail("no API is needed"), lambda _: None)
    assert (outside / "a.md").read_text() == "one\n\nmore\n"


def test_outputs_apply_needs_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_in_process(f"outputs apply {put(tmp_path)}", monkeypatch)
    assert done.returncode == 2
    assert "--github, --gitlab or --dry-run" in done.stderr
    done = run_in_process(f"outputs apply {put(tmp_path)} --dry-run", monkeypatch)
    assert done.stdout == "there is nothing to do\n"


def test_the_schema_has_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_in_process("outputs schema --label bug --comments 0", monkeypatch)
    schema = json.loads(done.stdout)
    [kind] = schema["properties"]["outputs"]["items"]["anyOf"]
    assert kind["properties"] == {"kind": {"const": "label"}, "name": {"enum": ["bug"]}}
