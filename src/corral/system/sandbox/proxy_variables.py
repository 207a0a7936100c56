"""The variables that make programs in the sandbox use corral's proxy, and not the user's."""

from __future__ import annotations

from collections.abc import Mapping

from corral.system.sandbox.box import PROXY, Box, addresses

_URLS = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_OF_TOOLS = ("npm_config_proxy", "npm_config_https_proxy")
"""Settings of npm, which win over the common variables."""
_OTHERS = ("FTP_PROXY", "PIP_PROXY", "CARGO_HTTP_PROXY", "NO_PROXY", "npm_config_noproxy")


def replace_proxy(environ: Mapping[str, str], box: Box) -> dict[str, str]:
    """The environment without the user's proxies; with corral's if the box has hosts. Programs do
    not use it for the endpoints of the box: these have addresses inside."""
    known = {name.lower() for name in (*_URLS, *_OF_TOOLS, *_OTHERS)}
    values = {name: value for name, value in environ.items() if name.lower() not in known}
    found = next((each for each in addresses(box) if each.endpoint == PROXY), None)
    if found is None:
        return values
    url = f"http://{found}"
    for name in _URLS:
        values |= {name: url, name.lower(): url}
    hosts = (endpoint.host for endpoint in box.endpoints)
    direct = ",".join(dict.fromkeys(("localhost", "127.0.0.1", "::1", *hosts)))
    values |= dict.fromkeys(("NO_PROXY", "no_proxy", "npm_config_noproxy"), direct)
    values |= dict.fromkeys(_OF_TOOLS, url)
    # Node.js obeys the common variables only with this one.
    return {**values, "NODE_USE_ENV_PROXY": "1"}
