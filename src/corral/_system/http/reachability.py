"""Find out whether the server of a URL accepts connections, and if not, why.

A TCP connection is opened and closed again; nothing is sent. The answer is about the way to the
server: the network, the name service, the proxy. A server that accepts connections may still fail.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from functools import partial
from urllib.parse import urlsplit

from corral._system.http.request import authority, proxy_for
from corral._system.threads import NoThread, in_own_thread
from corral.errors import ConfigError

LONGEST_WAIT = 10.0
"""Seconds after which a name service or a server that does not answer counts as unreachable."""
_PORTS = {"http": 80, "https": 443}
_UNREACHABLE = frozenset(
    {
        errno.ECONNREFUSED,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        errno.ETIMEDOUT,
        errno.EADDRNOTAVAIL,  # no address of this machine's own, as for IPv6 where there is none
        errno.EAFNOSUPPORT,
    }
)
"""Other errors, such as too many open files, say nothing about the network."""


async def why_unreachable(url: str) -> str | None:
    """The reason why no connection to the server of a URL can be made. None if one can be made,
    or if it is not known.

    If the environment names a proxy for the URL, both ways must fail: a program may use the proxy
    or not."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
        proxy = proxy_for(parts)
    except (ValueError, ConfigError):
        return None
    if not parts.hostname or port is None:
        return None
    reason = await _why_not(parts.hostname, port)
    if reason is None or proxy is None:
        return reason
    reason = await _why_not(proxy.host, proxy.port)
    return None if reason is None else f"the proxy {reason}"


async def _why_not(host: str, port: int) -> str | None:
    try:
        async with asyncio.timeout(LONGEST_WAIT):
            # Not in the loop's own pool: a lookup that hangs would delay the end of the program.
            look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            found = await in_own_thread(look_up)
    except TimeoutError:
        return f"the name {host} was not resolved within {LONGEST_WAIT:g} s"
    except socket.gaierror as error:
        return f"the name {host} cannot be resolved: {error.strerror}"
    except (OSError, UnicodeError, NoThread):
        return None
    reasons: list[str] = []
    for address in dict.fromkeys(str(row[4][0]) for row in found):
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(asyncio.Protocol, address, port)
        except TimeoutError:
            reasons.append(f"no answer within {LONGEST_WAIT:g} s")
        except OSError as error:
            if error.errno not in _UNREACHABLE:
                return None
            reasons.append(os.strerror(error.errno))
        else:
            transport.abort()
            return None
    return f"{authority(host, port)}: {reasons[0]}" if reasons else None
