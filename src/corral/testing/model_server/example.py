"""The example script of ``corral fake new``."""

from __future__ import annotations

EXAMPLE = """\
# A scripted model. Use it:
#
#     corral run --fake {name} --approve edits "Write a greeting"
#
# `corral fake serve {name}` serves it for other programs, and prints the variables for them.
#
# The script is the same for every agent.

# When the script starts over: "never", "at_end" (when all turns are served), or
# "per_conversation" (each new conversation begins with the first turn).
restart = "per_conversation"

# Each turn answers one request of the agent. This one calls two tools.
#
# These names are translated to the tools of the agent that asks:
#     shell         command
#     read_file     path
#     write_file    path, content
#     edit_file     path, old, new
#     list_files    path
#     search_files  pattern, path
#     fetch_url     url
# Any other name, and other arguments, are sent as they are.
[[turn]]
text = "I will write the file."
[[turn.call]]
name = "write_file"
args = {{ path = "greeting.txt", content = "Hello from a scripted model.\\n" }}

# The next request has the result of the call. A turn can check what the request contains.
[[turn]]
text = "And now I will read it."
[[turn.call]]
name = "read_file"
args = {{ path = "greeting.txt" }}

# The last answer. `usage` is what the model reports; without it, it is estimated.
[[turn]]
text = ["I wrote ", "greeting.txt."]  # two chunks of the stream
usage = {{ input = 1200, output = 40 }}

# Faults, to see how your automation takes them. Remove the # to use one.
#
# [[turn]]
# status = 429          # a rate limit; the agent tries again
# retry_after = 2
#
# [[turn]]
# match = "slow"        # only for a prompt that contains this word
# text = "That took a while."
# delay = 5             # seconds before the answer
#
# [[turn]]
# hang = true           # no answer at all
"""
"""TOML, with ``{name}`` for the file's own name."""
