"""A comparison as a job folder of harbor: ``DIR/NAME/TRIAL/result.json``, and what is beside it.

The shape is that of harbor 0.25, so that its viewer and programs that read its jobs read ours:
``config.json`` and ``result.json`` of the job, and in a folder for each attempt ``config.json``,
``result.json``, ``verifier/reward.txt``, ``verifier/test-stdout.txt``, ``agent/answer.md``,
``agent/trajectory.json`` (ATIF) and ``artifacts/changes.patch``. A missing attempt has an
``exception_info`` and no reward, as harbor writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import msgspec

from corral._comparison import store
from corral._comparison.plan import ComparisonPlan, PlannedTask, load_plan
from corral._comparison.summary import AttemptRow, summarize
from corral._pipelines.attempts import ANSWER, PATCH, VERIFIER_LOG
from corral._system import fs
from corral._system.git.worktree import name_part
from corral.errors import ConfigError, ResumeLost, StorageFailed
from corral.values import Json, JsonObject

REWARD = "reward"
EXCEPTIONS = {
    "rate_limit": "ApiRateLimitError",
    "quota_spent": "ApiUsageLimitError",
    "network": "NetworkConnectionError",
    "server": "ApiInternalServerError",
    "authentication": "AgentAuthenticationError",
    "model_not_found": "ModelNotFoundError",
    "idle_timeout": "ApiResponseStalledError",
    "startup_timeout": "AgentSetupTimeoutError",
    "verifier": "RewardFileNotFoundError",
}
"""Codes of missing attempts -> the names that harbor has for them."""
TIMED_OUT = "AgentTimeoutError"
ENVIRONMENT: JsonObject = {"import_path": "corral:compare"}
"""Where the attempts ran: without one, harbor reads ``docker``."""


def write(name: str, output: Path) -> Path:
    """Write the folder of the job below ``output``; returns it. A job of the same name is replaced.
    Attempts that have not ended are left out. Raises ``ConfigError`` and ``StorageFailed``."""
    plan = load_plan(store.find(name))
    summary = summarize(plan, store.results(plan.name))
    rows = [row for row in summary.attempts if row.verdict != "pending"]
    job = output / plan.name
    try:
        fs.make_folder(job)
        for row in rows:
            _write_trial(plan, row, job)
        agents: list[Json] = [
            {"name": agent.backend, "model_name": agent.model or None} for agent in plan.agents
        ]
        config: JsonObject = {
            "job_name": plan.name,
            "jobs_dir": str(output),
            "n_attempts": plan.repeat,
            "n_concurrent_trials": plan.concurrency,
            "agents": agents,
            "environment": ENVIRONMENT,
        }
        _write_json(job / "config.json", config)
        _write_json(job / "result.json", _job_result(plan, rows))
    except OSError as error:
        raise StorageFailed(f"{job} cannot be written: {error}") from error
    return job


def _write_trial(plan: ComparisonPlan, row: AttemptRow, job: Path) -> None:
    folder = job / _trial_name(row)
    fs.remove_tree(folder)
    for name in ("agent", "verifier", "artifacts"):
        fs.make_folder(folder / name)
    task = next(task for task in plan.tasks if task.id == row.task)
    choice = next(agent for agent in plan.agents if agent.name == row.agent)
    config: JsonObject = {
        "task": {"path": f"{task.folder}/{row.task}"},
        "trial_name": folder.name,
        "trials_dir": str(job),
        "agent": {"name": choice.backend, "model_name": row.model or choice.model or None},
        "environment": ENVIRONMENT,
        "job_id": _id(plan.name),
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "result.json", _trial_result(plan, row, task, config, folder))
    if (reward := _reward(row)) is not None:
        fs.write_atomically(folder / "verifier" / "reward.txt", b"%g\n" % reward, mode=0o666)
    for source, target in (
        (ANSWER, "agent/answer.md"),
        (VERIFIER_LOG, "verifier/test-stdout.txt"),
        (PATCH, "artifacts/changes.patch"),
    ):
        with suppress(FileNotFoundError):
            data = fs.read_bytes(Path(row.folder, source))
            fs.write_atomically(folder / target, data, mode=0o666)
    if row.session:
        from corral._export import atif
        from corral._runs import stored_run
        from corral._sessions.store import find as find_session

        with suppress(ResumeLost, ConfigError):  # it was removed, or the agent never started
            stored = stored_run.of_session(find_session(row.session))
            with (folder / "agent" / "trajectory.json").open("wb") as output:
                atif.write(stored.events(), output.write, session_id=stored.id)


def _trial_name(row: AttemptRow) -> str:
    return f"{name_part(row.task)[:32]}__{name_part(row.agent)[:32]}__{row.repeat}"


def _reward(row: AttemptRow) -> float | None:
    if row.verdict == "missing":
        return None
    return float(row.verdict == "passed")


def _trial_result(
    plan: ComparisonPlan, row: AttemptRow, task: PlannedTask, config: JsonObject, folder: Path
) -> JsonObject:
    ended = row.started + (row.seconds or 0.0)
    verified = ended + row.verifier_seconds
    model: JsonObject | None = {"name": row.model, "provider": None} if row.model else None
    reward = _reward(row)
    return {
        "id": _id(f"{plan.name}/{row.id}"),
        "task_name": row.task,
        "trial_name": folder.name,
        "trial_uri": folder.absolute().as_uri(),
        "task_id": config["task"],
        "source": None,
        "task_checksum": task.verifier.digest or task.commit,
        "config": config,
        "agent_info": {
            "name": row.agent,
            "version": row.agent_version or "unknown",
            "model_info": model,
        },
        "agent_result": {
            "n_input_tokens": row.usage.input,
            "n_cache_tokens": row.usage.cache_read,
            "n_output_tokens": row.usage.output,
            "cost_usd": row.cost_usd,
            "metadata": {"status": row.status, "session": row.session, "commit": row.commit},
        },
        "verifier_result": None if reward is None else {"rewards": {REWARD: reward}},
        "exception_info": _exception(row, verified),
        "started_at": _time(row.started),
        "finished_at": _time(verified),
        "agent_execution": {"started_at": _time(row.started), "finished_at": _time(ended)},
        "verifier": {"started_at": _time(ended), "finished_at": _time(verified)},
    }


def _exception(row: AttemptRow, moment: float) -> JsonObject | None:
    kind = TIMED_OUT if row.status == "timeout" else None
    if row.verdict == "missing":
        kind = EXCEPTIONS.get(row.code, row.code or "error")
    if kind is None:
        return None
    return {
        "exception_type": kind,
        "exception_message": row.reason,
        "exception_traceback": "",
        "occurred_at": _time(moment),
    }


def _job_result(plan: ComparisonPlan, rows: Sequence[AttemptRow]) -> JsonObject:
    ends = [row.started + (row.seconds or 0.0) + row.verifier_seconds for row in rows]
    ended = _time(max(ends, default=plan.created))
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    groups: dict[str, list[AttemptRow]] = {}
    for row in rows:
        key = "__".join(filter(None, (row.agent, row.model, "adhoc")))
        groups.setdefault(key, []).append(row)
    return {
        "id": _id(plan.name),
        "started_at": _time(plan.created),
        "updated_at": ended,
        "finished_at": ended if len(rows) == plan.total else None,
        "n_total_trials": plan.total,
        "stats": {
            "n_completed_trials": len(rows),
            "n_errored_trials": sum(_exception(row, 0.0) is not None for row in rows),
            "n_pending_trials": plan.total - len(rows),
            "n_retries": sum(row.tries - 1 for row in rows),
            # Harbor's keys: the agent, the model, and that the tasks are of no dataset.
            "evals": {key: _eval(group) for key, group in groups.items()},
            "n_input_tokens": _sum(row.usage.input for row in rows),
            "n_cache_tokens": _sum(row.usage.cache_read for row in rows),
            "n_output_tokens": _sum(row.usage.output for row in rows),
            "cost_usd": sum(costs) if costs else None,
        },
    }


def _eval(rows: Sequence[AttemptRow]) -> JsonObject:
    rewards: dict[str, list[str]] = {}
    exceptions: dict[str, list[str]] = {}
    values: list[float] = []
    for row in rows:
        if (reward := _reward(row)) is not None:
            values.append(reward)
            rewards.setdefault(f"{reward:g}", []).append(_trial_name(row))
        if (error := _exception(row, 0.0)) is not None:
            exceptions.setdefault(str(error["exception_type"]), []).append(_trial_name(row))
    metrics: list[Json] = [{"mean": sum(values) / len(values)}] if values else []
    return {
        "n_trials": len(values),
        "n_errors": sum(map(len, exceptions.values())),
        "metrics": metrics,
        "reward_stats": {REWARD: {key: [*trials] for key, trials in rewards.items()}},
        "exception_stats": {key: [*trials] for key, trials in exceptions.items()},
    }


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _id(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"corral:{name}"))


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def _write_json(path: Path, value: JsonObject) -> None:
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    fs.write_atomically(path, data + b"\n", mode=0o666)
