"""What git obeys in a repository: its configuration, hooks, attributes, and embedded ones."""

from __future__ import annotations

from collections.abc import Mapping

from corral.testing.hostile.agent_files import Touch

HOOKS = (
    "applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout",
    "post-commit", "post-index-change", "post-merge", "post-rewrite", "pre-applypatch",
    "pre-auto-gc", "pre-commit", "pre-merge-commit", "pre-push", "pre-rebase",
    "prepare-commit-msg", "push-to-checkout", "reference-transaction", "sendemail-validate",
)  # fmt: skip


def config(touch: Touch, name: str) -> str:
    """A ``.git/config`` in which every key that can start a program starts one."""

    def run(key: str) -> str:
        return (
            '"' + f"{touch(f'{name}-{key}')}; false".replace("\\", "\\\\").replace('"', '\\"') + '"'
        )

    return f"""[core]
\trepositoryformatversion = 0
\tbare = false
\tfsmonitor = {run("fsmonitor")}
\tsshCommand = {run("ssh")}
\tpager = {run("pager")}
\teditor = {run("editor")}
\tattributesFile = .gitattributes
\tgitProxy = {run("proxy")}
[filter "evil"]
\tclean = {run("clean")}
\tsmudge = {run("smudge")}
\tprocess = {run("process")}
[diff]
\texternal = {run("diff")}
[diff "evil"]
\ttextconv = {run("textconv")}
\tcommand = {run("diff-command")}
[merge "evil"]
\tdriver = {run("merge")}
[alias]
\tstatus = {run("alias-status").replace('"', '"!', 1)}
\tadd = {run("alias-add").replace('"', '"!', 1)}
[credential]
\thelper = {run("credential").replace('"', '"!', 1)}
[gpg]
\tprogram = {run("gpg")}
[commit]
\tgpgSign = true
[user]
\tname = Hostile
\temail = hostile@localhost
[remote "origin"]
\turl = "ext::sh -c {touch(f"{name}-ext").replace(" ", "% ")}"
\tfetch = +refs/heads/*:refs/remotes/origin/*
\tuploadpack = {run("uploadpack")}
\tpromisor = true
\tpartialclonefilter = blob:none
[protocol "ext"]
\tallow = always
[protocol "file"]
\tallow = always
[url "ext::sh -c {touch(f"{name}-instead").replace(" ", "% ")}"]
\tinsteadOf = https://
[include]
\tpath = ../included.config
[submodule "evil"]
\turl = "ext::sh -c {touch(f"{name}-submodule").replace(" ", "% ")}"
\tactive = true
\tupdate = {run("submodule-update").replace('"', '"!', 1)}
"""


def tree_files(touch: Touch) -> Mapping[str, str]:
    """What git obeys in the work tree."""
    return {
        ".gitattributes": "* filter=evil diff=evil merge=evil\n",
        ".gitmodules": '[submodule "evil"]\n\tpath = module\n'
        f'\turl = "ext::sh -c {touch("gitmodules").replace(" ", "% ")}"\n\tupdate = checkout\n',
        "included.config": f'[core]\n\tfsmonitor = "{touch("included")}; false"\n',
    }


def embedded(touch: Touch) -> Mapping[str, str]:
    """Repositories inside the work tree: as folders, as a file that names one, and bare."""
    found: dict[str, str] = {}
    for folder in ("embedded/.git", "bare"):
        name = folder.partition("/")[0]
        found[f"{folder}/HEAD"] = "ref: refs/heads/main\n"
        found[f"{folder}/config"] = config(touch, name)
        found[f"{folder}/objects/info/alternates"] = "../../../../outside/objects\n"
        found[f"{folder}/refs/heads/main"] = "1" * 40 + "\n"
        found[f"{folder}/info/attributes"] = "* filter=evil\n"
    found["embedded/file.txt"] = "a file of an embedded repository\n"
    found["pointer/.git"] = "gitdir: ../bare\n"
    found["common/.git/commondir"] = "../../bare\n"
    found["common/.git/HEAD"] = "ref: refs/heads/main\n"
    return found
