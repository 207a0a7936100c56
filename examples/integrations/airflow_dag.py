"""A DAG of Airflow with a coding agent. An error of the agent fails the task with its message."""

from airflow.sdk import dag, task

import corral


@dag(schedule=None, params={"folder": "."})
def agent_review():
    @task(retries=1)
    def review(params: dict) -> str:
        prompt = "Which number is in number.txt?"
        result = corral.run_sync(prompt=prompt, cwd=params["folder"], policy="reads")
        return result.raise_for_status().text

    review()


agent_review()
