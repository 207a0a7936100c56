"""Stream an agent's work to a browser, as server-sent events from FastAPI.

    pip install corral fastapi uvicorn
    uvicorn web_streaming:app
    curl -N 'http://127.0.0.1:8000/ask?prompt=What+does+this+project+do'

If the client disconnects, the agent is ended.

Lines of code: 12; with claude-agent-sdk: 24 (peers/web_streaming_claude_agent_sdk.py)
"""

from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import corral

app = FastAPI()


async def events(prompt: str) -> AsyncIterator[str]:
    async with corral.session("gemini-cli") as session:
        async for event in session.prompt(prompt):
            yield f"event: {event.type}\ndata: {corral.to_json(event).decode()}\n\n"


@app.get("/ask")
async def ask(prompt: str) -> StreamingResponse:
    return StreamingResponse(events(prompt), media_type="text/event-stream")
