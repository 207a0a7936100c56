"""The provider for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from corral.events import Event, Log
from corral.providers.agent import (
    DEFAULT_APPROVAL,
    AgentProvider,
    Check,
    RunLog,
    check_one_of,
    check_seconds,
    check_text,
    log,
)
from corral.result import Result
from corral.sessions import question_files, store
from corral.sessions.prepare import prepare
from corral.sessions.prepared_run import resolve_prompt


class ManualProvider(AgentProvider):
    """Waits for the answer of a person. If the engine was killed meanwhile and asks again, it gets
    the answer to the same prompt in the same folder.

    ::

        provider = ManualProvider()
        print(provider.generate("Which color?"))
    """

    agent = name = "manual"
    description = "A person, asked through files, an editor or the terminal"
    connection_timeout = None
    response_timeout = None
    checks: ClassVar[Mapping[str, Check]] = {
        "via": check_one_of("file", "editor", "terminal"),
        "working_dir": check_text,
        "timeout": check_seconds,
    }

    def options(
        self, context: Mapping[str, object], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, object]:
        options = super().options(context, approval_mode)
        del options["approval_mode"]  # a policy cannot be enforced on a person
        return {**options, "keep": True}

    async def _run(
        self, prompt: str, system: str | None, options: dict[str, object], run_log: RunLog
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
        return await super()._run(prompt, system, options, HumanRunLog(self.name))

    def _writes_by_shell(self) -> bool:
        return True  # a person may write in any way

    def _check(self) -> None:
        prepare(self.agent, self.options({}))


class HumanRunLog(RunLog):
    """Logs the lines that say where to answer."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Log):
            log.warning("%s", event.text)
        else:
            super().__call__(event)
