"""A bill of materials of a wheel, as CycloneDX 1.6: the wheel, and the packages of a lock file with
their versions."""

from __future__ import annotations

import email
import hashlib
import json
import re
import uuid
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

_PACKAGE = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)


def write(wheel: Path, lock: Path) -> Path:
    """Write the bill beside the wheel. Two calls for the same files write the same."""
    bill = bill_of_materials(wheel, lock)
    target = wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".cdx.json")
    target.write_text(json.dumps(bill, indent=2) + "\n", "utf-8")
    return target


def bill_of_materials(wheel: Path, lock: Path) -> dict[str, object]:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    content = hashlib.sha256(wheel.read_bytes()).hexdigest()
    own = _component(metadata["Name"], metadata["Version"])
    own["licenses"] = [{"expression": metadata["License-Expression"]}]
    own["hashes"] = [{"alg": "SHA-256", "content": content}]
    found = [_component(*package) for package in _PACKAGE.findall(lock.read_text("utf-8"))]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {"component": own},
        "components": found,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in found]}],
    }


def _component(name: str, version: str) -> dict[str, Any]:
    address = f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}"
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
    }
