"""Corral's agents in inspect, Pydantic AI, LangGraph, Celery and Airflow, with a scripted model.

The packages are installed under ``.cache/integrations`` from ``requirements/integrations.txt``. The
programs of ``examples/integrations`` run there as they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.locked_environment import ROOT, install
from support.processes import processes_using

from corral.testing import Call, ModelServer, Script, Turn

pytestmark = [pytest.mark.deep, pytest.mark.whole_program, pytest.mark.timeout(1200)]

EXAMPLES = ROOT / "examples" / "integrations"
MODEL = "gemini:gemini-2.5-flash"
SCRIPT = Script(
    [
        Turn(
            match="number.txt",
            text="Reading.",
            calls=[Call("read_file", {"path": "number.txt"})],
            usage={"input": 1000, "output": 20, "cached": 10},
        ),
        Turn(
            match="Hang",
            calls=[Call("shell", {"command": "sleep 3600 & sleep 3600"})],
            usage={"input": 700, "output": 7},
        ),
        Turn(match="Limit", status=429, retry_after=4000, repeat="forever"),
        Turn(text="It is 42.", usage={"input": 1500, "output": 30}),
    ],
    restart="per_conversation",
)


class Programs:
    """Programs of the environment, in a folder with ``number.txt``."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.bin = install("integrations", python=">=3.12")
        self.folder = folder
        (folder / "number.txt").write_text("42")
        self.env = {
            **os.environ,
            **server.env,
            "CORRAL_AGENT": MODEL,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(EXAMPLES)]),
        }

    def run(self, program: str, *words: str, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [str(self.bin / program), *words],
            env={**self.env, **(env or {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, text: str) -> Any:
        """What a program prints as its last line of JSON."""
        return json.loads(self.run("python", "-c", text).strip().splitlines()[-1])


@pytest.fixture
def programs(workspace: Path) -> Iterator[Programs]:
    with ModelServer(SCRIPT) as server:
        yield Programs(workspace, server)


LOG = """
import json
print(json.dumps({"status": log.status, "usage": {k: v.model_dump() for k, v in
    log.stats.model_usage.items()}, "metrics": {m.name: m.value for s in log.results.scores for m in
    s.metrics.values()}, "samples": [json.loads(s.model_dump_json()) for s in log.samples]}))
"""


def test_inspect_has_the_scores_and_the_usage_of_an_agent(programs: Programs) -> None:
    shutil.copy(EXAMPLES / "inspect_eval.py", programs.folder)
    programs.run("inspect", "eval", "inspect_eval.py", "--display", "none", "--log-dir", "logs")
    read = "from inspect_ai.log import list_eval_logs, read_eval_log\n"
    log = programs.python(f"{read}log = read_eval_log(list_eval_logs('logs')[0])\n{LOG}")
    assert log["status"] == "success"
    assert log["metrics"]["accuracy"] == pytest.approx(1 / 3)
    (usage,) = log["usage"].values()
    assert [*log["usage"]] == [f"corral/{MODEL}"]
    counts = [usage[f"{name}_tokens"] for name in ("input", "output", "total")]
    assert counts == [3 * 2490, 3 * 50, 3 * 2550]
    assert usage["input_tokens_cache_read"] == 30
    assert usage["total_cost"] > 0
    for sample in log["samples"]:
        assert [each["role"] for each in sample["messages"]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert [each["event"] for each in sample["events"]].count("model") == 2
        assert sample["output"]["metadata"]["status"] == "success"
        assert sample["messages"][1]["tool_calls"][0]["function"] == "read_file"


def test_limits_and_failures_are_those_of_inspect(programs: Programs) -> None:
    """A time limit and a token limit end the agent, and the sample is scored with what it used. A
    rate limit is an error without a score."""
    log = programs.python(
        f"""
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
from corral.integrations.inspect_ai import corral_agent
talk = [ChatMessageUser(content="a"), ChatMessageAssistant(content="b")]
texts = ("Hang", "Limit", "Read number.txt")
samples = [Sample(id=text, input=text, target="42") for text in texts]
samples.append(Sample(id="talk", input=talk, target="42"))
agent = corral_agent("{MODEL}", policy="all", sandbox="require")
task = Task(dataset=samples, solver=agent, scorer=includes(), sandbox="local", time_limit=15)
log = eval(task, display="none", fail_on_error=False, token_limit=900)[0]
{LOG}"""
    )
    samples = {each["id"]: each for each in log["samples"]}
    hang = samples["Hang"]
    assert hang["limit"]["type"] == "time"
    assert hang["scores"]["includes"]["value"] == "I"
    assert hang["model_usage"][f"corral/{MODEL}"]["total_tokens"] == 707
    assert hang["output"]["metadata"]["status"] == "interrupted"
    assert "Resource exhausted" in samples["Limit"]["error"]["message"]
    assert not samples["Limit"]["scores"]
    assert samples["Read number.txt"]["limit"]["type"] == "token"
    assert samples["Read number.txt"]["model_usage"][f"corral/{MODEL}"]["total_tokens"] >= 1020
    assert "starts a conversation" in samples["talk"]["error"]["message"]
    assert processes_using(Path(programs.env["CORRAL_HOME"])) == {}


def test_pydantic_ai_calls_an_agent_as_a_tool(programs: Programs) -> None:
    answer = programs.python("""
import json
from pydantic_ai.models.test import TestModel
from pydantic_ai_tool import agent
print(json.dumps(agent.run_sync("Go", model=TestModel()).output))
""")
    assert "It is 42." in answer


def test_an_agent_is_a_node_of_langgraph(programs: Programs) -> None:
    state = programs.python("""
import asyncio, json
from langgraph_node import app
print(json.dumps(asyncio.run(app.ainvoke({"task": "Which number is in number.txt?"}))))
""")
    assert state["answer"].endswith("It is 42.")
    assert state["session"]


def test_a_worker_of_celery_runs_an_agent(programs: Programs) -> None:
    queue = programs.folder.parent / "queue"
    (queue / "results").mkdir(parents=True)
    settings = f"""
broker_url = "filesystem://"
broker_transport_options = {{"data_folder_in": "{queue}", "data_folder_out": "{queue}",
    "control_folder": "{queue}/control"}}
result_backend = "file://{queue}/results"
"""
    (programs.folder / "celeryconfig.py").write_text(settings)
    path = os.pathsep.join([programs.env["PYTHONPATH"], str(programs.folder)])
    env = {**programs.env, "PYTHONPATH": path, "CELERY_CONFIG_MODULE": "celeryconfig"}
    command = [str(programs.bin / "celery"), "--app", "celery_task", "--config", "celeryconfig"]
    worker = subprocess.Popen(
        [*command, "worker", "-P", "prefork", "-c", "1", "--without-mingle", "--without-gossip"],
        env=env,
        cwd=programs.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        program = (
            "import json\nfrom celery_task import app, run_agent\n"
            "app.config_from_object('celeryconfig')\n"
            "sent = run_agent.delay('Which number is in number.txt?', '.')\n"
            "print(json.dumps(sent.get(timeout=240)))"
        )
        programs.env = env
        assert programs.python(program)["text"].endswith("It is 42.")
    finally:
        worker.terminate()
        worker.wait(60)


def test_a_task_of_airflow_runs_an_agent(programs: Programs, tmp_path: Path) -> None:
    programs.env |= {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    programs.run("airflow", "db", "migrate")
    done = programs.run("airflow", "dags", "test", "agent_review")
    assert "It is 42." in done
