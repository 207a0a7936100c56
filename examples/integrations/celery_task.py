"""A task of Celery that runs a coding agent. Only what may succeed later is tried again.

celery --app celery_task worker
"""

from celery import Celery, Task

import corral

app = Celery("celery_task")


@app.task(bind=True, max_retries=3)
def run_agent(task: Task, prompt: str, folder: str) -> dict[str, object]:
    result = corral.run_sync(prompt=prompt, cwd=folder, policy="edits", timeout="10m")
    if result.error is not None and result.error.retryable:
        raise task.retry(exc=RuntimeError(result.error.message), countdown=60)
    result.raise_for_status()
    return {"text": result.text, "files": [file.path for file in result.files]}
