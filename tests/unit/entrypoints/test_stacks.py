"""Target of a verb: a running development stack, a cluster, or the value of an option."""

from pathlib import Path

import pytest
import typer

from agentmemory_operator.adapters.folder.running_stacks import RunningStack
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, find_jobs_location
from agentmemory_operator.entrypoints.cli.stacks import Stacks
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import DEFAULT_API_URL


def stack(port: int, folder: Path = Path("/stack")) -> RunningStack:
    url = f"http://127.0.0.1:{port}"
    return RunningStack(api=url, qdrant="http://127.0.0.1:7", manifests=folder, data=folder, pid=1)


HERE, OTHER = stack(8080), stack(9000, Path("/other"))


def stacks(*running: RunningStack, has_cluster: bool = False, means_cluster: bool = False) -> Stacks:
    return Stacks(lambda: running, has_cluster, means_cluster)


@pytest.mark.parametrize(
    ("running", "url", "context", "expected"),
    [
        ((), None, None, (DEFAULT_API_URL, None)),
        ((), None, "prod", (DEFAULT_API_URL, None)),
        ((OTHER,), None, None, (OTHER.api, OTHER)),
        ((HERE,), None, None, (HERE.api, HERE)),
        ((OTHER,), None, "prod", (DEFAULT_API_URL, None)),
        ((HERE,), "http://api", None, ("http://api", None)),
        ((HERE, OTHER), OTHER.api + "/", None, (OTHER.api + "/", OTHER)),
        ((HERE, OTHER), OTHER.api, "prod", (OTHER.api, None)),
    ],
)
def test_api_is_the_named_one_or_that_of_the_stack(
    running: tuple[RunningStack, ...], url: str | None, context: str | None, expected: tuple[str, RunningStack | None]
) -> None:
    assert stacks(*running).find_api(url, context) == expected


def test_one_of_several_stacks_must_be_named() -> None:
    with pytest.raises(AgentMemoryError, match=r"name one with --url: .*8080.*; .*9000"):
        stacks(HERE, OTHER).find_api(None, None)


@pytest.mark.parametrize(("context", "means_cluster"), [("prod", False), (None, True)])
def test_stack_is_never_used_as_the_api_of_a_cluster(context: str | None, means_cluster: bool) -> None:
    with pytest.raises(AgentMemoryError, match=r"8080 is the development stack .* not a cluster's API"):
        stacks(HERE, means_cluster=means_cluster).find_api(None, context)


def test_stack_is_reported_beside_a_kubeconfig(capsys: pytest.CaptureFixture[str]) -> None:
    assert stacks(HERE, has_cluster=True).find_default("") == HERE
    assert stacks(HERE).find_default("") == HERE

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        "agentmemory: asking the development stack on /stack (http://127.0.0.1:8080, process 1);"
        " --context names a cluster\n"
    )


def test_stack_is_used_by_default() -> None:
    target = find_jobs_location(stacks(HERE), "team", None, None)

    assert (target.manifests, target.qdrant, target.options) == (HERE.manifests, HERE.qdrant, " -n team")


@pytest.mark.parametrize(
    ("running", "means_cluster", "context"), [((), False, None), ((HERE,), True, None), ((HERE,), False, "prod")]
)
def test_cluster_is_used_without_a_stack(
    running: tuple[RunningStack, ...], means_cluster: bool, context: str | None
) -> None:
    assert find_jobs_location(stacks(*running, means_cluster=means_cluster), None, context, None) == JobsLocation(
        None, context, None
    )


def test_named_folder_uses_the_qdrant_of_its_stack() -> None:
    both = stacks(HERE, OTHER)

    assert find_jobs_location(both, None, None, OTHER.manifests).qdrant == OTHER.qdrant
    assert find_jobs_location(both, None, None, Path("/third")).qdrant is None
    assert find_jobs_location(both, None, None, OTHER.manifests).options == " --manifests /other"


def test_folder_of_several_stacks_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        find_jobs_location(stacks(HERE, OTHER), None, None, None)

    assert "name one's folder with --manifests" in capsys.readouterr().err
