"""An eval of inspect with an agent of corral: three samples, each with its own files.

inspect eval examples/integrations/inspect_eval.py
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes

from corral.integrations.inspect_ai import corral_agent

QUESTION = "Which number is in number.txt?"


@task
def read_a_file() -> Task:
    return Task(
        dataset=[
            Sample(input=QUESTION, target=number, files={"number.txt": number})
            for number in ("42", "43", "44")
        ],
        solver=corral_agent(policy="reads", max_turns=10),
        scorer=includes(),
        sandbox="local",
        time_limit=300,
    )
