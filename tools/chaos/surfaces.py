"""The surfaces: how each is started, what it claims, and how it is continued after a crash.

Each piece of work is a file that an agent writes. A claim of success is true only if that file is
complete.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

from chaos.scene import CORRAL, DEADLINE, Scene

NOISE = 3000
"""So many lines or characters has the answer that a slow reader gets."""


class Surface:
    works: tuple[str, ...] = ("work-0",)
    """The pieces of work."""
    settles_in = 0.0
    """Seconds after the end in which everything that it started must be gone."""

    def start(self, scene: Scene) -> None:
        """Start the subject."""
        raise NotImplementedError

    def wait(self, scene: Scene) -> int | None:
        """The exit code of the command that makes the claims; None if it did not end in time."""
        assert scene.subject is not None
        try:
            code = scene.subject.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            return None
        scene.join_readers()
        return code

    def check(self, scene: Scene, code: int) -> None:
        """Compare the claims with the disk."""
        raise NotImplementedError

    def recover(self, scene: Scene) -> None:
        """What a user does after a crash of corral, and what must be true then."""
        if scene.was_killed:
            reap(scene)


def has_traceback(text: str) -> bool:
    """Whether there is one of corral or of a library. That of an agent, which corral quotes, is no
    fault of corral."""
    return "Traceback (most" in text and ("/src/corral/" in text or "site-packages" in text)


def check_exit(scene: Scene, code: int, out: str, err: str) -> None:
    """A failure has a reason and no traceback."""
    if has_traceback(out + err):
        scene.verdict.false(f"a traceback: {(err or out)[-1500:]}")
    elif code < 0 and not scene.was_killed:
        scene.verdict.false(f"ended by signal {-code}: {err[-500:]}")
    is_visible = scene.streams[2] in ("file", "slow")
    if code > 0 and is_visible and not (out + err).strip():
        scene.verdict.false(f"exit code {code} without a message")


def check_works(scene: Scene, works: Iterable[str], claimed_by: str) -> None:
    for work in works:
        if not scene.is_done(work):
            scene.verdict.false(f"{claimed_by}, and {work} was not written")


def reap(scene: Scene) -> None:
    """After a killed corral, the documented command ends what is left."""
    code = scene.healthy("again", CORRAL, "agents", "doctor", "--reap")
    if "Traceback" in scene.text("again") or code not in (0, None):
        scene.verdict.false(f"doctor --reap: {code}, {scene.text('again')[-500:]}")


class Run(Surface):
    def start(self, scene: Scene) -> None:
        scene.start(CORRAL, "run", "--result", *scene.flags, scene.prompt("work-0"))

    def check(self, scene: Scene, code: int) -> None:
        out, err = scene.text("stream-1"), scene.text("stream-2")
        check_exit(scene, code, out, err)
        if code == 0:
            check_works(scene, self.works, "exit code 0")
        if code == 0 and scene.streams[1] in ("file", "slow"):
            try:
                result = json.loads(out)
            except ValueError:
                scene.verdict.false(f"exit code 0 and an incomplete result: {out[-200:]!r}")
            else:
                if result["status"] != "success" or not result["text"].endswith(
                    scene.agent.last_word
                ):
                    scene.verdict.false(f"exit code 0 with the result {out[-300:]}")


class PythonProgram(Surface):
    """A user's program, with a session or a pool."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.works = tuple(f"work-{n}" for n in range(count))

    def start(self, scene: Scene) -> None:
        options: dict[str, object] = {
            "agent": scene.agent.name,
            "policy": "all",
            "timeout": scene.timeout,
            "grace": 1,
            "cwd": str(scene.workspace),
            "sandbox": "require" if scene.case.is_boxed else "off",
        }
        if scene.agent.program:
            options["program"] = scene.agent.program
        if scene.agent.kind == "gemini":
            options["model"] = "gemini-2.5-flash"
            options["env"] = {
                name: scene.env[name] for name in ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL")
            }
        prompts = {work: scene.prompt(work) for work in self.works}
        scene.start(
            sys.executable, "-m", "chaos.subject", self.kind, json.dumps(options),
            json.dumps(prompts),
        )  # fmt: skip

    def check(self, scene: Scene, code: int) -> None:
        check_exit(scene, code, "", scene.text("stream-2"))
        claims = scene.claims()
        claimed = [str(each["work"]) for each in claims if each["status"] == "success"]
        check_works(scene, claimed, "a result with the status success")
        if scene.noise and any(int(str(each.get("text", 0))) < scene.noise for each in claims
                               if each["status"] == "success"):  # fmt: skip
            scene.verdict.false("a success with an incomplete answer")
        for each in claims:
            if each["status"] == "end" and each["left"]:
                scene.verdict.left(f"descriptors: {each['left']}")
        if not scene.was_killed and (not claims or claims[-1]["status"] != "end") and code == 0:
            scene.verdict.false("the program ended without its last report")


