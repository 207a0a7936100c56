"""The environment of child processes: an allow-list, never all of corral's own environment.

An agent gets a base set that programs need to run, its own credentials, and what the caller names.
A command that corral starts for an agent, a pipeline or a check (the shell tool, ``tool`` nodes,
``until``, hooks) gets the base set, what build tools need to find their files, and what the caller
names. ``DATABASE_URL`` and the keys of other vendors are not passed.

A variable is a secret by its name, or because its value is a URL with a password. Secrets are
redacted in everything that is written, and in what tools and commands return before a model reads
it: a file or a server may contain the same value.

In a text that arrives in pieces, a secret may be split between two pieces. So ``StreamRedactor``
holds back a suffix that could be the start of a secret until the next piece, or the end of the
text. The cost of a piece depends on its length and on the secrets, not on the length of the text
before it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import msgspec

from corral._agents.spec import AgentSpec
from corral._system import paths
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.values import SHORTEST_SECRET, McpServer

DEPTH = "CORRAL_DEPTH"
"""How many agents have called each other until this process (``corral._serving.allowance``)."""

BASE = (
    DEPTH,
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    # The caller's span, for telemetry.
    "TRACEPARENT",
    "TRACESTATE",
    "PROGRAMFILES",
    "PROGRAMDATA",
    "NUMBER_OF_PROCESSORS",
)

FOR_COMMANDS = (
    *BASE,
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "COLUMNS",
    "LINES",
    "TMPDIR",
    "TMP",
    "TEMP",
    "HOSTNAME",
    "CI",
    "SOURCE_DATE_EPOCH",
    # Where build tools keep their files; none of them is a secret.
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYENV_ROOT",
    "JAVA_HOME",
    "GOPATH",
    "GOROOT",
    "GOCACHE",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "NVM_DIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "CORRAL_HOME",
)
"""Variables of corral's environment that commands get."""

# Kept as text: re compiles them when first needed.
_SENSITIVE_NAME = (
    r"(?i)KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|BEARER|COOKIE|WEBHOOK|PGPASS"
    r"|(^|_)(PAT|PWD|PASS|PIN|SALT|SIG|SIGNATURE)$|CONN(ECTION)?_?STR"
)
_ADDRESS_NAME = r"(?i)(^|_)(URL|URI|DSN)$|^(DATABASE|CORRAL_DB|DB)$"
"""Addresses of servers and databases. Only the login in them is secret. A value that is
neither a URL nor a path is a secret completely."""
_SAME_IN_JSON = r"[ !#-\[\]-~]*"
"""Printable ASCII but the quote and the backslash."""
_LOGIN = r"(?i)^[a-z][a-z0-9+.-]*://(?P<login>[^/?#\s]+)@"
_LOGIN_OF_PROXY = r"(?i)^(?:(?:[a-z][a-z0-9+.-]*:)?//)?(?P<login>.+)@"
"""Programs take the URL of a proxy without its scheme too, and with characters that are escaped in
other URLs."""
_LOGIN_FIELD = r"(?i)(?:^|[?&;\s])(?:ssl)?(?:password|passwd|pwd)=([^&;\s]+)"
_WORD = r"[A-Za-z_]{1,15}|[0-9.]+"
"""A mode or a number (``AUTH_TYPE=subscription``). Redacting one in the output of an agent would
damage the protocol, and the program does not have the variable."""
_TOKEN = 16
"""Characters. Users have shorter names."""
_NOT_SECRET = frozenset({"PWD", "OLDPWD"})


NO_PROXY = ("NO_PROXY", "no_proxy")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_THIS_MACHINE = ("127.0.0.1", "localhost")


SCRIPTED = "CORRAL_SCRIPTED"
"""Set where a scripted model answers: what it reports costs nothing."""


def is_scripted(given: Mapping[str, str]) -> bool:
    """Whether a scripted model answers a run to which these variables were given."""
    return bool(given.get(SCRIPTED, os.environ.get(SCRIPTED)))


