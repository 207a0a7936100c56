"""The provider for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corral.events import Event, Log
from corral.providers.agent import (
    DEFAULT_APPROVAL,
    AgentProvider,
    Check,
    RunLog,
    a_text,
    log,
    one_of,
    seconds,
)
from corral.result import Result
from corral.sessions import question_files, store
from corral.sessions.prepare import prepare, resolve_prompt


class ManualProvider(AgentProvider):
    """Waits for the person, for a month at the most. An engine that was killed meanwhile asks
    again, and gets what was answered to the same prompt in the same folder."""

    agent = name = "manual"
    description = "A person, asked through files, an editor or the terminal"
    connection_timeout = None
    response_timeout = None
    checks: ClassVar[Mapping[str, Check]] = {
        "via": one_of("file", "editor", "terminal"),
        "working_dir": a_text,
        "timeout": seconds,
    }

    def options(
        self, context: Mapping[str, Any], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, Any]:
        options = super().options(context, approval_mode)
        del options["approval_mode"]  # nobody can be held to it
        return {**options, "keep": True}

    async def _run(
        self, prompt: str, system: str | None, options: dict[str, Any], run_log: RunLog
    ) -> Result:
        prepared = prepare(self.agent, options)
        wanted = resolve_prompt(prepared, prompt)
        for record in store.all_sessions():
            here = (record.meta.agent, record.meta.cwd) == (prepared.agent.name, prepared.cwd)
            if (
                here
                and question_files.open_prompt(record) == wanted
                and not store.is_in_use(record)
            ):
                options["resume"] = record.meta.id
                break
        return await super()._run(prompt, system, options, HumanEvents(self.name))

    def _writes_by_shell(self) -> bool:
        return True  # a person writes by whatever means

    def _check(self) -> None:
        prepare(self.agent, self.options({}))


class HumanEvents(RunLog):
    """Logs the lines that say where the answer is expected."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Log):
            log.warning("%s", event.text)
        else:
            super().__call__(event)
