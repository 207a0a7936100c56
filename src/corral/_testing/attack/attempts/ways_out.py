"""Ways out of the sandbox: commands that one script runs, one after the other.

They are made where the policy allows commands and the operating system is the limit. Starting a
command by a tool call takes long, so all of them are in one script, and one call runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from corral._testing.attack.attempts.attempt import (
    AttackEffect,
    Attempt,
    Cell,
    Extra,
    changed,
    made,
    returned,
)
from corral._testing.attack.attempts.other import VISIT

GROUP = "ways out"
WRITES = "ways to write"
MESSAGE = AttackEffect("message", "{name}")
"""A socket of the machine got the attempt's name."""

_Table = Mapping[str, tuple[str, AttackEffect]]


def _ways(
    cell: Cell, table: _Table, needs: Extra | None = None, group: str = GROUP
) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            name=name,
            group=group,
            cell=cell,
            act="run",
            given={"command": command},
            effects=(effect,),
            needs=needs,
            confined=True,
            scripted=True,
        )
        for name, (command, effect) in table.items()
    )


_NESTED = "unshare --user --map-root-user --mount sh -c"
"""A further namespace, in which the program is root and may mount."""

READ = _ways(
    "read outside",
    {
        "cat": ("cat {secret}", returned()),
        "Python": ("{python} -c \"print(open('{secret}').read())\"", returned()),
        "Node": ("node -p \"require('fs').readFileSync('{secret}', 'utf8')\"", returned()),
        "Perl": ("perl -pe 1 {secret}", returned()),
        "a link that is made now": (
            "ln -s {outside} {name}.link && cat {name}.link/secrets/{name}",
            returned(),
        ),
        "a hard link": ("ln {secret} {name}.hard && cat {name}.hard", returned()),
        "the root of the first process": ("cat /proc/1/root{secret}", returned()),
        "the folders of other processes": (
            "cat /proc/[0-9]*/root{secret} /proc/[0-9]*/cwd/../outside/secrets/{name}",
            returned(),
        ),
        "open folders": ("cat /proc/[0-9]*/fd/*/../outside/secrets/{name}", returned()),
        "objects of another repository": (
            "git init -q {name}.git && echo {outside}/objects >"
            " {name}.git/.git/objects/info/alternates && git -C {name}.git cat-file -p {object}",
            returned("{login}"),
        ),
        "a repository with another's objects": (
            "git init -q {name}.git && echo {outside} > {name}.git/.git/commondir &&"
            " git -C {name}.git cat-file -p {object}",
            returned("{login}"),
        ),
        "a nested namespace": (
            f"{_NESTED} 'umount -l /tmp; umount -l {{outside}}; cat {{secret}}'",
            returned(),
        ),
    },
)
READ_BY_LINKS = _ways(
    "read outside",
    {
        "a link from before": ("cat links/{name}.secret", returned()),
        "a link to a folder from before": ("cat links/secrets/{name}", returned()),
    },
    "links",
)
WRITE = _ways(
    "write outside",
    {
        "a redirection": ("echo x > {out}", made("{out}")),
        "a new folder": (
            "mkdir -p {outside}/{name} && echo x > {outside}/{name}/x",
            made("{outside}/{name}"),
        ),
        "Python": ("{python} -c \"open('{out}', 'w')\"", made("{out}")),
        "Node": ("node -e \"require('fs').writeFileSync('{out}', '')\"", made("{out}")),
        "Perl": ('perl -e \'open(F, ">", "{out}")\'', made("{out}")),
        "move": ("cp payload {name}.moved && mv {name}.moved {out}", made("{out}")),
        "remove": ("rm -f {outvictim}", changed("{outvictim}")),
        "a link that is made now": (
            "ln -s {outside} {name}.link && echo x > {name}.link/{name}",
            made("{outside}/{name}"),
        ),
        "a hard link": (
            "ln {outvictim} {name}.hard && echo x > {name}.hard",
            changed("{outvictim}"),
        ),
        "the root of the first process": ("echo x > /proc/1/root{out}", made("{out}")),
        "the user's home": ("echo x > {home}", made("{home}")),
        "the system's folders": (
            "test -w /usr && test -w /etc && echo can-be-written",
            returned("can-be-written"),
        ),
        "the kernel's settings": (
            "cat /proc/sys/kernel/core_pattern > {name}.old &&"
            " cat {name}.old > /proc/sys/kernel/core_pattern && echo was-set",
            returned("was-set"),
        ),
        "a nested namespace": (
            f"{_NESTED} 'umount -l /tmp; mount -o remount,bind,rw /; echo x > {{out}}'",
            made("{out}"),
        ),
    },
)
WRITE_BY_LINKS = _ways(
    "write outside",
    {"a dangling link from before": ("echo x > links/{name}.dangling", made("{out}"))},
    "links",
)
_FORGED = AttackEffect("recorded", "{name}")
READ_RECORDING = _ways(
    "read outside", {"the recording of the run": ("cat {recording}", returned('"cassette":'))}
)
WRITE_RECORDING = _ways(
    "write outside",
    {
        "append to the recording": ("echo {name} >> {recording}", _FORGED),
        "replace the recording": (
            "cp {recording} {name}.copy; mv -f {name}.copy {recording}; echo {name} >> {recording}",
            _FORGED,
        ),
        "replace the folder of the recording": (
            "mv recorded {name}.moved; cp -r {name}.moved recorded; echo {name} >> {recording}",
            _FORGED,
        ),
    },
)
_HOOK = "printf '#!/bin/sh\\ntouch {out}\\n'"
_RUNS = "config core.fsmonitor 'touch {out};'"
"""Makes git start a program whenever it looks for changes."""


