"""Applies checked outputs: comments and labels through the API of GitHub or GitLab, a patch to the
files. The repository and the number come from the CI job or from options, never from the outputs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal
from urllib.parse import quote, urlsplit

import msgspec

from corral._core.neutral import log_text
from corral._core.terminal_text import counted, one_line
from corral._review.outputs import Checked
from corral._system import fs
from corral._system.environment import variable
from corral._system.http.client import LARGEST_ERROR, Http
from corral._system.threads import in_thread
from corral.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigError,
    InvalidRequest,
    RateLimited,
    ServerFailed,
    TotalTimeout,
)
from corral.values import (
    Json,
    JsonObject,
    as_object,
    as_objects,
    as_text,
    decode_or_none,
    int_or_none,
)

Host = Literal["github", "gitlab"]
MARK = "<!-- corral outputs -->"
"""At the end of each comment. Comments show nothing of it."""
MAX_PAGES = 10
"""Pages of 100 comments that are looked at for earlier ones."""
MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of an answer of the API that are read."""
SECONDS = 60.0
"""For one request."""
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_PULL = re.compile(r"refs/pull/(\d+)/")


def host_of(name: str | None) -> Host | None:
    """The host with this name."""
    return "github" if name == "github" else "gitlab" if name == "gitlab" else None


def preview(checked: Checked) -> Iterator[str]:
    """What would be done, as lines for a person."""
    if checked.patch is not None:
        yield f"would patch {', '.join(map(one_line, checked.patch.paths))}"
    if checked.labels:
        yield f"would add the labels {', '.join(map(one_line, checked.labels))}"
    for text in checked.comments:
        yield f"would comment ({len(text):,} characters):"
        yield from (f"  {line}" for line in log_text(text).split("\n"))
    if not (checked.patch or checked.labels or checked.comments):
        yield "there is nothing to do"


class ApiTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A pull request or merge request, and how its API is called."""

    host: Host
    url: str
    """Of the issue, pull request or merge request."""
    comments: str
    """Below which each comment has its URL."""
    headers: dict[str, str]

    @property
    def list_url(self) -> str:
        """Where comments are added and listed."""
        return f"{self.url}/{'comments' if self.host == 'github' else 'notes'}"

    def __repr__(self) -> str:
        return f"ApiTarget({self.url!r})"  # without the token


def find_target(host: Host, number: int | None) -> ApiTarget:
    """The target that the environment of the CI job names. Raises ``ConfigError``."""
    return _github(number) if host == "github" else _gitlab(number)


def _github(number: int | None) -> ApiTarget:
    base = (variable("GITHUB_API_URL") or "https://api.github.com").rstrip("/")
    name = _required("GITHUB_REPOSITORY", "OWNER/NAME")
    if not _REPOSITORY.fullmatch(name) or ".." in name:
        raise ConfigError(f"GITHUB_REPOSITORY must be OWNER/NAME, got: {one_line(name)}")
    token = variable("GITHUB_TOKEN") or variable("GH_TOKEN")
    if not token:
        raise ConfigError(
            "there is no GITHUB_TOKEN", hint="Set it to a token that may write pull requests."
        )
    chosen = number or _github_number()
    return ApiTarget(
        host="github",
        url=f"{base}/repos/{name}/issues/{chosen}",
        comments=f"{base}/repos/{name}/issues/comments",
        headers={
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )


def _github_number() -> int:
    path = variable("GITHUB_EVENT_PATH")
    event: dict[str, Json] = {}
    if path and fs.is_file(path):
        event = as_object(decode_or_none(fs.read_bytes(path)))
    for name in ("pull_request", "issue"):
        if isinstance(found := as_object(event.get(name)).get("number"), int):
            return found
    if matched := _PULL.match(variable("GITHUB_REF") or ""):
        return int(matched[1])
    raise ConfigError(
        "this job belongs to no pull request", hint="Name it: --number N, or use --dry-run."
    )


def _gitlab(number: int | None) -> ApiTarget:
    base = (variable("CI_API_V4_URL") or "https://gitlab.com/api/v4").rstrip("/")
    project = _required("CI_PROJECT_ID", "the id of the project")
    token = variable("GITLAB_TOKEN")
    if not token:
        raise ConfigError(
            "there is no GITLAB_TOKEN",
            hint="Set it to a project access token with the scope api: CI_JOB_TOKEN may not"
            " comment.",
        )
    chosen = number or _number(_required("CI_MERGE_REQUEST_IID", "the number"))
    url = f"{base}/projects/{quote(project, safe='')}/merge_requests/{chosen}"
    return ApiTarget(
        host="gitlab",
        url=url,
        comments=f"{url}/notes",
        headers={"PRIVATE-TOKEN": token},
    )


def _required(name: str, what: str) -> str:
    if found := variable(name):
        return found
    raise ConfigError(f"{name} is not set", hint=f"It is {what}; CI systems set it.")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"CI_MERGE_REQUEST_IID must be a number, got: {one_line(text)}")
    return int(text)


async def apply(
    checked: Checked,
    find: Callable[[], ApiTarget],
    on_done: Callable[[str], None],
    *,
    replace: bool = False,
) -> None:
    """Do everything. ``find`` is called if the API is needed; ``on_done`` gets a line for each
    effect, as soon as it is there. ``replace``: at the end, remove the comments that the same user
    has made in this way before. Raises ``ConfigError``, ``StorageFailed`` and the errors of the
    API: what was done before stays."""
    target = find() if checked.comments or checked.labels else None
    if checked.patch is not None:
        await in_thread(checked.patch.apply)
        on_done(f"patched {', '.join(map(one_line, checked.patch.paths))}")
    if target is None:
        return
    async with Http(read_timeout=SECONDS) as http:
        if checked.labels:
            labels: list[Json] = [*checked.labels]
            if target.host == "github":
                await _send(http, target, "POST", f"{target.url}/labels", {"labels": labels})
            else:
                named: JsonObject = {"add_labels": ",".join(checked.labels)}
                await _send(http, target, "PUT", target.url, named)
            on_done(f"added the labels {', '.join(map(one_line, checked.labels))}")
        made: list[JsonObject] = []
        for text in checked.comments:
            body: JsonObject = {"body": f"{text}\n\n{MARK}"}
            made.append(as_object(await _send(http, target, "POST", target.list_url, body)))
            on_done(f"commented ({len(text):,} characters)")
        if replace and made and (count := await _remove_earlier(http, target, made)):
            on_done(f"removed {counted(count, 'earlier comment')}")


async def _remove_earlier(http: Http, target: ApiTarget, made: Sequence[JsonObject]) -> int:
    """Remove the comments with our mark. A stranger may write the mark too, but not as the user of
    the token, whose id is in the answer for the new comment."""
    author = _author(made[0])
    own = [comment.get("id") for comment in made]
    found: list[Json] = []
    for page in range(1, MAX_PAGES + 1):
        url = f"{target.list_url}?per_page=100&page={page}"
        listed = as_objects(await _send(http, target, "GET", url, None))
        found += [
            comment.get("id")
            for comment in listed
            if author is not None
            and _author(comment) == author
            and as_text(comment.get("body")).rstrip().endswith(MARK)
        ]
        if len(listed) < 100:
            break
    earlier = [each for each in found if isinstance(each, int) and each not in own]
    for each in earlier:
        await _send(http, target, "DELETE", f"{target.comments}/{each}", None)
    return len(earlier)


def _author(comment: JsonObject) -> int | None:
    return int_or_none(as_object(comment.get("user") or comment.get("author")).get("id"))


async def _send(
    http: Http, target: ApiTarget, method: str, url: str, body: JsonObject | None
) -> Json:
    """The answer of the API."""
    headers = {**target.headers, "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(SECONDS):
            data = b"" if body is None else msgspec.json.encode(body)
            response = await http.send(method, url, data, headers)
            answer = await response.head(MAX_ANSWER if response.is_success else LARGEST_ERROR)
            response.close()
    except TimeoutError as error:
        raise TotalTimeout(f"{target.host} did not answer in {SECONDS:g} s") from error
    if response.is_success:
        return decode_or_none(answer)
    message = as_object(decode_or_none(answer)).get("message")
    reason = f": {one_line(str(message))[:200]}" if message else ""
    what = f"{method} {urlsplit(url).path}"
    text = f"{target.host} refused {what}: HTTP status {response.status}{reason}"
    match response.status:
        case 401:
            raise AuthenticationFailed(text, hint="The token is not valid.")
        case 403 | 404:
            scope = "permissions: pull-requests: write" if target.host == "github" else "scope: api"
            raise AccessDenied(text, hint=f"The token needs more rights ({scope}).")
        case 429:
            raise RateLimited(text)
        case status if status >= 500:
            raise ServerFailed(text)
        case _:
            raise InvalidRequest(text)
