"""How the model calls of an agent are counted that takes any server with a chat-completions API."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.agents.spec import MeterRoute
from corral.options import RunOptions

Route = Callable[[RunOptions, Mapping[str, str]], MeterRoute | str]


def behind_url(url_env: str, key_env: str, unused_env: tuple[str, ...] = ()) -> Route:
    """Counted if the environment names the server and its key."""

    def route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
        url = env.get(url_env)
        if not url or not env.get(key_env):
            return f"model calls are counted only with {url_env} and {key_env}"
        return MeterRoute(
            url_env=url_env,
            url=url,
            key_env=(key_env,),
            vendors=("openai-chat",),
            unused_env=unused_env,
        )

    return route