class Batch(Surface):
    works = tuple(f"work-{n}" for n in range(4))
    settles_in = 40.0
    """An agent host without work ends after 30 s."""

    def command(self, scene: Scene) -> list[str]:
        tasks = scene.io / "tasks.jsonl"
        if not tasks.exists():
            lines = ({"id": work, "orders": scene.prompt(work)} for work in self.works)
            tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return [
            CORRAL, "batch", str(tasks), "--prompt", "{{orders}}", "--output", "out.jsonl",
            "--db", str(scene.db), "--attempts", "1", "--concurrency", "2", *scene.flags,
        ]  # fmt: skip

    def start(self, scene: Scene) -> None:
        scene.start(*self.command(scene))

    def check(self, scene: Scene, code: int) -> None:
        check_exit(scene, code, scene.text("stream-1"), scene.text("stream-2"))
        self._check_lines(scene, code, is_cut_allowed=scene.was_killed or scene.is_disk_full)

    def _check_lines(self, scene: Scene, code: int, *, is_cut_allowed: bool = False) -> None:
        succeeded: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            for line in (scene.workspace / "out.jsonl").read_text().splitlines():
                try:
                    each = json.loads(line)
                except ValueError:
                    if not is_cut_allowed:
                        scene.verdict.false(f"an incomplete line of results: {line[:200]}")
                    continue
                if each["status"] == "success":
                    succeeded.append(each["id"])
        check_works(scene, succeeded, "a line with the status success")
        if len(set(succeeded)) != len(succeeded):
            scene.verdict.false(f"a task has two results: {succeeded}")
        if code == 0 and len(succeeded) != len(self.works):
            scene.verdict.false(f"exit code 0 and only {succeeded}")

    def recover(self, scene: Scene) -> None:
        if not (scene.was_killed or scene.is_disk_full):
            return
        more = ["--retry-failed"] if scene.is_disk_full else []
        code = scene.healthy("again", *self.command(scene), *more)
        if code is not None:
            self._check_lines(scene, code)
        if code not in (0, None):
            scene.verdict.false(f"not continued: {code}, {scene.text('again')[-1500:]}")


class Pipeline(Surface):
    works = ("work-0", "work-1", "work-2")
    settles_in = 40.0

    def graph(self, scene: Scene) -> str:
        path = scene.io / "graph.dot"
        if not path.exists():
            first, second = (json.dumps(scene.prompt(work)) for work in ("work-0", "work-2"))
            path.write_text(
                "digraph g { start [shape=Mdiamond]; done [shape=Msquare];\n"
                f"a [prompt={first}]; c [prompt={second}];\n"
                'b [shape=parallelogram, tool_command="sleep 0.1; echo written > work-1"];\n'
                "start -> a -> b -> c -> done }"
            )
        return str(path)

    def command(self, scene: Scene) -> list[str]:
        return [
            CORRAL, "pipeline", "run", self.graph(scene), "--json", "--db", str(scene.db),
            *scene.flags,
        ]  # fmt: skip

    def start(self, scene: Scene) -> None:
        scene.start(*self.command(scene))

    def check(self, scene: Scene, code: int) -> None:
        check_exit(scene, code, scene.text("stream-1"), scene.text("stream-2"))
        if code == 0:
            check_works(scene, self.works, "exit code 0")
        if code == 0 and scene.streams[1] in ("file", "slow"):
            last = scene.text("stream-1").splitlines()[-1:]
            if not last or json.loads(last[0]).get("status") != "success":
                scene.verdict.false(f"exit code 0 and the last line {last}")

    def recover(self, scene: Scene) -> None:
        if not (scene.was_killed or scene.is_disk_full):
            return
        code = scene.healthy("again", CORRAL, "runs", "resume", "last", "--db", str(scene.db))
        text = scene.text("again")
        if code == 2 and ("no run" in text or "already" in text or "has ended" in text):
            # It was killed before it was stored, or after it had ended.
            code = 0 if all(map(scene.is_done, self.works)) else None
            if code is None:
                code = scene.healthy("again", *self.command(scene))
        if has_traceback(text):
            scene.verdict.false(f"resume: a traceback: {text[-1500:]}")
        elif scene.was_killed and code not in (0, None):
            scene.verdict.false(f"not continued: {code}, {text[-1500:]}")
        if code == 0:
            check_works(scene, self.works, "a resumed run that succeeded")


