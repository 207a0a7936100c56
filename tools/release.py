"""Makes the files of a release in ``dist/``: ``make dist``, after the site was built.

1. The wheel and the sdist are built twice and must be the same, byte for byte. The times in them
   are that of the commit (``SOURCE_DATE_EPOCH``).
2. ``twine check`` reads their metadata and the README as a package index shows it.
3. The wheel is tried in an empty environment, with the versions of ``requirements/runtime.txt``, on
   each Python of ``PYTHONS`` that this machine has; the others are named.
4. ``corral-VERSION.cdx.json`` is a bill of materials (CycloneDX) of the wheel and these packages.

    python tools/release.py [--no-check]      # without 2 and 3, which install packages
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import bill_of_materials

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LOCK = ROOT / "requirements" / "runtime.txt"
TWINE = ROOT / ".cache" / "release" / "bin" / "twine"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PIPELINE = (
    "from corral import pipelines;"
    "result = pipelines.run_sync('digraph { s [shape=Mdiamond]; e [shape=Msquare];"
    ' a [shape=parallelogram, tool_command="echo works"]; s -> a -> e }\', durable=False);'
    "assert result.ok, result"
)


def main() -> None:
    """Build, compare, check, try, and describe."""
    packages = build_twice()
    [wheel] = [path for path in packages if path.suffix == ".whl"]
    if "--no-check" not in sys.argv:
        run(TWINE, "check", "--strict", *packages)
        tried = [version for version in PYTHONS if try_wheel(wheel, version)]
        missing = ", ".join(sorted({*PYTHONS} - {*tried}))
        print(
            f"the wheel works on Python {', '.join(tried)}"
            + f"; not here: {missing}" * bool(missing)
        )
        if not tried:
            sys.exit("no Python to try the wheel on")
    print(bill_of_materials.write(wheel, LOCK))
    for path in packages:
        print(f"{digest(path)}  {path.relative_to(ROOT)}")


def build_twice() -> list[Path]:
    """The wheel and the sdist in ``dist/``. Ends the program if a second build differs."""
    time = run("git", "log", "-1", "--format=%ct").strip()
    env = {"SOURCE_DATE_EPOCH": time, **os.environ}
    for old in DIST.glob("corral-*"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-d", DIST, env=env)
    packages = sorted(DIST.glob("corral-*"))
    with tempfile.TemporaryDirectory() as second:
        run(sys.executable, "-m", "hatchling", "build", "-d", second, env=env)
        for path in packages:
            if digest(path) != digest(Path(second) / path.name):
                sys.exit(f"two builds of {path.name} differ")
    return packages


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def try_wheel(wheel: Path, version: str) -> bool:
    """Use the wheel in an empty environment. Returns False if there is no such Python."""
    python = find_python(version)
    if python is None:
        return False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", folder)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps")
        run(*pip, "--require-hashes", "-r", LOCK)
        run(*pip, wheel)
        env = {"PATH": os.environ["PATH"], "HOME": name, "CORRAL_HOME": f"{name}/home"}
        shown = run(folder / "bin" / "corral", "--version", env=env, cwd=folder)
        if shown.strip() != f"corral {wheel.name.split('-')[1]}":
            sys.exit(f"the version of the wheel on Python {version}: {shown}")
        run(folder / "bin" / "corral", "agents", "list", "--json", env=env, cwd=folder)
        run(folder / "bin" / "corral", "docs", "policy", env=env, cwd=folder)
        run(folder / "bin" / "python", "-W", "error", "-c", PIPELINE, env=env, cwd=folder)
    return True


def find_python(version: str) -> str | None:
    """An interpreter of this version: on PATH, of pyenv or of uv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    path = os.pathsep.join([*map(str, pyenv.glob("*/bin")), os.environ["PATH"]])
    uv = Path(sys.executable).with_name("uv")
    words = ("python", "find", "--no-python-downloads", "--system", version)
    found = subprocess.run(
        [uv, *words], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def run(*words: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Returns what the program printed; ends this one with its output if it failed."""
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
