"""Where links lead, compared with what the system says."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.verified_runs import PLAIN, RIGHT, make_project, verified_run

from corral._verification.tree_links import leads_to

NAMES = st.sampled_from(["a", "b", "a/b", "b/a", "c"])
TARGETS = st.lists(st.sampled_from(["a", "b", "c", "..", ".", "d"]), min_size=1, max_size=4).map(
    "/".join
)


@given(st.dictionaries(NAMES, TARGETS, max_size=4), TARGETS)
def test_a_link_leads_where_the_system_follows_it(links: dict[str, str], path: str) -> None:
    links = {name: to for name, to in links.items() if not any(
        name.startswith(f"{other}/") for other in links)}  # fmt: skip
    with tempfile.TemporaryDirectory() as top:
        root = Path(os.path.realpath(top)) / "x" / "root"
        root.mkdir(parents=True)
        for name, target in links.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).symlink_to(target)
        try:
            real = os.path.realpath(root / path, strict=True)
        except OSError:
            leads_to(path, links)  # it ends
            return
        expected = os.path.relpath(real, root)
        found = leads_to(path, links)
        if expected.startswith(".."):
            assert found.startswith("../"), found
        else:
            # Outside of the tree, corral does not look whether the rest leads back into it.
            assert found == expected.removeprefix(".") or found.startswith("../"), found


async def test_a_link_that_looks_as_if_it_stayed_inside_is_a_gap(tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_project(project)
    (tmp_path / "evil.py").write_text(RIGHT)
    up = "/".join(["q"] * 20 + [".."] * 20)
    script = f"ln -s . q; rm calc.py; ln -s {up}{tmp_path}/evil.py calc.py"
    result = await verified_run(project, script, verify=PLAIN)
    assert result.gaps == ("the run made a link that leads out of the folder: calc.py",)