class Worker(Pipeline):
    """A worker executes the run of a client. The faults are for the worker."""

    def start(self, scene: Scene) -> None:
        scene.start(CORRAL, "worker", "--db", str(scene.db), "--drain", "1")
        self._start_client(scene)

    def _start_client(self, scene: Scene) -> None:
        with (scene.io / "client-1").open("wb") as out, (scene.io / "client-2").open("wb") as err:
            command = [*self.command(scene), "--queue", "default"]
            scene.others.append(
                subprocess.Popen(
                    command,
                    cwd=scene.workspace,
                    env=scene.env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            )

    def wait(self, scene: Scene) -> int | None:
        """A worker that has ended is replaced by one without the fault. One that cannot work gets
        10 s; then the fault is lifted."""
        client = scene.others[0]
        assert scene.subject is not None
        until, patience = time.monotonic() + DEADLINE, time.monotonic() + 10
        while client.poll() is None and time.monotonic() < until:
            if scene.subject.poll() is not None and len(scene.others) == 1:
                scene.lift()
                with (scene.io / "second").open("wb") as out:
                    words = [CORRAL, "worker", "--db", str(scene.db), "--drain", "1"]
                    scene.others.append(
                        subprocess.Popen(words, env=scene.env, stdin=subprocess.DEVNULL,
                                         cwd=scene.workspace, stdout=out, stderr=out)
                    )  # fmt: skip
            elif time.monotonic() > patience:
                scene.lift()
                patience = until
            time.sleep(0.02)
        return self._end_workers(scene, client.poll())

    def _end_workers(self, scene: Scene, code: int | None) -> int | None:
        for worker in filter(None, [scene.subject, *scene.others[1:]]):
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
            try:
                worker.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                scene.verdict.late("a worker did not end after SIGTERM")
                return None
        scene.join_readers()
        return code

    def check(self, scene: Scene, code: int) -> None:
        assert scene.subject is not None
        self._check_worker(scene, scene.subject.returncode, "stream-1", "stream-2")
        check_exit(scene, code, scene.text("client-1"), scene.text("client-2"))
        if len(scene.others) > 1:
            self._check_worker(scene, scene.others[1].returncode, "second", "second")
        if code == 0:
            check_works(scene, self.works, "exit code 0 of the client")
        elif scene.was_killed:
            scene.verdict.false(f"not continued by the second worker: {scene.text('client-2')}")

    def _check_worker(self, scene: Scene, code: int, out: str, err: str) -> None:
        """SIGTERM (``_end_workers``) ends a worker that has not started to serve as it ends any
        program that still loads: it has taken no work, and that status is true."""
        text = scene.text(out) + scene.text(err)
        if code != -signal.SIGTERM or "serving " in text:
            check_exit(scene, code, scene.text(out), scene.text(err))

    def recover(self, scene: Scene) -> None:
        pass


SURFACES: dict[str, Surface] = {
    "run": Run(),
    "session": PythonProgram("session", 3),
    "pool": PythonProgram("pool", 4),
    "batch": Batch(),
    "pipeline": Pipeline(),
    "worker": Worker(),
}