class Environment(msgspec.Struct, frozen=True, weakref=True):
    values: dict[str, str]
    agent_values: dict[str, str]
    """Those of ``values`` that belong to the agent."""
    secrets: dict[str, str]
    """Secrets that the child gets, name → value. They are redacted wherever they appear."""
    others: dict[str, str] = {}
    """Secrets of corral's environment that the child does not get. It may find them elsewhere, such
    as in a file."""

    @property
    def redacted(self) -> dict[str, str]:
        """Everything that must be redacted."""
        return {**self.others, **self.secrets}


def gather(
    agent: AgentSpec, run: RunOptions, environ: Mapping[str, str] | None = None
) -> Environment:
    """Build the child's environment from corral's own."""
    ours = os.environ if environ is None else environ
    # The agent's own variables, as far as it needs them now.
    given = {**ours, **run.env}
    more = (names for switch, names in agent.conditional_env.items() if given.get(switch))
    names = (*agent.env_names, *(name for group in more for name in group))
    agent_values = _chosen(ours, names)
    passed = {name: ours[name] for name in run.pass_env if name in ours}
    # Interned: ``os.environ`` returns a new string each time, and every run has these.
    base = {name: sys.intern(value) for name, value in _chosen(ours, BASE).items()}
    if environ is None and not paths.is_writable(Path(base.get("HOME") or "/dev/null")):
        base["HOME"] = str(paths.make_dir(paths.temporary() / "user"))
    values = {**base, **agent_values, **passed, **run.env}
    if not run.env.keys() & NO_PROXY:
        values = without_proxy_for_this_machine(values)
    secrets = {name: agent_values[name] for name in agent.secret_env if name in agent_values}
    secrets |= named_secrets({**passed, **run.env})
    for server in run.mcp_servers:
        for name, value in {**server.env, **server.headers}.items():
            secrets[f"{server.name}:{name}"] = value.removeprefix("Bearer ")
    long = {name: value for name, value in secrets.items() if len(value) >= SHORTEST_SECRET}
    known = {**agent_values, **_chosen(run.env, names)}
    if agent.own_names is not None:
        values, known = agent.own_names(values), agent.own_names(known)
    return Environment(values, known, long, own_secrets(ours))


def with_variables(server: McpServer, given: Mapping[str, str]) -> McpServer:
    """The server with the values of ``${NAME}`` in its variables and headers: those of ``given``,
    else of corral's own environment. So no secret is on a command line or in a file. Raises
    ``ConfigError`` for one that is not set."""

    def value(found: re.Match[str]) -> str:
        text = variable(found[1], given)
        if text is None:
            raise ConfigError(
                f"MCP server {server.name!r}: the variable {found[1]} is not set",
                hint=f"Set it, or write its value instead of {found[0]}.",
            )
        return text

    def filled(values: Mapping[str, str]) -> dict[str, str]:
        return {name: re.sub(r"\$\{(\w+)\}", value, text) for name, text in values.items()}

    return msgspec.structs.replace(server, env=filled(server.env), headers=filled(server.headers))


def without_proxy_for_this_machine(values: Mapping[str, str]) -> dict[str, str]:
    """The variables, with this machine as an exception from the user's proxy, if they name one:
    corral's tools and its model proxy listen here, and their tokens are not for the user's proxy.
    Programs read one of the two names, so what the user excepts is in both."""
    excepted = [each.strip() for name in NO_PROXY for each in values.get(name, "").split(",")]
    if not any(name.lower() in _PROXIES for name in values) or "*" in excepted:
        return {**values}
    hosts = ",".join(dict.fromkeys(filter(None, (*excepted, *_THIS_MACHINE))))
    return {**values, **dict.fromkeys(NO_PROXY, hosts)}