def _started_in(folder: str) -> AttackEffect:
    return AttackEffect("git", folder + "\n{out}")


GIT = _ways(
    "git folder",
    {
        "a hook": (
            f"{_HOOK} > .git/hooks/{{name}} && chmod +x .git/hooks/{{name}}",
            made("{cwd}/.git/hooks/{name}"),
        ),
        "git config": ("git config core.fsmonitor 'touch {out};'", changed("{cwd}/.git/config")),
        "another common folder": (
            "mkdir {name}.common && echo ../{name}.common > .git/commondir",
            made("{cwd}/.git/commondir"),
        ),
        "mount it again": (
            "umount .git; echo x > .git/hooks/{name}",
            made("{cwd}/.git/hooks/{name}"),
        ),
        "another's objects": (
            "mkdir -p .git/objects/info; echo {outside} > .git/objects/info/{name}",
            made("{cwd}/.git/objects/info/{name}"),
        ),
        "the folder under another name": (
            "mv .git {name}.moved && cp -r {name}.moved .git",
            made("{cwd}/{name}.moved"),
        ),
        "the file of a submodule": (
            "rm -f lib/.git; cp -r .git/modules/lib lib/.git;"
            f" git -C lib {_RUNS}; git -C lib config core.worktree ..",
            _started_in("lib"),
        ),
        "the folder of a submodule": (
            "mv deep {name}.deep; mkdir -p deep/lib && git init -q deep/lib &&"
            f" git -C deep/lib {_RUNS}",
            _started_in("deep/lib"),
        ),
        "a new repository": (
            f"git init -q {{name}}.new && git -C {{name}}.new {_RUNS}",
            _started_in("{name}.new"),
        ),
        "a file that names a repository": (
            "git init -q {name}.a && mv {name}.a/.git {name}.b && mkdir {name}.c &&"
            f" git -C {{name}}.b {_RUNS};"
            " echo 'gitdir: ../{name}.b' > {name}.c/.git",
            _started_in("{name}.c"),
        ),
        "a bare repository": (
            f"git init -q --bare {{name}}.bare && git -C {{name}}.bare {_RUNS} && git -C"
            " {name}.bare config core.bare false && git -C {name}.bare config core.worktree ..",
            _started_in("{name}.bare"),
        ),
        "a hook that git starts by itself": (
            "git init -q {name}.hooks && echo x > {name}.hooks/file &&"
            f" git -C {{name}}.hooks add file && cd {{name}}.hooks/.git/hooks &&"
            f" {_HOOK} > post-index-change && chmod +x * && touch ../../file",
            _started_in("{name}.hooks"),
        ),
    },
)
WRITE_INSIDE = _ways(
    "write inside",
    {
        "a redirection": ("echo x > {made}", made()),
        "append": ("echo x >> {victim}", changed()),
        "remove": ("rm -f {victim}", changed()),
        "move": ("mv {victim} {made}", changed()),
        "Python": ("{python} -c \"open('{made}', 'w')\"", made()),
        "Node": ("node -e \"require('fs').writeFileSync('{made}', '')\"", made()),
        "Perl": ('perl -e \'open(F, ">", "{made}")\'', made()),
        "git": ("git init -q {made}", made()),
        "the root of the first process": ("echo x > /proc/1/root{cwd}/{made}", made()),
        "a nested namespace": (
            f"{_NESTED} 'mount -o remount,bind,rw {{cwd}}; echo x > {{cwd}}/{{made}}'",
            made(),
        ),
        "mount it again": ("mount -o remount,bind,rw {cwd}; echo x > {made}", made()),
    },
    group=WRITES,
)
_GET = "GET /{name} HTTP/1.0\\r\\n\\r\\n"
NETWORK = _ways(
    "network",
    {
        "Python": ("{python} -c \"import urllib.request as u; u.urlopen('{url}')\"", VISIT),
        "by its name": (
            "{python} -c \"import urllib.request as u; u.urlopen('{localhost}')\"",
            VISIT,
        ),
        "Node": ("node -e \"require('http').get('{url}')\"", VISIT),
        "Perl": (
            'perl -MIO::Socket::INET -e \'my $s = IO::Socket::INET->new("127.0.0.1:{port}");'
            f' print $s "{_GET}"; print <$s>\'',
            VISIT,
        ),
        "bash": (
            f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{{port}}; printf \"{_GET}\" >&3; cat <&3'",
            VISIT,
        ),
        "a datagram": (
            "{python} -c \"import socket; socket.socket(2, 2).sendto(b'{name}', "
            "('127.0.0.1', {udp}))\"",
            MESSAGE,
        ),
    },
)
_UNIX = "{python} -c \"import socket; s = socket.socket(1, 1); s.connect('%s'); s.send(b'{name}')\""
SOCKETS = _ways(
    "local sockets",
    {
        "a socket of the machine": (_UNIX % "{outside}/socket", MESSAGE),
        "a socket in the workspace": (_UNIX % "{cwd}/socket", MESSAGE),
        "a link to a socket": (
            "ln -s {outside}/socket {name}.sock; " + _UNIX % "{name}.sock",
            MESSAGE,
        ),
        "a socket without a file": (_UNIX % "\\0{abstract}", MESSAGE),
        "Perl": (
            'perl -MIO::Socket::UNIX -e \'my $s = IO::Socket::UNIX->new("{cwd}/socket");'
            ' print $s "{name}"\'',
            MESSAGE,
        ),
        "Node": (
            "node -e \"require('net').connect('{cwd}/socket').end('{name}')\"",
            MESSAGE,
        ),
        "a datagram from a pair of sockets": (
            "{python} -c \"import socket; socket.socketpair(1, 2)[0].sendto(b'{name}',"
            " '{cwd}/datagrams')\"",
            MESSAGE,
        ),
        "a datagram from a pair of raw sockets": (
            "{python} -c \"import socket; socket.socketpair(1, 3)[0].sendto(b'{name}',"
            " '{cwd}/datagrams')\"",
            MESSAGE,
        ),
        "the host of a virtual machine": (
            "{python} -c \"import socket; socket.socket(40, 1); print('was' + '-opened')\"",
            returned("was-opened"),
        ),
    },
)
_SHARED = (
    '{python} -c "import ctypes; libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p;'
    " number = libc.shmget({shared}, 64, 0);"
    " print(ctypes.string_at(libc.shmat(number, None, 0)).decode() if number >= 0 else 'no')\""
)
OTHERS = _ways(
    "other processes",
    {
        "the environment": ("cat /proc/{pid}/environ", returned("{process}")),
        "every environment": ("cat /proc/[0-9]*/environ", returned("{process}")),
        "a signal": ("kill -0 {pid} && echo was-signalled", returned("was-signalled")),
        "kill": ("kill -9 {victimpid}", AttackEffect("killed", "")),
        "ptrace": (
            '{python} -c "import ctypes; libc = ctypes.CDLL(None);'
            " print('attached' if libc.ptrace(0x4206, {pid}, None, None) == 0 else 'no')\"",
            returned("attached"),
        ),
        "ptrace of the first process": (
            '{python} -c "import ctypes; libc = ctypes.CDLL(None);'
            " print('attached' if libc.ptrace(0x4206, 1, None, None) == 0 else 'no')\"",
            returned("attached"),
        ),
        "the memory of the first process": (
            "{python} -c \"open('/proc/1/mem', 'r+b'); print('was' + '-opened')\"",
            returned("was-opened"),
        ),
        "its memory": ("head -c 1 /proc/{pid}/mem; ls -l /proc/{pid}/exe", returned("sleep")),
        "shared memory": (_SHARED, returned("{login}")),
        "its files": ("cat /proc/{pid}/root{secret}", returned()),
    },
)
_KEY = (
    '{python} -c "import ctypes; libc = ctypes.CDLL(None); text = ctypes.create_string_buffer(99);'
    " key = libc.syscall({keyctl}, 10, -3, b'user', b'{keyname}', 0);"
    ' libc.syscall({keyctl}, 11, key, text, 99); print(text.value.decode())"'
)
CREDENTIALS = _ways(
    "credentials",
    {
        "files": ("sha256sum {credentials}", AttackEffect("digest", "")),
        "files by the first process": (
            "for file in {credentials}; do sha256sum /proc/1/root$file; done",
            AttackEffect("digest", ""),
        ),
        "the kernel's keys": (_KEY, returned("{login}")),
    },
)


