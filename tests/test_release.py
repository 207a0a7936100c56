"""What a release is made with: reproducible builds, the bill of materials, the workflow."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

pytestmark = pytest.mark.whole_program

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "runtime.txt"
WORKFLOW: dict[Any, Any] = yaml.safe_load(
    (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
)


def write_bill(wheel: Path) -> dict[str, Any]:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'tools');"
        "import bill_of_materials; print(bill_of_materials.write(*map(Path, sys.argv[1:])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, wheel, LOCK], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(Path(done.stdout.strip()).read_text("utf-8"))
    return found


def test_the_bill_of_materials_has_the_wheel_and_every_package_of_the_lock(tmp_path: Path) -> None:
    wheel = tmp_path / "corral-1.0+a-py3-none-any.whl"
    metadata = "Metadata-Version: 2.4\nName: corral\nVersion: 1.0+a\nLicense-Expression: MIT\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("corral-1.0+a.dist-info/METADATA", metadata)
    bill = write_bill(wheel)
    assert bill == write_bill(wheel)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    own = bill["metadata"]["component"]
    assert own["purl"] == "pkg:pypi/corral@1.0%2Ba"
    assert own["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    locked = re.findall(r"^([\w-]+)==(\S+)", LOCK.read_text("utf-8"), re.MULTILINE)
    purls = [f"pkg:pypi/{name}@{version}" for name, version in locked]
    assert [each["purl"] for each in bill["components"]] == purls
    assert bill["dependencies"] == [{"ref": own["purl"], "dependsOn": purls}]


@pytest.mark.deep
def test_two_builds_are_the_same(tmp_path: Path) -> None:
    def build(name: str) -> dict[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / name)],
            cwd=ROOT,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1789000000"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        files = (tmp_path / name).iterdir()
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    first = build("first")
    assert len(first) == 2
    assert build("second") == first


def test_the_workflow_pins_every_action_by_its_commit() -> None:
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


def test_the_job_that_publishes_runs_no_code_of_the_repository_and_no_job_has_a_secret() -> None:
    jobs = WORKFLOW["jobs"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    uses = [step.get("uses", "").partition("@")[0] for step in jobs["publish"]["steps"]]
    assert "actions/checkout" not in uses
    assert jobs["publish"]["environment"] == "pypi"
    assert "secrets." not in json.dumps(jobs)
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true
