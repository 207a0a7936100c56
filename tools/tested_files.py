"""Write ``src/corral/_agents/tested_files.py``: the digests of the programs of tested agents.

    CORRAL_HOME=.cache/corral .venv/bin/python tools/tested_files.py

It is run after the tested version of an agent was raised and ``make agents`` has installed it, with
``AGENTS=all`` for all. Each program gets a digest as corral installs it, and one as ``npm install
-g`` installs it, unless npm then runs a script of the package that may change its files. What is
known about other machines, and about agents that are not installed here, stays.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._agents.tested_files import TESTED, ProgramDigest
from corral._sessions.proof import can_probe
from corral._system import program_files, programs

TABLE = Path(__file__).parents[1] / "src" / "corral" / "_agents" / "tested_files.py"
START = "TESTED: tuple[ProgramDigest, ...] = ("
SCRIPTS = {"preinstall", "install", "postinstall"}


def find_all() -> tuple[ProgramDigest, ...]:
    agents = {agent.package.name: agent for agent in registry.all_agents() if can_probe(agent)}
    found = set(TESTED)
    for name, agent in agents.items():
        # Python's byte code, beside the files of a package of PyPI, is not the same twice.
        if agent.package.registry == "npm" and programs.managed_program(agent).exists():
            print(f"{name} {agent.package.tested}", file=sys.stderr)
            found = {each for each in found if (each.package, each.machine) != (name, machine())}
            found |= set(_digests(agent))
    return tuple(sorted(each for each in found if _is_current(each, agents)))


def _is_current(entry: ProgramDigest, agents: dict[str, AgentSpec]) -> bool:
    agent = agents.get(entry.package)
    return agent is not None and agent.package.tested == entry.version


def _digests(agent: AgentSpec) -> Iterator[ProgramDigest]:
    package = agent.package
    digest = _digest(agent, programs.managed_program(agent))
    yield ProgramDigest(package.name, package.tested, machine(), "corral", digest)
    with tempfile.TemporaryDirectory() as folder:
        npm = shutil.which("npm") or "npm"
        words = ("install", "--global", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix")
        wanted = f"{package.name}@{package.tested}"
        subprocess.run([npm, *words, folder, wanted], check=True, stdout=subprocess.DEVNULL)
        manifest = Path(folder, "lib", "node_modules", package.name, "package.json")
        program = Path(folder, "bin", agent.programs[0])
        if program.exists() and not SCRIPTS & {
            *json.loads(manifest.read_text()).get("scripts", ())
        }:
            digest = _digest(agent, program)
            yield ProgramDigest(package.name, package.tested, machine(), "npm", digest)


def _digest(agent: AgentSpec, program: Path) -> str:
    return program_files.digest(agent, programs.locate(agent, str(program)))


def machine() -> str:
    return programs.machine()


def main() -> None:
    before, _, rest = TABLE.read_text().partition(START)
    _, _, after = rest.partition("\n)\n")
    lines = [
        "    ProgramDigest(\n"
        + "".join(f"        {json.dumps(part)},\n" for part in entry)
        + "    ),\n"
        for entry in find_all()
    ]
    TABLE.write_text(f"{before}{START}\n{''.join(lines)})\n{after}")


if __name__ == "__main__":
    main()
