"""An agent of harbor that is any agent of corral, in the environment that is corral's sandbox.

The agent runs on this machine, in corral's sandbox around the working directory of the trial, with
a policy that allows everything there and the network of the task. It does not see ``/tests``. In
its prompt the names ``workdir`` and ``/logs/artifacts`` are replaced by the real paths.

One outcome of corral is one outcome of harbor:

* a success: no exception, and the verifier runs;
* a failure that is the agent's own (it crashed, its turns or its budget were used up):
  ``NonZeroAgentExitCodeError``, and the verifier runs;
* a failure that says nothing about the agent (``compare_attempt.MISSING``: rate limit, no network,
  not installed ...): an exception after which harbor does not verify. So the trial has no reward;
* harbor's own timeout and cancellation end the agent with everything it started. What it used until
  then is in the result, too.

In each case ``agent/trajectory.json`` is the trajectory (ATIF), and the session is stored
(``corral runs show``).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.agents.options import AgentOptions
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext, ModelUsage
from harbor.models.trial.result import AgentInfo, ModelInfo
from msgspec.structs import replace
from pydantic import ConfigDict

from corral._agents import registry
from corral._comparison.harbor_job import EXCEPTIONS
from corral._export import atif
from corral._pipelines.events import PipelineEvent
from corral._pipelines.nodes.compare_attempt import MISSING
from corral._runs import stored_run
from corral._sessions import store
from corral._sessions.prepare import prepare
from corral._sessions.session import Session
from corral._sessions.turn import Turn
from corral._system import config, paths
from corral._system.threads import in_thread
from corral.errors import CorralError, ResumeLost, from_event
from corral.events import Error, Event
from corral.integrations.harbor._environment import NO_TIMEOUT, SandboxEnvironment
from corral.policy import Policy
from corral.result import Result, ResultBuilder
from corral.values import Usage

ARTIFACTS = "/logs/artifacts"
DECIDED = ("cwd", "policy", "approval_mode", "allowed_tools", "sandbox", "record", "keep", "model")
"""Options that are decided by the task, and by harbor's own options."""


