#!/bin/sh
# A Claude Code that costs nothing: answers `initialize`, takes one prompt, writes ten lines.
if [ "$1" = -v ] || [ "$1" = --version ]; then
  echo "2.1.250 (Claude Code)"
  exit
fi
read -r line
id=${line#*\"request_id\": \"}
id=${id%%\"*}
echo '{"type":"control_response","response":{"subtype":"success","request_id":"'"$id"'","response":{}}}'
read -r line
echo '{"type":"system","subtype":"init","session_id":"s","claude_code_version":"2.1.250"}'
for word in one two three four five six seven eight; do
  echo '{"type":"assistant","session_id":"s","message":{"id":"m","role":"assistant","model":"none","content":[{"type":"text","text":"'$word'"}]},"parent_tool_use_id":null}'
done
echo '{"type":"result","subtype":"success","is_error":false,"duration_ms":1,"duration_api_ms":1,"num_turns":1,"session_id":"s","result":"eight"}'
