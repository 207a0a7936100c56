"""A script for litellm, moved to corral: a typed answer with a fallback, and a stream.

    python migrate_litellm.py 'The page is blank after login'

The answer is checked against the type, and the model is asked to correct it if it does not fit.

Lines of code: 16; with litellm: 33 (peers/migrate_litellm.py)
"""

import sys
from dataclasses import dataclass

from corral import models

MODELS = ["gemini:gemini-2.5-flash", "openai:gpt-5-mini"]


@dataclass
class Ticket:
    title: str
    severity: int


report = [
    {"role": "system", "content": "You classify bug reports. Severity is 1 to 5."},
    {"role": "user", "content": sys.argv[1]},
]
answer = models.generate_object_sync(MODELS, Ticket, messages=report, timeout=60)
print(answer.output, answer.cost.usd, *answer.warnings)
for piece in models.stream_sync(MODELS, f"Suggest a test for: {answer.output.title}").text():
    print(piece, end="", flush=True)
