"""A job that was asked for by somebody who died in the middle of asking is asked for again."""

from __future__ import annotations

from corral.durable.agent_host import client
from corral.durable.agent_host.client import HostFiles, Job
from corral.durable.payloads import RunConfig, RunInput
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import RunNode


def test_a_folder_without_its_job_is_no_job() -> None:
    place = HostFiles.for_run("half")
    name = client.job_name("t.1", 1)
    begun = RunInput(
        run_id="half",
        graph=Graph(name="g"),
        config=RunConfig(folder="/f", workspace="/w"),
        queue="p",
    )
    place.job(name).mkdir(parents=True)
    place.requests.mkdir()
    job = Job(visit=RunNode(id="t.1", node="t", number=1, context={}), attempt=1)
    try:
        place.submit(begun, name, job)
        assert (place.job(name) / "job.json").exists()
    finally:
        client.close("half", cancel=True)
