"""Which agents may continue a turn at a rate limit: ``on_limit="fallback:AGENT[,AGENT]"``.

The agents are checked when the session is opened: installed, with a policy that can be enforced,
options that they have, and credentials. When a turn ends with a rate or usage limit that the
agent's ``retries`` did not solve, a session with the next agent continues the conversation
(``sessions/handover``), the interrupted turn included, and gets the same prompt. The files stay as
they are. Further prompts go to that session, which has the remaining agents as its own fallbacks.
The caller sees one turn with one stream of events (``LimitMachine``).

Each agent has a stored session of its own, with its own ``init`` and ``done``; ``continued_from``
connects them. Policy, tools, budget, folder and the remaining time are the caller's. What belongs
to one agent is not passed on (``OF_ONE_AGENT``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.errors import MissingKey
from corral.option_definitions import with_trait
from corral.options import FALLBACK, SPELLINGS
from corral.sessions import credentials
from corral.sessions.prepare import COMMON
from corral.sessions.prepared_run import PreparedRun
from corral.system import config

CONTINUE = (
    "Another agent began this and reached a limit of its model. Continue its work where it ended."
)
OF_ONE_AGENT = with_trait("one_agent")
"""Options whose values are of one agent: another one that continues does not get them."""


def options_for(
    name: str, others: Sequence[str], given: Mapping[str, object], prepared: PreparedRun
) -> dict[str, object]:
    """The options of a session with the fallback ``name``, of which ``others`` are the fallbacks.
    An option that it does not have is an error of that session; without ``strict`` it is left
    out."""
    options = {key: value for key, value in given.items() if key not in OF_ONE_AGENT}
    if not prepared.run.strict:
        known = config.find_agent(name).supports | COMMON | {*SPELLINGS}
        options = {key: value for key, value in options.items() if key in known}
    on_limit = f"{FALLBACK}{','.join(others)}" if others else "fail"
    return {**options, "cwd": prepared.cwd, "on_limit": on_limit}


def check_credentials(prepared: PreparedRun) -> None:
    """Check that the fallback can sign in. Raises ``CorralError``."""
    agent, run = prepared.agent, prepared.run
    credentials.check_model_key(agent, run)
    names = agent.secret_env
    has_key = any(prepared.environment.agent_values.get(name) for name in names)
    is_known = prepared.auth is not None or has_key or bool(prepared.credentials)
    if run.strict and names and not is_known and credentials.needed(agent):
        raise MissingKey(
            "no credentials were found",
            hint=f"Sign in, or set {names[0]}; strict=False (--no-strict) leaves this check out.",
        )
