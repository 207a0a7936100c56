"""The script before: litellm."""

import sys

from litellm import completion, completion_cost
from pydantic import BaseModel, ValidationError

MODEL, FALLBACKS = "gemini/gemini-2.5-flash", ["openai/gpt-5-mini"]


class Ticket(BaseModel):
    title: str
    severity: int


report = [
    {"role": "system", "content": "You classify bug reports. Severity is 1 to 5."},
    {"role": "user", "content": sys.argv[1]},
]
for _ in range(3):
    response = completion(
        model=MODEL,
        fallbacks=FALLBACKS,
        messages=report,
        response_format=Ticket,
        timeout=60,
        num_retries=2,
    )
    text = response.choices[0].message.content
    try:
        ticket = Ticket.model_validate_json(text)
        break
    except ValidationError as error:
        report.append({"role": "assistant", "content": text})
        report.append({"role": "user", "content": f"Correct this: {error}"})
else:
    sys.exit("the model did not give a valid ticket")
print(ticket, completion_cost(completion_response=response), response.model)
question = [{"role": "user", "content": f"Suggest a test for: {ticket.title}"}]
for chunk in completion(model=MODEL, fallbacks=FALLBACKS, messages=question, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
