"""Counts the model calls of an agent: its requests go through the model proxy.

The agent is started with the URL of the proxy instead of that of the model's service, and with a
dummy key instead of the real one (``Meter.prepared``). Each call is an event ``model_call``. The
proxy belongs to one process of the agent. If several prompts are served by that process at the same
time, ``call_log`` finds out which of them a call belongs to.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from msgspec.structs import replace

from corral._agents.spec import Launch, MeterRoute
from corral._metering.budget_gate import BudgetGate
from corral._metering.call_log import CallLog, Emit
from corral._metering.proxy.proxy import ModelProxy, ProxySettings
from corral._models.registry import all_providers, find_provider
from corral._models.spec import Provider
from corral._sessions.deadlines import VAGUE, unreachable
from corral._sessions.prepared_run import PreparedRun
from corral._system.environment import Environment, without_proxy_for_this_machine
from corral.errors import CorralError, QuotaSpent, RateLimited

_LOCAL = "127.0.0.1"
LONGEST_HOLD = 240.0
"""Seconds that a model call is held for a rate limit: most agents wait 300 s for a response."""


class Meter:
    """The proxy of one process of the agent. Made by ``open``."""

    def __init__(
        self,
        proxy: ModelProxy,
        log: CallLog,
        prepared: PreparedRun,
        url: str,
        gate: BudgetGate | None,
    ) -> None:
        self._proxy = proxy
        self._gate = gate
        self._log = log
        self._url = url
        """The proxy's, as the agent gets it."""
        self.prepared = prepared
        """What the agent is started with."""
        self._close = weakref.finalize(self, proxy.close)

    @classmethod
    async def open(cls, prepared: PreparedRun) -> Meter:
        route = prepared.meter
        if route is None:
            raise TypeError("the run is not metered")
        environment = prepared.environment
        names = [name for name in route.key_env if environment.agent_values.get(name)]
        settings = ProxySettings(
            upstream=route.url,
            providers=lambda: _providers(route),
            keys={name: environment.agent_values[name] for name in names},
            longest_hold=math.inf if route.pause_env else LONGEST_HOLD,
        )
        log = CallLog()
        budget = prepared.budget
        gate = None if budget is None else BudgetGate(budget, log.on_wait)
        waits = prepared.limit_waits
        proxy = ModelProxy(
            settings,
            log.on_call,
            gate,
            on_start=log.on_start,
            on_limit=log.on_limit,
            on_key=log.on_key,
            waits=waits,
        )
        await proxy.open()
        url = f"http://{_LOCAL}:{proxy.port}{urlsplit(route.url).path.rstrip('/')}"
        given = {**proxy.dummy_keys, route.url_env: url}
        # A call may wait for a raise, or for others that share the budget.
        holds = budget is not None or prepared.run.on_limit == "wait"
        if holds:
            given |= route.pause_env
        # The proxy enforces the limit, not the agent.
        run = replace(prepared.run, max_cost=None)
        changed = replace(prepared, run=run, environment=_with_proxy(environment, route, given))
        return cls(proxy, log, changed, url, gate)

    def subscribe(self, emit: Emit, session_id: str = "", text: str = "") -> None:
        """From now on, ``emit`` gets the calls of a prompt. It is a method, and held weakly."""
        self._log.add(emit, session_id, text)
        if self._gate is not None:
            self._gate.refusal = None

    async def wait_for_calls(self, emit: Emit) -> None:
        """Wait until the calls of this prompt have ended, for a short time."""
        await self._log.wait_for_calls(emit)

    def unsubscribe(self, emit: Emit) -> None:
        self._log.remove(emit)

    def described(self, launch: Launch) -> Launch:
        """The same launch, described with the URL of the model's service instead of the proxy's."""
        route = self.prepared.meter
        url = route.url if route is not None else ""
        notes = tuple(note.replace(self._url, url) for note in launch.notes)
        return replace(launch, notes=notes, service_url=url or launch.service_url)

    def cause_of(self, error: CorralError | None) -> CorralError | None:
        """The same error, or its cause: a model call was refused because it does not fit into the
        budget, the last one met a rate limit, or the network failed."""
        if self._gate is not None and self._gate.refusal is not None:
            return self._gate.refusal
        if self._log.limit is not None and isinstance(error, (*VAGUE, RateLimited)):
            # The agent's error with the time at which the limit ends, which the vendor sent.
            limit = self._log.limit
            if not isinstance(error, RateLimited) or isinstance(limit, QuotaSpent):
                return limit
            error.retry_after, error.resets_at = limit.retry_after, limit.resets_at
            return error
        if self._log.unreachable is None or not isinstance(error, VAGUE):
            return error
        return unreachable(self._log.unreachable)

    async def close(self) -> None:
        """End the proxy. Calls that are not complete are reported as partial."""
        self._close()
        await self._proxy.wait_closed()


def _with_proxy(
    environment: Environment, route: MeterRoute, given: Mapping[str, str]
) -> Environment:
    """The environment without real keys. Requests to the proxy do not go through a proxy of the
    user."""

    def changed(values: Mapping[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in values.items() if k not in route.unused_env}
        return {**kept, **given}

    values = without_proxy_for_this_machine(changed(environment.values))
    return replace(environment, values=values, agent_values=changed(environment.agent_values))


def _providers(route: MeterRoute) -> Sequence[Provider]:
    """Whose APIs the agent may use. A service with a known URL has its own prices."""
    host = urlsplit(route.url).hostname
    named = [find_provider(name) for name in route.vendors]
    if host == _LOCAL or any(urlsplit(each.base_url).hostname == host for each in named):
        return named  # the usual cases: to look through all vendors takes longer than all the rest
    here = [each for each in all_providers() if urlsplit(each.base_url).hostname == host]
    wires = {each.wire.name for each in named}
    return [*(each for each in here if each.wire.name in wires and host), *named]
