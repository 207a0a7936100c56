"""Install an agent: the tested version, from npm, with the hashes that corral ships.

It is installed in a managed folder and runs offline afterwards. The folder appears when it is
complete, also if several processes install at the same time.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from importlib import resources

from corral.agents.spec import AgentSpec
from corral.errors import BrokenInstall, NotInstalled, StorageFailed
from corral.system import programs

SECONDS = 600


def install(agent: AgentSpec) -> programs.FoundProgram:
    """Install the tested version, unless it is installed. Raises ``NotInstalled`` without npm
    or where no build for this machine is known, ``BrokenInstall`` with npm's message,
    ``StorageFailed`` on a full disk."""
    builds = agent.package.binaries
    if builds and programs.machine() not in builds:
        raise NotInstalled(
            f"corral cannot install {agent.title} on {programs.machine()}:"
            f" it knows builds for {', '.join(sorted(builds))} only",
            hint=f"Install it on PATH yourself: npm install -g {agent.package.npm}",
        )
    target = programs.managed_folder(agent)
    program = programs.managed_program(agent)
    if not program.exists():
        npm = _npm()
        draft = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(3).hex()}")
        for stale in target.parent.glob(f".{target.name}.*"):
            if time.time() - stale.stat().st_mtime > 2 * SECONDS:  # its installer was killed
                shutil.rmtree(stale, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            locks = resources.files("corral.agents").joinpath("locks", agent.programs[0])
            for name in ("package.json", "package-lock.json"):
                (draft / name).write_bytes(locks.joinpath(name).read_bytes())
            _ci(npm, str(draft), agent)
            try:
                os.rename(draft, target)
            except OSError:
                if not program.exists():  # else another process installed the same version first
                    raise
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StorageFailed(
                f"cannot write {target}: {error.strerror}",
                hint="About 110 MB are needed." if full else "Set CORRAL_HOME elsewhere.",
            ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return programs.locate(agent, str(program))


def _npm() -> str:
    if shutil.which("node") is None:
        raise NotInstalled(
            "Node.js 20 or newer is needed, and no node is on PATH",
            hint="Install Node.js (nodejs.org, or your system's packages) and try again.",
        )
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is needed, and is not on PATH", hint="Install npm and try again.")
    return npm


def _ci(npm: str, folder: str, agent: AgentSpec) -> None:
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokenInstall(
            f"npm took longer than {SECONDS} s", hint="Check the network and try again."
        ) from error
    if done.returncode != 0:
        message = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        if "ENOSPC" in message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise BrokenInstall(
            f"npm could not install {agent.package.npm}@{agent.package.tested}:\n{message[-2000:]}",
            hint="Check the network and npm's own settings, then try again.",
        )
