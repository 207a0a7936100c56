"""The providers with the config keys of workflow engines: the Gemini CLI, Claude Code, and a
person."""

from __future__ import annotations

from collections.abc import Mapping

from corral.events import Event, Log
from corral.providers.agent import DEFAULT_APPROVAL, AgentProvider, RunLog, log
from corral.result import Result
from corral.sessions import question_files, store
from corral.sessions.prepare import prepare
from corral.sessions.prepared_run import resolve_prompt
from corral.values import is_sequence


class GeminiCliProvider(AgentProvider):
    """The default of ``approval_mode`` is ``auto_edit``: files may be edited.

    ::

        provider = GeminiCliProvider({"timeout": 300})
        provider.validate()
        print(provider.generate("Fix the typo in README.md"))
    """

    agent = name = "gemini-cli"
    description = "Gemini CLI AI agent via subprocess"
    config_keys = (*AgentProvider.config_keys, "sandbox", "include_directories")


PERMISSION_MODES = {
    "default": "default",
    "acceptEdits": "auto_edit",
    "bypassPermissions": "yolo",
    "plan": "plan",
}
"""Claude Code's names -> those of corral's approval modes."""


class ClaudeCodeProvider(AgentProvider):
    """The default of ``permission_mode`` is ``acceptEdits``: files may be edited.

    ::

        provider = ClaudeCodeProvider({"timeout": 300})
        provider.validate()
        print(provider.generate("Fix the typo in README.md"))
    """

    agent = "claude-cli"
    name = "claude-code"
    description = "Claude Code AI agent via subprocess"
    config_keys = (
        "model",
        "permission_mode",
        "allowed_tools",
        "add_dirs",
        "max_turns",
        "max_cost",
        "working_dir",
        "timeout",
    )

    def options(
        self, context: Mapping[str, object], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, object]:
        mode = self.config.get("permission_mode", "acceptEdits")
        if mode not in PERMISSION_MODES:
            names = ", ".join(PERMISSION_MODES)
            raise ValueError(f"permission_mode must be one of {names}, got: {mode!r}")
        options = super().options(context, PERMISSION_MODES[str(mode)])
        options.pop("permission_mode", None)
        if (folders := options.pop("add_dirs", None)) is not None:
            if not is_sequence(folders):
                raise ValueError(f"add_dirs must be a list, got: {type(folders).__name__}")
            options["include_directories"] = folders
        return options


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
    config_keys = ("via", "working_dir", "timeout")

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