def own_secrets(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The secrets in corral's own environment, name → value."""
    ours = os.environ if environ is None else environ
    return {k: v for k, v in named_secrets(ours).items() if not re.fullmatch(_WORD, v)}


QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
"""For commands that nobody watches: a pager or a password prompt would wait until the timeout,
because there is no terminal."""


def for_commands(
    pass_env: Iterable[str] = (),
    given: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of a command: ours by the allow-list, those that ``pass_env`` names, and
    ``given``, which wins."""
    ours = os.environ if environ is None else environ
    passed = {name: ours[name] for name in pass_env if name in ours}
    return {**_chosen(ours, FOR_COMMANDS), **passed, **(given or {})}


def variables(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """corral's own environment, with the variables in ``given`` over it."""
    return {**os.environ, **(given or {})}


def variable(name: str, given: Mapping[str, str] | None = None) -> str | None:
    """A variable of ``given``, else of corral's own environment. An empty one counts as missing in
    ``given``."""
    return (given or {}).get(name) or os.environ.get(name)


def named_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """The secrets in these variables, found by name or by a password in a URL. A variable that
    names a file with a secret is not a secret."""
    found: dict[str, str] = {}
    for name, value in values.items():
        for key, secret in _secrets_in(name, value):
            if len(secret) >= SHORTEST_SECRET:
                found[key] = secret
    return found


def is_secret(name: str, value: str) -> bool:
    """Whether the variable holds a secret."""
    return any(True for _ in _secrets_in(name, value))


def _secrets_in(name: str, value: str) -> Iterator[tuple[str, str]]:
    from urllib.parse import unquote

    is_path = os.path.isabs(value) and os.path.exists(value)
    if name in _NOT_SECRET or is_path or not value:
        return
    found = re.match(_LOGIN, value)
    if found is None and name.lower().endswith("_proxy"):
        found = re.match(_LOGIN_OF_PROXY, value)
    user, _, password = found["login"].partition(":") if found else ("", "", "")
    if password:
        yield name, value
        yield f"{name} login", f"{user}:{password}@"
        yield f"{name} password", password
        yield f"{name} password unquoted", unquote(password)
    elif len(user) >= _TOKEN:  # a token in the place of a user
        yield name, value
        yield f"{name} login", user
    elif found := re.search(_LOGIN_FIELD, value):
        yield name, value
        yield f"{name} password", found[1]
    elif re.search(_SENSITIVE_NAME, name) or (
        re.search(_ADDRESS_NAME, name)
        and "://" not in value
        and not value.startswith(("/", ".", "~"))
    ):
        yield name, value


def _chosen(ours: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        if "*" in name:
            found.update({key: ours[key] for key in ours if fnmatchcase(key, name)})
        elif name in ours:
            found[name] = ours[name]
    return found


class SecretRedactor:
    """Redacts known secrets in bytes and text, and names what was there. Their JSON form is known
    too: most of the data is JSON that is not parsed yet."""

    def __init__(self, *secrets: Mapping[str, str]) -> None:
        """Each mapping is name → value. They may have other values for the same name."""
        marks: dict[bytes, bytes] = {}
        for name, value in (pair for values in secrets for pair in values.items()):
            forms = [value]
            if not re.fullmatch(_SAME_IN_JSON, value):
                # Inside a JSON string it is written in another way.
                import json

                forms += [json.dumps(value, ensure_ascii=escape)[1:-1] for escape in (True, False)]
            for form in forms:
                marks[form.encode("utf-8", "surrogateescape")] = f"[{name} redacted]".encode()
        self._pairs = sorted(marks.items(), key=lambda pair: -len(pair[0]))
        self.values: tuple[str, ...] = tuple(
            value.decode("utf-8", "replace") for value, _ in self._pairs if value
        )
        """What is redacted, in each of its written forms; the longest first."""

    @property
    def longest(self) -> int:
        """Bytes of the longest form of a secret; 0 if there is none."""
        return len(self._pairs[0][0]) if self._pairs else 0

    def clean(self, data: bytes) -> bytes:
        for value, mark in self._pairs:
            if value in data:
                data = data.replace(value, mark)
        return data

    def clean_text(self, text: str) -> str:
        if not self._pairs:
            return text
        data = text.encode("utf-8", "replace")
        cleaned = self.clean(data)
        return text if cleaned is data and text.isascii() else cleaned.decode()

    def clean_part(self, data: bytes, *, begin_cut: bool = False, end_cut: bool = False) -> bytes:
        """Like ``clean``, for a part of a longer text. If it was cut at the start or the end, the
        cut may have split a secret: what could be the rest of one becomes ``…``."""
        data = self.clean(data)
        if begin_cut:
            rest = max((_overlap(value, data) for value, _ in self._pairs), default=0)
            data = _CUT + data[rest:] if rest else data
        if end_cut:
            rest = max((_overlap(data, value) for value, _ in self._pairs), default=0)
            data = data[:-rest] + _CUT if rest else data
        return data

    def clean_text_part(self, text: str, *, begin_cut: bool = False, end_cut: bool = False) -> str:
        """The same for text. A character that was cut is left out."""
        if not self._pairs:
            return text
        text = text.lstrip(_BROKEN) if begin_cut else text
        text = text.rstrip(_BROKEN) if end_cut else text
        data = text.encode("utf-8", "replace")
        return self.clean_part(data, begin_cut=begin_cut, end_cut=end_cut).decode()


def redactor_of(environment: Environment) -> SecretRedactor:
    """The redactor of what must be redacted in a turn with this environment."""
    return SecretRedactor(environment.redacted)


_CUT = "…".encode()
_BROKEN = "\N{REPLACEMENT CHARACTER}"


def _overlap(first: bytes, second: bytes) -> int:
    """How many bytes at the end of the first are also the beginning of the second."""
    longest = min(len(first), len(second))
    return next((n for n in range(longest, 0, -1) if first.endswith(second[:n])), 0)


class StreamRedactor:
    """Redacts one text. ``add`` returns what can be shown now, ``finish`` the rest."""

    def __init__(self, redactor: SecretRedactor) -> None:
        self._redactor = redactor
        self._values = redactor.values
        self._find_first_char = _find_first_char(redactor.values)
        self.pending: str = ""
        """What is held back."""

    def add(self, piece: str) -> str:
        if self._find_first_char is None or not (self.pending or self._find_first_char(piece)):
            return piece
        text = self.pending + piece
        cut = self._undecided_from(text)
        self.pending = text[cut:]
        return self._clean(text[:cut])

    def add_all(self, pieces: list[str]) -> list[str]:
        """Like ``add`` for each piece, in one step if no secret is in them; without empty texts.
        Searching all pieces at once is far cheaper than one by one."""
        shown = [self.pending, *pieces] if self.pending else pieces
        text = "".join(shown)
        for value in self._values:
            if value in text:
                return [part for part in map(self.add, pieces) if part]
        cut = self._undecided_from(text)
        self.pending = text[cut:]
        if cut == len(text) and all(shown):
            return shown
        # The pieces without the last ``length`` characters, and without empty ones.
        length = len(text) - cut
        left = [piece for piece in shown if piece]
        while length:
            last = left.pop()
            if len(last) > length:
                left.append(last[:-length])
            length -= min(length, len(last))
        return left

    def finish(self) -> str:
        pending, self.pending = self.pending, ""
        return self._clean(pending)

    def _clean(self, text: str) -> str:
        return self._redactor.clean_text(text) if any(v in text for v in self._values) else text

    def _undecided_from(self, text: str) -> int:
        """Where the part starts that may become a secret with the next piece."""
        cut = len(text)
        for value in self._values:
            # Where the longest suffix of the text starts that is a prefix of the value.
            at = text.find(value[0], max(0, len(text) - len(value) + 1))
            while at >= 0 and not value.startswith(text[at:]):
                at = text.find(value[0], at + 1)
            cut = min(cut, at) if at >= 0 else cut
        moved = True
        while moved and cut < len(text):  # a complete secret must not be split
            moved = False
            for value in self._values:
                at = text.find(value, max(0, cut - len(value) + 1), cut + len(value))
                if 0 <= at < cut:
                    cut, moved = at, True
        return cut


@lru_cache(maxsize=16)
def _find_first_char(values: tuple[str, ...]) -> Callable[[str], re.Match[str] | None] | None:
    """A search for the first character of any of these values. Each message of a
    stream has its own redactor."""
    first = "".join(sorted({re.escape(value[0]) for value in values}))
    return re.compile(f"[{first}]").search if first else None
