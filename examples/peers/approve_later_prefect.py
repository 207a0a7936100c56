"""approve_later.py with Prefect: start a server and this file, run the deployment
``approve-later/approve-later`` with a goal, and answer on the page of the server."""

import subprocess
from typing import Literal

from prefect import flow, task
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput


class Decision(RunInput):
    good: Literal["yes", "no"]


@task(persist_result=True)
def ask(prompt: str, attempt: int) -> str:  # the attempt: results with equal inputs are reused
    command = ["gemini", "--approval-mode", "auto_edit", "--prompt", prompt]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@flow(persist_result=True)
def approve_later(goal: str) -> str:
    ask(f"Make a short plan in PLAN.md. Goal: {goal}", 0)
    attempt = 0
    while True:
        attempt += 1
        ask(f"Carry out PLAN.md; see REVIEW.md. Goal: {goal}", attempt)
        review = ask(f"Review the changes; write REVIEW.md. Goal: {goal}", attempt)
        question = Decision.with_initial_data(description=f"Is it good?\n{review}")
        decision = suspend_flow_run(question, timeout=None, key=f"good-{attempt}")
        if decision.good == "yes":
            return review


if __name__ == "__main__":
    approve_later.serve(name="approve-later")
