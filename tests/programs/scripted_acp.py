#!/usr/bin/env -S python3 -S -E
"""An agent that speaks the Agent Client Protocol and does what its prompt says, an order a line.

    scripted_acp.py --acp [--loads] [--lists COUNT] [--images] [--fails STAGE HOW]

STAGE is ``initialize``, ``session/new`` or ``session/load``; HOW is ``silence``, ``exit``,
``error``, ``version`` or ``nonsense``. Prompts of several sessions run at once. COUNT is how
many sessions it keeps of old; it lists two a page, and with ``--endless`` page after page.
With ``--connects`` it lists the tools of its tool servers first; with ``--no-http`` too, it takes
servers that are programs only. With ``--greets`` it speaks in
one breath with the reply that opens a session.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
OPTIONS = {
    "allow_always": {"optionId": "a-session", "name": "Always", "kind": "allow_always"},
    "allow_once": {"optionId": "b-once", "name": "Yes", "kind": "allow_once"},
    "reject_once": {"optionId": "c-no", "name": "No", "kind": "reject_once"},
}
WHERE = sys.argv.index("--fails") + 1 if "--fails" in sys.argv else len(sys.argv)
STAGE, HOW = (*sys.argv[WHERE:], "", "")[:2]

writing = threading.Lock()
numbers = itertools.count(1)
waiting: dict[str, tuple[threading.Event, dict[str, Any]]] = {}
sessions: dict[str, "Session"] = {}
seen: dict[str, Any] = {}
"""The parameters of the last call of each method."""


def send(**message: Any) -> None:
    raw(line_of(**message))


def line_of(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def raw(data: bytes) -> None:
    with writing:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def of_server(server: dict[str, Any], method: str, params: dict[str, Any]) -> None:
    if "url" not in server:
        return of_program(server, method, params)
    import urllib.request

    headers = {header["name"]: header["value"] for header in server["headers"]}
    headers |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(server["url"], body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        reply = json.load(answer)
    assert reply.get("result", {"isError": True}).get("isError") is not True, reply


def of_program(server: dict[str, Any], method: str, params: dict[str, Any]) -> None:
    env = {variable["name"]: variable["value"] for variable in server["env"]}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {},
             "clientInfo": {"name": "scripted", "version": "1"}}  # fmt: skip
    calls = line_of(id=1, method="initialize", params=hello)
    calls += line_of(method="notifications/initialized")
    calls += line_of(id=2, method=method, params=params)
    with subprocess.Popen(
        [server["command"], *server["args"]],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin
        assert program.stdout
        program.stdin.write(calls)
        program.stdin.flush()
        replies = [json.loads(program.stdout.readline()) for _ in range(2)]
        program.stdin.close()
    assert replies[0]["result"]["serverInfo"]["name"] == "corral", replies
    assert replies[1].get("result", {"isError": True}).get("isError") is not True, replies


def call_tool(server: dict[str, Any], name: str, arguments: dict[str, Any]) -> None:
    of_server(server, "tools/call", {"name": name, "arguments": arguments})


class Session:
    def __init__(self, id: str, cwd: str) -> None:
        self.id = id
        self.cwd = cwd
        self.servers: list[dict[str, Any]] = []
        self.prompts: list[str] = []
        self.cancelled = threading.Event()
        self.deaf = False
        self.order = list(OPTIONS)
        self.usage: dict[str, int] = {}

    def update(self, update: str, **fields: Any) -> None:
        params = {"sessionId": self.id, "update": {"sessionUpdate": update, **fields}}
        send(method="session/update", params=params)

    def text(self, text: str) -> None:
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def repeat(self) -> None:
        while True:
            self.text("more words of old")
            time.sleep(0.02)

    def call(self, method: str, **params: Any) -> str:
        """A request to the client; its id."""
        id = f"r{next(numbers)}"
        waiting[id] = (threading.Event(), {})
        send(id=id, method=method, params={"sessionId": self.id, **params})
        return id

    def reply(self, id: str) -> dict[str, Any]:
        arrived, message = waiting[id]
        arrived.wait(60)
        return message

    def ask(self, kind: str, title: str, call_id: str) -> str:
        tool: dict[str, Any] = {
            "toolCallId": call_id,
            "status": "pending",
            "kind": kind,
            "title": title,
        }
        if kind == "execute":
            tool["rawInput"] = {"command": title}
        if title.startswith("/"):
            tool["locations"] = [{"path": title}]
        options = [OPTIONS[name] for name in self.order]
        return self.call("session/request_permission", toolCall=tool, options=options)

    def answer(self, id: str) -> str:
        message = self.reply(id)
        outcome = message.get("result", {}).get("outcome", {"outcome": "error"})
        return str(outcome.get("optionId") or outcome["outcome"])

    def sleep(self, seconds: float) -> None:
        if self.deaf:
            time.sleep(seconds)
        else:
            self.cancelled.wait(seconds)

    def run(self, orders: str) -> dict[str, Any] | None:
        """The reply to the prompt; None where it gets none."""
        for number, order in enumerate(orders.splitlines()):
            if self.cancelled.is_set() and not self.deaf:
                return {"stopReason": "cancelled"}
            word, _, rest = order.partition(" ")
            match word:
                case "text":
                    self.text(rest)
                case "thought":
                    self.update("agent_thought_chunk", content={"type": "text", "text": rest})
                case "tool":
                    id, kind, title = rest.split(" ", 2)
                    where = [{"path": title}] if kind == "edit" else []
                    self.update(
                        "tool_call",
                        toolCallId=id,
                        kind=kind,
                        title=title,
                        status="in_progress",
                        locations=where,
                    )
                case "tool-done":
                    id, _, status = rest.partition(" ")
                    self.update("tool_call_update", toolCallId=id, status=status or "completed")
                case "options":
                    self.order = rest.split()
                case "ask":
                    kind, _, title = rest.partition(" ")
                    call_id = f"call-{number}"
                    answer = self.answer(self.ask(kind, title or "something", call_id))
                    if answer in ("a-session", "b-once"):
                        self.update("tool_call_update", toolCallId=call_id, status="completed")
                    self.text(f"[{answer}]")
                case "ask-twice":
                    ids = [self.ask("execute", f"question {n}", f"twice-{n}") for n in (1, 2)]
                    for id in ids:
                        self.text(f"[{self.answer(id)}]")
                case "ask-and-end":
                    self.ask("execute", "never waited for", "gone")
                    return {"stopReason": "end_turn"}
                case "ask-and-give-up":
                    self.answer(self.ask("edit", "something", "given-up"))
                    return {"stopReason": "end_turn"}
                case "ask-nonsense":
                    self.reply(self.call("session/request_permission", toolCall=7, options="no"))
                    self.text("[refused]")
                case "read" | "write":
                    path, _, content = rest.partition(" ")
                    path = json.loads(f'"{path}"')
                    more = {"content": content} if word == "write" else {}
                    reply = self.reply(self.call(f"fs/{word}_text_file", path=path, **more))
                    result: dict[str, Any] = reply.get("result") or {}
                    error = reply.get("error")
                    self.text(f"[{error['message'] if error else result.get('content', 'ok')}]")
                case "mcp":  # call a tool of the first tool server, over HTTP
                    name, _, arguments = rest.partition(" ")
                    call_tool(self.servers[0], name, json.loads(arguments))
                case "request":
                    reply = self.reply(self.call(rest))
                    self.text(f"[{reply.get('error', {}).get('code')}]")
                case "update":
                    self.update(rest, more="of it")
                case "note":
                    send(method=rest, params={"sessionId": self.id})
                case "raw":
                    raw(rest.encode() + b"\n")
                case "raw-here":
                    raw(rest.replace("@", self.id).encode() + b"\n")
                case "wrong-id":
                    send(id=987654, result={"stopReason": "end_turn"})
                case "foreign":
                    Session("other", "").text("of another session")
                case "ask-foreign":
                    other = Session("other", "")
                    self.text(f"[{other.answer(other.ask('execute', 'something', 'foreign'))}]")
                case "many":
                    piece = {"type": "text", "text": "x"}
                    chunk = {"sessionUpdate": "agent_message_chunk", "content": piece}
                    params = {"sessionId": self.id, "update": chunk}
                    line = json.dumps(
                        {"jsonrpc": "2.0", "method": "session/update", "params": params}
                    )
                    for _ in range(int(rest) // 1000):
                        raw((line.encode() + b"\n") * 1000)
                case "stream":
                    with open(os.path.join(self.cwd, "streams"), "w"):
                        pass
                    while not os.path.exists(os.path.join(self.cwd, rest)):
                        self.text("more")
                        time.sleep(0.02)
                case "wrong-usage":
                    self.usage = json.loads(rest)
                case "usage":
                    taken, written = map(int, rest.split())
                    self.usage = {"inputTokens": taken, "outputTokens": written}
                    self.usage["totalTokens"] = taken + written
                case "history":
                    self.text(json.dumps(self.prompts[:-1]))
                case "pid":
                    self.text(str(os.getpid()))
                case "cwd":
                    self.text(self.cwd)
                case "told":
                    self.text(json.dumps(seen[rest]))
                case "stderr":
                    print(rest, file=sys.stderr, flush=True)
                case "child":
                    subprocess.Popen(SLEEPER, stdin=subprocess.DEVNULL)
                case "daemon":
                    subprocess.Popen(SLEEPER, stdin=subprocess.DEVNULL, start_new_session=True)
                case "ignore-cancel":
                    self.deaf = True
                case "touch":
                    with open(os.path.join(self.cwd, rest), "w") as file:
                        file.write("written\n")
                case "sh":
                    subprocess.run(["sh", "-c", rest], check=True, stdin=subprocess.DEVNULL)
                case "until":
                    while not os.path.exists(rest) and not self.cancelled.is_set():
                        time.sleep(0.005)
                case "sleep":
                    self.sleep(float(rest))
                case "hang":
                    self.sleep(300)
                case "slow-to-stop":
                    self.cancelled.wait(300)
                    self.text("last words of what was cancelled")
                case "die":
                    os.kill(os.getpid(), int(rest))
                    time.sleep(300)
                case "exit":
                    os._exit(int(rest))
                case "error":
                    code, _, message = rest.partition(" ")
                    return {"error": {"code": int(code), "message": message}}
                case "stop":
                    return {"stopReason": rest}
                case "endless" | "flood":
                    return {"stopReason": "end_turn", "endless": word}
                case "exit-after":
                    return {"stopReason": "end_turn", "exit": int(rest)}
                case "late":
                    return {"stopReason": "end_turn", "late": rest}
                case "late-on":  # FILE TEXT: said once FILE is there, which then is removed
                    return {"stopReason": "end_turn", "late-on": rest}
                case "twice":
                    return {"stopReason": "end_turn", "twice": True}
                case "never":
                    return None
                case _:
                    pass
        if self.cancelled.is_set() and not self.deaf:
            return {"stopReason": "cancelled"}
        return {"stopReason": "end_turn", **({"usage": self.usage} if self.usage else {})}

    def prompt(self, id: int, blocks: list[dict[str, str]]) -> None:
        orders = "\n".join(block.get("text", "") for block in blocks)
        self.prompts.append(orders)
        self.cancelled.clear()
        try:
            result = self.run(orders)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        if result is None:
            return
        if "error" in result:
            send(id=id, **result)
            return
        late, endless = result.pop("late", ""), result.pop("endless", "")
        code, sign = result.pop("exit", None), result.pop("late-on", "")
        send(id=id, result=result)
        if code is not None:
            os._exit(code)
        while endless:
            self.text("more")
            time.sleep(0.02 if endless == "endless" else 0)
        if late:
            time.sleep(0.03)  # as agents do that tell the end first
            self.text(str(late))
        if sign:
            name, _, text = sign.partition(" ")
            path = os.path.join(self.cwd, name)
            while not os.path.exists(path):
                time.sleep(0.01)
            self.text(text)
            os.remove(path)
        if "twice" in result:
            send(id=id, result={"stopReason": "refusal"})


MODES: dict[str, Any] = {
    "modes": {
        "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "plan", "name": "Plan"}],
        "currentModeId": "ask",
    }
}


def opened(session: Session) -> Session:
    sessions[session.id] = session
    return session


def initialize() -> dict[str, Any]:
    return {
        "protocolVersion": 1,
        "agentInfo": {"name": "scripted", "version": "1.2.3"},
        "agentCapabilities": {
            "loadSession": "--loads" in sys.argv,
            "mcpCapabilities": {"http": "--connects" in sys.argv and "--no-http" not in sys.argv},
            "promptCapabilities": {"image": "--images" in sys.argv},
            "sessionCapabilities": {"list": {} if "--lists" in sys.argv else None},
        },
        "authMethods": [],
    }


def listed(cwd: str | None, cursor: str | None) -> dict[str, Any]:
    """A page, and where the next begins."""
    begin = int(cursor or 0)
    found = [each for each in sessions.values() if cwd in (None, each.cwd)]
    page: list[dict[str, Any]] = [
        {
            "sessionId": each.id,
            "cwd": each.cwd,
            "title": each.prompts[0] if each.prompts else None,
            "updatedAt": "2026-01-02T03:04:05Z",
            "_meta": {"odd": 1},
        }
        for each in found[begin : begin + 2]
    ]
    more = {"nextCursor": str(begin + 2)} if "--endless" in sys.argv or found[begin + 2 :] else {}
    return {"sessions": page, **more}


def fails(id: int | None, method: str) -> bool:
    """Whether this stage was to fail, and has."""
    if method != STAGE:
        return False
    match HOW:
        case "exit":
            print("the reason why", file=sys.stderr, flush=True)
            os._exit(3)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "error":
            send(id=id, error={"code": -32603, "message": "it cannot be"})
        case "version":
            send(id=id, result={"protocolVersion": 2})
        case "nonsense":
            send(id=id, result=["what", 7])
        case _:
            pass
    return True


def serve(message: dict[str, Any]) -> None:
    id: Any = message.get("id")
    method: str | None = message.get("method")
    params: dict[str, Any] = message.get("params") or {}
    if method is None:
        arrived, reply = waiting[str(id)]
        reply.update(message)
        arrived.set()
        return
    seen[method] = params
    if fails(id, method):
        pass
    elif method == "initialize":
        send(id=id, result=initialize())
    elif method == "session/new":
        session = opened(Session(f"session-{os.getpid()}-{len(sessions) + 1}", params["cwd"]))
        session.servers = params["mcpServers"]
        for server in session.servers if "--connects" in sys.argv else ():
            of_server(server, "tools/list", {})
        opening = line_of(id=id, result={"sessionId": session.id, **MODES})
        word = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Hi. "}}
        greeting = {"sessionId": session.id, "update": word}
        is_first = "--greets" in sys.argv
        raw(opening + (line_of(method="session/update", params=greeting) if is_first else b""))
    elif method == "session/set_mode":
        if params["modeId"] in ("ask", "plan"):
            send(id=id, result={})
        else:
            send(id=id, error={"code": -32602, "message": "no such mode"})
    elif method in ("session/set_model", "session/set_config_option"):
        send(id=id, result={})
    elif method == "session/load" and "--loads" in sys.argv:
        session = opened(Session(params["sessionId"], params["cwd"]))
        session.prompts.append("(loaded)")
        session.text("words of old")
        send(id=id, result={})
        if "--endless-history" in sys.argv:
            threading.Thread(target=session.repeat, daemon=True).start()
    elif method == "session/list":
        send(id=id, result=listed(params.get("cwd"), params.get("cursor")))
    elif method == "session/prompt":
        session = sessions[params["sessionId"]]
        work = (id, params["prompt"])
        threading.Thread(target=session.prompt, args=work, daemon=True).start()
    elif method == "session/cancel":
        sessions[params["sessionId"]].cancelled.set()
    elif id is not None:
        send(id=id, error={"code": -32601, "message": f"no such method: {method}"})


if "--ignore-term" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--lists" in sys.argv:
    for number in range(int(sys.argv[sys.argv.index("--lists") + 1])):
        opened(Session(f"old-{number}", "/of/old"))
for line in sys.stdin.buffer:
    serve(json.loads(line))
if "--ignore-term" in sys.argv:
    time.sleep(300)
os._exit(0)  # whatever its prompts still do
