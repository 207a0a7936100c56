#!/bin/sh
# A chat with an agent that may edit the files here, and asks before anything else:
#
#   sh chat.sh
#   sh chat.sh --resume last
#   sh chat.sh --model gemini:gemini-2.5-flash
#
# In the chat, /diff shows what was changed, /undo takes it back, /usage shows the cost, and /save
# writes the conversation to a file.
# Lines of code: 1; with claude-agent-sdk: 24 (peers/chat_claude_agent_sdk.py)
corral chat --approve edits "$@"