class CorralOptions(AgentOptions):
    """``agent``, and the options of ``corral.run``, such as ``max_cost``."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")
    agent: str | None = None


class CorralAgent(BaseAgent):
    """An agent of corral. ``--ak agent=NAME`` names it, ``-m MODEL`` its model; further ``--ak``
    are options of ``corral.run``. Without a name, ``-m VENDOR/MODEL`` is the built-in agent on that
    model.

    ::

        harbor run -p tasks --env corral.integrations.harbor:SandboxEnvironment \\
            -a corral.integrations.harbor:CorralAgent --ak agent=claude --ak max_cost=1
    """

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities(
        atif=True, native_web_tools=True, reasoning_effort=True
    )
    options_model = CorralOptions
    options: CorralOptions
    _version: str | None = None

    @staticmethod
    def name() -> str:
        """The name that harbor shows where it knows no instance."""
        return "corral"

    def version(self) -> str | None:
        """The version of the agent's program, known from ``setup`` on."""
        return self._version

    def to_agent_info(self) -> AgentInfo:
        """The name of corral's agent, its version, and the model that was asked for."""
        model = self._model
        return AgentInfo(
            name=self._agent,
            version=self.version() or "unknown",
            model_info=ModelInfo(name=model, provider=None) if model else None,
        )

    @classmethod
    def preflight(
        cls, kwargs: dict[str, object] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Before any trial: the options, and whether the agent is installed. Raises
        ``ValueError``."""
        parsed = cls.parse_options(kwargs, env)
        if not isinstance(parsed, CorralOptions):
            raise TypeError("harbor did not use the agent's model of its options")
        agent = parsed.agent or config.default_agent()
        folder = paths.make_dir(paths.home() / "sandboxes")
        try:
            prepare(agent, _options(parsed, None, dict(env or {}), Policy.all(), folder))
        except CorralError as error:
            raise ValueError(str(error)) from error

    @property
    def _agent(self) -> str:
        return self.options.agent or config.default_agent(self.model_name)

    @property
    def _model(self) -> str | None:
        """The agent's name for the model: without the vendor that harbor writes before it
        (``google/``), unless the agent has models of several vendors."""
        model, agent = self.model_name, self._agent
        if model is None or agent == registry.full_name(model):
            return None
        if self.skip_model_parsing or not config.find_agent(agent).vendor:
            return model
        return model.partition("/")[2] or model

    async def setup(self, environment: BaseEnvironment) -> None:
        """Make every check of a run. Raises ``ValueError`` for another environment,
        ``RuntimeError`` for another user, and ``CorralError``."""
        sandbox = _sandbox(environment)
        sandbox.check_user()
        options = self._run_options(sandbox)
        prepared = await in_thread(prepare, self._agent, options)
        self._version = prepared.program.version

    def _run_options(self, environment: SandboxEnvironment) -> dict[str, object]:
        policy = environment.policy
        if self.options.disable_web_search and policy.network == "allow":
            # Commands reach every host, and the agent's own web tools are denied.
            policy = replace(policy, network_hosts=("*",))
        policy = replace(policy, writable=(environment.real_path(ARTIFACTS),))
        return _options(self.options, self._model, self.extra_env, policy, environment.workspace)

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        """Run the agent to its end. Raises as the module says."""
        sandbox = _sandbox(environment)
        session = Session(self._agent, self._run_options(sandbox))
        prompt = instruction
        for name in (sandbox.workdir, ARTIFACTS):
            prompt = with_real_path(prompt, name, sandbox.real_path(name))
        stored = ""
        try:
            async with session:
                stored = session.id
                result = await _collect(session.prompt(prompt))
        finally:
            if stored:
                await in_thread(self._report, stored, context)
        if result.ok:
            return
        error = from_event(result.error or Error(code="error", message=result.status), result)
        if isinstance(error, MISSING):
            raise _missing(error) from error
        raise NonZeroAgentExitCodeError(f"{result.status}: {error}") from error

    def _report(self, session: str, context: AgentContext) -> None:
        """Write the trajectory of a stored session, and what it has used."""
        with suppress(ResumeLost):  # the agent never started
            stored, builder = stored_run.of_session(store.find(session)), ResultBuilder()

            def events() -> Iterator[Event]:
                for event in stored.events():
                    if not isinstance(event, PipelineEvent):
                        builder.add(event)
                        yield event

            with (self.logs_dir / "trajectory.json").open("wb") as output:
                atif.write(events(), output.write, session_id=stored.id)
            _fill(context, builder.result(), session)


def _sandbox(environment: BaseEnvironment) -> SandboxEnvironment:
    """Raises ``ValueError`` for another environment."""
    if isinstance(environment, SandboxEnvironment):
        return environment
    raise ValueError(
        "CorralAgent runs on this machine, and the files of "
        + environment.type()
        + " are elsewhere:"
        " use --env corral.integrations.harbor:SandboxEnvironment, or one of harbor's own agents"
    )


async def _collect(turn: Turn) -> Result:
    """The result of a turn. If harbor cancels it, the agent is ended first, so that what it has
    used is stored."""
    work = asyncio.ensure_future(turn.collect())
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        turn.cancel()
        await asyncio.wait([work])
        raise
    finally:
        work.cancel()  # it has ended, unless this was cancelled twice


def _options(
    given: CorralOptions,
    model: str | None,
    env: Mapping[str, str],
    policy: Policy,
    workspace: Path,
) -> dict[str, object]:
    """The options of the run. Raises ``ValueError``."""
    more = dict(given.model_extra or {})
    wrong = [name for name in DECIDED if name in more]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: decided by the task and by harbor's own options")
    return {
        "timeout": NO_TIMEOUT,  # harbor's own counts
        "reasoning_effort": given.reasoning_effort,
        **more,
        "model": model,
        "env": dict(env),
        "cwd": os.fspath(workspace),
        "policy": policy,
        "sandbox": "require",
        "record": True,
    }


def _missing(error: CorralError) -> Exception:
    """An exception after which harbor has no verdict. Harbor runs the verifier after its own
    classes of these names; it retries by the name."""
    name = EXCEPTIONS.get(error.code, type(error).__name__)
    kind: type[Exception] = type(name, (RuntimeError,), {})
    return kind(str(error))


def _fill(context: AgentContext, result: Result[object], session: str) -> None:
    usage, model = result.usage, result.model
    context.n_input_tokens = usage.input
    context.n_cache_tokens = usage.cache_read
    context.n_output_tokens = usage.output
    context.cost_usd = result.cost.usd
    by_model = result.usage_by_model or ({model: usage} if model and usage != Usage() else {})
    context.model_usage = {
        name: _model_usage(each, result.cost.usd if len(by_model) == 1 else None)
        for name, each in by_model.items()
    } or None
    context.metadata = {
        "status": result.status,
        "session": session,
        "agent": result.agent,
        "agent_version": result.agent_version,
        "model": model,
        "usage_source": result.usage_source,
        "cost_source": result.cost.source,
        "sandbox": result.sandbox,
    }


def _model_usage(usage: Usage, cost: float | None) -> ModelUsage:
    return ModelUsage(
        n_input_tokens=usage.input or 0,
        n_cache_tokens=usage.cache_read or 0,
        n_output_tokens=usage.output or 0,
        cost_usd=cost,
    )


def with_real_path(prompt: str, name: str, path: str) -> str:
    """The prompt with the real path of a folder in place of the name that it has in the sandbox of
    the trial, such as ``/app``."""
    pattern = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w-])")
    return pattern.sub(lambda _: path, prompt)
