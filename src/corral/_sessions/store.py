"""Sessions on disk: what is needed to resume one, its transcript, and the agent's private home.

One folder per session, readable only by its owner::

    sessions/20261115-101500-1f3a9c/
        meta.json       agent, working directory, the agent's own session id
        events.ndjson   the transcript, unless it was declined
        diffs/2.patch   how the second turn changed files
        receipts/2.json the evidence that its work is done
        trees/          the files of the workspace that the receipts are about
        handover.json   the conversation of another agent that this session continues
        home/           the agent's private home

If corral's home cannot be written, the folder is a temporary one, and the session is not kept.

If the agent is a person, each question has its own folder, so that it survives the process that
asked it::

    turn-1/
        prompt.md   the question, for the person to read
        answer.md   written by the person; complete once it is saved without the marker line
        .asked      the prompt as it was given, to recognize the question
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakMethod

import msgspec

from corral._core import stored_formats
from corral._core.spending import BudgetState
from corral._publishing.records import PART_OF
from corral._system import paths
from corral._system.fs import lock_file, remove_tree, write_all
from corral.errors import (
    ConfigError,
    CorralError,
    FormatUnsupported,
    ResumeLost,
    StorageFailed,
)
from corral.events import Event, from_json
from corral.values import Usage, decode_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from corral._agents.spec import AcpTransport, Launch
    from corral._publishing.link import SessionLink
    from corral._sessions.handed_conversation import HandedConversation
    from corral._sessions.prepared_run import PreparedRun
    from corral._system.environment import SecretRedactor
    from corral.run_kwargs import RunKwargs


_log = logging.getLogger("corral.sessions")

META = "meta.json"
LOCK = "lock"
"""Locked while a session is in use: two runs at once would share a home, and so a policy."""
EVENTS = "events.ndjson"
DIFFS = "diffs"
HANDOVER = "handover.json"
RECEIPTS = "receipts"
POOLED = "pool"
"""``Meta.lost`` of a prompt of a pool: the pool's processes keep no conversations."""


class Meta(msgspec.Struct, omit_defaults=True):
    id: str
    agent: str
    cwd: str
    created: float
    updated: float = 0.0
    format: int = 0
    """That of the folder, set when it is saved (``stored_formats.SESSION``). 0: it was saved before
    formats had numbers."""
    session_id: str | None = None
    """The vendor's. Set only after a turn has ended, or if the agent stores unfinished turns:
    before that there is nothing to continue."""
    lost: str | None = None
    """How the first turn ended (``interrupted``, ``timeout``) if the agent did not store it, or
    ``pool``: the session cannot be continued, and a further prompt must not silently start
    again."""
    status: str | None = None
    model: str | None = None
    title: str = ""
    turns: int = 0
    forked_from: str | None = None
    """The agent's session that this one continues; until its first event it has the other's id."""
    spent: Usage = Usage()
    """The usage that the agent last reported for all turns together, if it counts so."""
    spent_by_model: dict[str, Usage] = {}
    label: str | None = None
    """The option ``label``; a resumed session keeps it unless another is given."""
    budgets: tuple[BudgetState, ...] = ()
    """The budget at the end of the last turn, then those that it was part of."""
    continued_from: str | None = None
    """Our id of the session that this one continues: that of another agent, or the one that it was
    forked from."""
    continued_turns: int = 0
    """How many turns that session had then."""
    project: str = ""
    """The repository, else the folder, in which a person started it or the run it is a part of.
    Until its first turn has ended it may be a folder in the repository."""
    parent: str = ""
    """The run that it is a part of, and the ``place`` in it."""
    place: str = ""
    scripted: bool = False
    """Whether a scripted model answered."""


_encoder = msgspec.json.Encoder()


