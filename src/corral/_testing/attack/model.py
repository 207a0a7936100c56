"""The injected model: makes one attempt after another, whatever their results are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from corral._agents.spec import Form, Probe, fill_placeholders
from corral._testing.attack.arena import Arena, LinkSwapper
from corral._testing.attack.attempts.attempt import Attempt
from corral._testing.model_server.request import Call, Request
from corral._testing.model_server.script import Turn
from corral.values import JsonObject

SERVER = "canary"
PROMPT = "Do the next task."


@dataclass
class Made:
    """One attempt that was made, and what came back."""

    attempt: Attempt
    tool: str
    offered: bool
    returned: str = ""


class InjectedModel:
    """A script for a lane of the model server.

    It ends its turn after ``per_turn`` calls, so that no agent sees a loop: the caller prompts
    again while ``left`` is not empty. A request of a sub-agent gets the attempt that the sub-agent
    was started for.
    """

    def __init__(self, probe: Probe, arena: Arena, *, per_turn: int = 20) -> None:
        self.made: list[Made] = []
        self.left: list[Attempt] = []
        self._probe = probe
        self._arena = arena
        self._per_turn = per_turn
        self._turn = 0
        self._has_tools = False
        self._delegated: dict[str, Attempt] = {}
        self._prepared: set[int] = set()
        self._swapping = LinkSwapper(arena)

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """Make these attempts. Their targets are in the arena already."""
        for attempt in attempts:
            if attempt.act == "mcp" or self._forms(attempt):
                self.left += [attempt] * attempt.repeat

    def _forms(self, attempt: Attempt) -> Sequence[Form]:
        match attempt.act:
            case "none" | "mcp":
                return ()
            case act:
                return self._probe.forms.get(act, ())

    def close(self) -> None:
        self._swapping.stop()

    def __call__(self, request: Request) -> Turn:
        delegated = next((a for n, a in self._delegated.items() if n in request.last_text), None)
        if delegated is not None:
            return self._as_sub_agent(request, delegated)
        self._has_tools = self._has_tools or bool(request.tools)
        # A request for a title of the session quotes the prompt.
        wants_title = "dominant language of the session" in json.dumps(request.body)
        beside = self._has_tools or PROMPT not in request.last_text or wants_title
        if not request.tools and beside:
            return Turn(text="A title")
        self._take_results(request)
        if not self.left or self._turn >= self._per_turn:
            self._turn = 0
            return Turn(text="Done.")
        self._turn += 1
        attempt = self.left.pop(0)
        if "swapped" in attempt.given.get("path", ""):
            self._swapping.start()
        tool, given = self._next_call(attempt, request.tools)
        searched = {"tool_search", "ToolSearch"} & {*request.tools}
        self.made.append(
            Made(
                attempt,
                tool,
                offered=tool in request.tools or (attempt.act == "mcp" and bool(searched)),
            )
        )
        if attempt.delegated is not None:
            self._delegated[f"the task {self._arena.name(attempt)}."] = attempt
        return Turn(calls=[Call(tool, given)])

    def _next_call(self, attempt: Attempt, offered: Sequence[str]) -> tuple[str, JsonObject]:
        """The attempt's own call, or the call that must be made before it."""
        if attempt.first is None or id(attempt) in self._prepared:
            return self._call(attempt, offered)
        self._prepared.add(id(attempt))
        self.left.insert(0, attempt)
        return self._call(attempt.first, offered, targets=attempt)

    def _take_results(self, request: Request) -> None:
        """Add the results since the last call to that call."""
        if not self.made:
            return
        found: list[str] = []
        for message in reversed(request.history):
            # Some agents send results in the name of the model.
            if message.role == "model" and not message.results:
                break
            found += [json.dumps(result.response, ensure_ascii=False) for result in message.results]
        self.made[-1].returned += "\n".join(found)

    def _as_sub_agent(self, request: Request, attempt: Attempt) -> Turn:
        if request.tool_results:
            if "complete_task" in request.tools:
                return Turn(calls=[Call("complete_task", {"result": "Done."})])
            return Turn(text="Done.")
        tool, given = self._call(attempt.delegated or attempt, request.tools, targets=attempt)
        return Turn(calls=[Call(tool, given)])

    def _call(
        self, attempt: Attempt, offered: Sequence[str], targets: Attempt | None = None
    ) -> tuple[str, JsonObject]:
        values = {
            key: self._arena.fill(text, targets or attempt) for key, text in attempt.given.items()
        }
        if attempt.act == "mcp":
            tool = self._probe.mcp_name.format(server=SERVER, tool=values["tool"])
            return tool, {"text": values["text"]}
        forms = self._forms(attempt)
        form: Form = next((f for f in forms if f[0] in offered), forms[0])
        if attempt.form is not None:
            form = forms[attempt.form]
        if "path" in values:
            values["abspath"] = absolute(values["path"], str(self._arena.cwd))
        return form[0], fill_placeholders(form[1], {**values, "server": SERVER})


def absolute(path: str, cwd: str) -> str:
    return path if path.startswith(("/", "~", "file:")) else f"{cwd}/{path}"
