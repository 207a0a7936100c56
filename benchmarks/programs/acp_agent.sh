#!/bin/sh
# An ACP agent that costs nothing: one session, ten pieces of text for every prompt.
while read -r line; do
  id=${line#*\"id\":}
  id=${id%%[,\}]*}
  case $line in
  *'"method":"initialize"'*)
    result='{"protocolVersion":1,"agentCapabilities":{},"authMethods":[]}'
    ;;
  *'"method":"session/new"'*)
    result='{"sessionId":"s"}'
    ;;
  *'"method":"session/prompt"'*)
    for word in one two three four five six seven eight nine ten; do
      echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'$word'"}}}}'
    done
    result='{"stopReason":"end_turn"}'
    ;;
  *) continue ;;
  esac
  echo '{"jsonrpc":"2.0","id":'"$id"',"result":'"$result"'}'
done
