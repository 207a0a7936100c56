"""Drive an ACP agent with one prompt: ``acp_served.py PROMPT COMMAND...``.

The figures are the CPU time of the agent with all that it started, and the characters of text that
it sent. The client is the state machine alone: its cost is not part of the figures.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from corral._protocol.acp.client import (
    AcpClient,
    CallFinished,
    Emit,
    Offer,
    SentCall,
    read_session,
)
from corral._protocol.acp.frames import TextBlock
from corral._protocol.jsonrpc import SendBytes


def main() -> None:
    prompt, *command = sys.argv[1:]
    client, size = AcpClient(), 0
    with subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("no pipes")
        write, reading = stdin.write, stdout.fileno()

        def settle(sent: SentCall) -> CallFinished:
            nonlocal size
            id, data = sent
            write(data)
            while True:
                chunk = os.read(reading, 1 << 16)
                for each in client.receive(chunk) if chunk else client.end():
                    if isinstance(each, SendBytes):
                        write(each.data)
                    elif isinstance(each, Emit):
                        size += sum(len(event) for event in each.events if isinstance(event, str))
                    elif isinstance(each, CallFinished) and each.id == id:
                        return each

        settle(client.initialize(Offer()))
        session = read_session(settle(client.new_session(os.getcwd())).result)
        settled = settle(client.prompt(session.session_id, [TextBlock(prompt)]))
        if settled.error is not None:
            raise RuntimeError(settled.error.message)
        stdin.close()
        process.wait(30)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "size": size}))


main()