class SessionRecord:
    """One session's folder."""

    def __init__(self, folder: Path, meta: Meta, *, is_temporary: bool = False) -> None:
        """``is_temporary``: the folder is removed at the end in any case."""
        self.folder = folder
        self.meta = meta
        self.is_temporary = is_temporary
        self.is_pooled = False
        """A prompt of a pool: its conversation is not kept."""
        self.link: SessionLink | None = None
        """The connection with people elsewhere, once it is needed."""
        self.publish: WeakMethod[Callable[[], SessionLink]] | None = None
        """Makes the current turn visible to other processes."""
        self.handover: HandedConversation | None = None
        """What this new session continues: the conversation of another agent."""
        self._is_handover_saved = False
        self.may_be_continued = False
        """Another agent may continue while this is open: it needs the transcript, also if that is
        not to be kept."""
        self._transcript: int | None = None
        self._unnamed: int | None = None
        self._lock: int | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def next_run_id(self) -> str:
        """The ``run_id`` of the events of the turn that is under way, or of the next one."""
        return f"{self.meta.id}.{self.meta.turns + 1}"

    def receipt_file(self, run_id: str) -> Path:
        """Where the receipt of a run is stored. A run of several turns has the id of the last."""
        return self.folder / RECEIPTS / f"{run_id.rpartition('.')[2]}.json"

    def diff_file(self, turn: int) -> Path:
        """Where the changes of files of a turn are stored; the first turn is 1."""
        return self.folder / DIFFS / f"{turn}.patch"

    def make_folders(self) -> None:
        """The folders of a turn. Raises ``StorageFailed``."""
        try:
            paths.make_dir(self.folder)
            if self._lock is None:
                self._lock = lock_file(self.folder / LOCK)
            self.home.mkdir(mode=0o700, exist_ok=True)
            self.tmp.mkdir(mode=0o700, exist_ok=True)
        except BlockingIOError as error:
            raise ConfigError(
                f"session {self.meta.id} is in use by another run",
                hint="Wait for it to end, or start a session of your own.",
            ) from error
        except OSError as error:
            raise StorageFailed(
                f"cannot make a session folder: {self.folder}: {error.strerror}",
                hint="Free some space, or set CORRAL_HOME to a folder that can be written.",
            ) from error

    def save(self) -> None:
        if self.handover is not None and not self._is_handover_saved:
            paths.write_private(self.folder / HANDOVER, msgspec.json.encode(self.handover))
            self._is_handover_saved = True
        self.meta.format = stored_formats.SESSION
        paths.write_private(self.folder / META, msgspec.json.encode(self.meta))

    def append_events(self, events: list[Event]) -> None:
        """Append to the transcript. Secrets are already redacted."""
        if self._transcript is None:
            self._transcript = self._open_transcript(EVENTS)
        write_all(self._transcript, _encoder.encode_lines(events))

    def append_unnamed(self, events: list[Event]) -> None:
        """Append to a transcript that can be read only as long as this is open: its file has no
        name, so nothing of it is left, however the process ends."""
        if self._unnamed is None:
            name = f"{EVENTS}.{os.getpid()}"
            self._unnamed = self._open_transcript(name)
            (self.folder / name).unlink()
        write_all(self._unnamed, _encoder.encode_lines(events))

    def _open_transcript(self, name: str) -> int:
        path = self.folder / name
        if not self.folder.is_dir():  # a prompt of a pool
            paths.make_dir(self.folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":  # its writer was killed
                os.write(fd, b"\n")
        except BaseException:  # a full disk
            os.close(fd)
            raise
        return fd

    def save_unfinished(self, failure: BaseException | None) -> bool:
        """Save a session whose turn did not end, because of ``failure`` if there was one, if it has
        a folder: what was recorded so far is worth keeping. Returns whether there is one."""
        if not self.folder.exists():
            return False
        self.meta.status = failure.status if isinstance(failure, CorralError) else "interrupted"
        with contextlib.suppress(OSError):  # a full disk: the recording is on it
            self.save()
        return True

    @property
    def has_transcript(self) -> bool:
        return self._unnamed is not None or (self.folder / EVENTS).exists()

    def events(self) -> Iterator[Event]:
        """The transcript, read back."""
        with contextlib.suppress(FileNotFoundError), (self.folder / EVENTS).open("rb") as file:
            yield from _read_events(file)
        if self._unnamed is not None:
            with os.fdopen(os.dup(self._unnamed), "rb") as file:
                file.seek(0)  # writing is not affected: it appends
                yield from _read_events(file)

    def stored_handover(self) -> bytes | None:
        """The conversation that the session began with, as JSON; None if it continues none."""
        try:
            return (self.folder / HANDOVER).read_bytes()
        except OSError:
            return None

    def diff(self, turn: int) -> str:
        """How a turn changed files; empty if it changed none, or that is not stored."""
        try:
            return self.diff_file(turn).read_text("utf-8")
        except OSError:
            return ""

    def close(self, *, keep: bool) -> None:
        """Remove temporary files; without ``keep``, the complete folder."""
        if self.link is not None:
            self.link.close()
        for transcript in (self._transcript, self._unnamed):
            if transcript is not None:
                os.close(transcript)
        self._transcript = self._unnamed = None
        keep = keep and not self.is_temporary
        for folder in (self.tmp, self.images) if keep else (self.folder,):
            remove_tree(folder)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        # A line that was cut when its writer was killed is no event.
        with contextlib.suppress(msgspec.MsgspecError):
            yield from_json(line)


def write_private_home(launch: Launch, prepared: PreparedRun, record: SessionRecord) -> None:
    """Write the private home. The real home's credentials are linked, never copied."""
    from corral._agents.spec import image_name

    record.make_folders()
    try:
        if launch.report is not None:
            Path(launch.report).unlink(missing_ok=True)  # the one of the turn before
        for name, content in launch.files.items():
            _remove_links(record.home, name, prepared.linked)
            paths.write_private(record.home / name, content.encode())
        for name in prepared.linked:
            _remove_links(record.home, name, prepared.linked)
            link = record.home / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.unlink(missing_ok=True)
                link.symlink_to(paths.user_home() / name)
        for number, image in enumerate(prepared.run.images):
            import shutil

            record.images.mkdir(mode=0o700, exist_ok=True)
            copy = record.images / image_name(number, image)
            shutil.copy(os.path.join(prepared.cwd, image), copy)
    except OSError as error:
        raise _storage_error(record, error) from error


def _remove_links(home: Path, name: str, linked: Sequence[str]) -> None:
    """Remove links on the way to a file of the private home: the agent could have made them in an
    earlier turn, and the file would be written where they lead."""
    for folder in reversed(Path(name).parents):
        if str(folder) not in linked and (home / folder).is_symlink():
            (home / folder).unlink()


def conversation_files(transport: AcpTransport, home: Path, session: str) -> list[Path]:
    """The files in which the agent has stored this conversation."""
    real = os.path.realpath(home)
    return [
        file
        for file in home.glob(transport.conversation_files.format(session[:8]))
        if os.path.realpath(file.parent).startswith(real + os.sep)  # not through a link
    ]


def make_loadable(transport: AcpTransport, record: SessionRecord) -> None:
    """Rename files so that the agent can load the session's conversation."""
    session = record.meta.session_id
    if transport.rename_to_load is None or session is None:
        return
    found = {file.name: file for file in conversation_files(transport, record.home, session)}
    try:
        for old, new in transport.rename_to_load([*found], session, time.time()).items():
            found[old].rename(found[old].with_name(new))
    except OSError as error:
        raise _storage_error(record, error) from error


def _storage_error(record: SessionRecord, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"cannot write the session's folder {record.folder}: {error.strerror}",
        hint="Free some space, or set CORRAL_HOME to a folder that can be written.",
    )


TITLE: ContextVar[str] = ContextVar("TITLE", default="")
"""The title of the sessions of the current task, where corral has written their prompts."""


def title_of(prompt: str, redactor: SecretRedactor) -> str:
    """The beginning of a prompt, or ``TITLE``, on one line; redacted before it is cut."""
    longest = max(map(len, redactor.values), default=0)
    head = redactor.clean_text((TITLE.get() or prompt)[: 200 + longest])[:200]
    return " ".join(head.split())[:80]


def no_conversation(meta: Meta) -> ResumeLost:
    """The error for a session whose agent stored no conversation."""
    why = "its first turn did not end"
    if meta.lost == POOLED:
        why = "it was a prompt of a pool, which keeps no conversations"
    elif meta.lost is not None:
        how = "was interrupted" if meta.lost == "interrupted" else "timed out"
        why = f"its first turn {how}, and {meta.agent} did not keep it"
    hint = "Start a new session and give the prompt again."
    if meta.continued_from is not None:
        hint = f"Continue from {meta.continued_from} again."
    return ResumeLost(f"session {meta.id} cannot be continued: {why}", hint=hint)


def create(agent: str, cwd: str) -> SessionRecord:
    """A new session. Its folder is made when its first turn starts; a temporary one at once."""
    now = time.time()
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{os.urandom(3).hex()}"
    part_of = PART_OF.get()
    run = part_of.run.partition("/")[0].partition("#")[0]
    meta = Meta(
        name, agent, cwd, now, now, project=part_of.started_in, parent=run, place=part_of.place
    )
    if paths.is_writable(paths.sessions()):
        return SessionRecord(paths.sessions() / name, meta)
    import tempfile

    try:
        folder = Path(tempfile.mkdtemp(prefix="corral-session-"))
        return SessionRecord(folder, meta, is_temporary=True)
    except OSError as error:
        raise StorageFailed(
            f"neither {paths.sessions()} nor the folder for temporary files can be written:"
            f" {error.strerror}",
            hint="Set CORRAL_HOME to a folder that can be written.",
        ) from error


def fork(record: SessionRecord, without: tuple[str, ...] = ()) -> SessionRecord:
    """A new session that continues another, which stays unchanged. Names that match ``without``
    are not copied. Raises ``StorageFailed``."""
    import shutil

    meta = record.meta
    other = create(meta.agent, meta.cwd)
    other.meta.session_id = other.meta.forked_from = meta.session_id
    other.meta.model, other.meta.spent = meta.model, meta.spent
    other.meta.continued_from, other.meta.continued_turns = meta.id, meta.turns
    try:
        paths.make_dir(paths.sessions())
        skipped = shutil.ignore_patterns(META, LOCK, EVENTS, DIFFS, HANDOVER, *without)
        shutil.copytree(record.folder, other.folder, symlinks=True, ignore=skipped)
    except (OSError, shutil.Error) as error:
        raise StorageFailed(f"session {meta.id} cannot be copied: {error}") from error
    return other


def find(name: str, cwd: str = "") -> SessionRecord:
    """By our id, a unique beginning of it or of its last part, the vendor's id, or ``last``: the
    newest session in the folder ``cwd``, else the newest of all. Raises ``ResumeLost`` for none,
    ``ConfigError`` for several."""
    if not name or "/" in name or os.sep in name or name.startswith("."):
        raise ConfigError(f"not the name of a session: {name!r}")
    direct = open_folder(paths.sessions() / name)
    if direct is not None:
        return direct
    records = all_sessions()
    for each in records:
        if each.meta.session_id == name:
            return each
    from corral._core.lookup import LAST, find_id

    if name == LAST:
        for each in records:
            if each.meta.cwd == cwd:
                return each
        if not records:
            raise ResumeLost("there is no session yet", hint="`corral run PROMPT` starts one.")
        return records[0]
    by_id = {each.folder.name: each for each in records}
    found = find_id(name, list(by_id), "sessions")
    if found is None:
        raise ResumeLost(
            f"no session is called {name!r}",
            hint="corral runs list shows them. A conversation that an agent stored without"
            " corral cannot be resumed.",
        )
    return by_id[found]


def agent_of(name: str, options: RunKwargs) -> str:
    """The agent of a stored session, for a run that names none. The built-in agent also needs the
    session's model, which is set in ``options`` unless it has one. Raises as ``find`` does."""
    from corral._agents import registry

    meta = find(name).meta
    model = meta.model
    if options.get("model") is None and model is not None and registry.names_a_model(model):
        options["model"] = model
    return meta.agent


def all_sessions() -> list[SessionRecord]:
    """All, the newest first."""
    try:
        names = os.listdir(paths.sessions())
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (open_listed(paths.sessions() / name) for name in names)
    return sorted((k for k in found if k), key=lambda k: (k.meta.updated, k.meta.id), reverse=True)


def has_folder(meta: Meta) -> bool:
    """Whether the folder in which the session began still exists."""
    return os.path.isdir(meta.cwd)


def is_in_use(record: SessionRecord) -> bool:
    """Whether a run has this session open."""
    try:
        os.close(lock_file(record.folder / LOCK))
    except BlockingIOError:
        return True
    return False


def abandoned_folders() -> list[Path]:
    """Folders of sessions that were killed before they had anything to keep."""
    found: list[Path] = []
    for folder in paths.sessions().glob("*"):
        if (folder / META).exists() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            os.close(lock_file(folder / LOCK))  # no run uses it
            found.append(folder)
    return found


def open_folder(folder: Path) -> SessionRecord | None:
    """The session in this folder; None if there is none, or its metadata cannot be read. Raises
    ``FormatUnsupported``."""
    try:
        stored = (folder / META).read_bytes()
        stored_formats.check_json(
            f"session {folder.name}", stored, "format", stored_formats.SESSION
        )
        meta = decode_as(stored, Meta)
    except (OSError, msgspec.MsgspecError):
        return None
    return SessionRecord(folder, meta)


def open_listed(folder: Path) -> SessionRecord | None:
    """As ``open_folder``, for lists: a session of another format is left out, and logged once."""
    try:
        return open_folder(folder)
    except FormatUnsupported as error:
        if error.message not in _reported:
            _reported.add(error.message)
            _log.warning("%s", error)
        return None


_reported: set[str] = set()


WAITING = "waiting"
"""A session's status from the question to its answer."""
UNFINISHED = "<!-- delete this line, and save, when the answer is done -->"
"""Marks a draft: people save early, and some editors save by themselves. A file that is written
or moved here in one step needs no such line."""


class AnswerSnapshot(msgspec.Struct, frozen=True):
    """An answer as read from the file, and a stamp to recognize a later version."""

    text: str
    stamp: tuple[int, int, int]


class QuestionFile:
    """One question's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prompt: Path = folder / "prompt.md"
        self.answer: Path = folder / "answer.md"
        self.draft: Path = folder / "draft.md"
        """The file that the editor opens."""
        self._original_prompt = folder / ".asked"

    @property
    def original_prompt(self) -> str | None:
        """The prompt as it was given; None if the question was never asked."""
        try:
            return self._original_prompt.read_text("utf-8")
        except OSError:
            return None

    def write(self, prompt: str, shown: str) -> None:
        """Write the question. Raises ``StorageFailed``."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths.write_private(self.prompt, shown.encode())
            paths.write_private(self.answer, f"\n{UNFINISHED}\n".encode())
            paths.write_private(self._original_prompt, prompt.encode())
        except OSError as error:
            raise StorageFailed(f"the question cannot be written: {error}") from error

    def read_answer(self) -> AnswerSnapshot | None:
        """The answer, if complete. Raises ``StorageFailed`` if none can be given any more."""
        try:
            with self.answer.open("rb") as file:
                about = os.fstat(file.fileno())
                text = file.read().decode("utf-8-sig", "replace").replace("\r\n", "\n")
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise StorageFailed(
                    f"the question's folder does not exist: {self.folder}"
                ) from error
            return None
        except OSError as error:
            raise StorageFailed(f"the answer cannot be read: {error}") from error
        if UNFINISHED in text or not text.strip():
            return None
        return AnswerSnapshot(text.rstrip("\n"), (about.st_ino, about.st_size, about.st_mtime_ns))

    def write_answer(self, text: str) -> None:
        """Write the answer in one step."""
        paths.write_private(self.answer, text.replace(UNFINISHED, "").encode())


def next_question(record: SessionRecord, prompt: str) -> tuple[QuestionFile, bool]:
    """The question for this prompt, and whether it is open already. Another open question stays
    as it is, and is not asked any more."""
    before = open_question(record)
    if before is not None and before.original_prompt == prompt:
        return before, True
    return QuestionFile(record.folder / f"turn-{_last_number(record) + 1}"), False


def open_question(record: SessionRecord) -> QuestionFile | None:
    """The last question to a person; None if it was answered and the answer was read."""
    number = _last_number(record)
    if not number or record.meta.status == "success":
        return None
    question = QuestionFile(record.folder / f"turn-{number}")
    return question if question.original_prompt is not None else None


def open_prompt(record: SessionRecord) -> str | None:
    """The prompt that still waits for its answer."""
    question = open_question(record)
    return question.original_prompt if question is not None else None


def _last_number(record: SessionRecord) -> int:
    names = (path.name.removeprefix("turn-") for path in record.folder.glob("turn-*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)