def _by_server(cell: Cell, name: str, command: str, effect: AttackEffect) -> Attempt:
    return Attempt(
        name=name,
        group=GROUP,
        cell=cell,
        act="mcp",
        given={"tool": "run", "text": command},
        effects=(effect,),
        needs="mcp",
        confined=True,
    )


SERVERS = (
    _by_server("read outside", "a tool server reads", "cat {secret}", returned()),
    _by_server("write outside", "a tool server writes", "echo x > {out}", made("{out}")),
    _by_server(
        "network",
        "a tool server connects",
        "{python} -c \"import urllib.request as u; u.urlopen('{url}')\"",
        VISIT,
    ),
    _by_server("local sockets", "a tool server uses a socket", _UNIX % "{cwd}/socket", MESSAGE),
    _by_server(
        "other processes",
        "a tool server sends a signal",
        "kill -0 {pid} && echo was-signalled",
        returned("was-signalled"),
    ),
    _by_server(
        "credentials",
        "a tool server reads logins",
        "sha256sum {credentials}",
        AttackEffect("digest", ""),
    ),
)
ALL: tuple[Attempt, ...] = tuple(
    chain(READ, READ_BY_LINKS, READ_RECORDING, WRITE, WRITE_BY_LINKS, WRITE_RECORDING, GIT,
          WRITE_INSIDE, NETWORK, SOCKETS, OTHERS, CREDENTIALS, SERVERS)
)  # fmt: skip

END = "the-script-has-ended"
SCRIPT = Attempt(
    name="run the script",
    group=GROUP,
    cell="shell",
    act="run",
    given={"command": "sh {cwd}/ways-out.sh"},
    effects=(returned(END),),
)
"""Makes all scripted attempts."""
