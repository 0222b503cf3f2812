"""Jobs across two hosts: the same answer as one process, and an end in time when the cable between them is cut."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hosts import INTERFACE, Host, missing, two_hosts
from jobs import GPTF, HERE, Job, assert_agreement, errors, results

from gptf_gpytorch import fit, read
from gptf_gpytorch.training.saved import FittedModel

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
pytestmark = pytest.mark.timeout(300)
# Its cache, in the home of the user, would remember from another time which hosts can be reached.
ACROSS = ["--disable-cache", "-H", "host1:1,host2:1"]
SMALL = ["--method", "paper", "--inducing", 10, "--rank", 2]
ENDLESS = [*SMALL, "--max-iterations", 10**6, "--tolerance", 0, "--gradient-tolerance", 0]
ENDLESS += ["--validation", 0]


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    reason = missing()
    if reason is not None:
        pytest.skip(f"No hosts to test with. {reason}")
    with two_hosts() as found:
        yield found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    cells = torch.cartesian_prod(torch.arange(9), torch.arange(8), torch.arange(5)).tolist()
    rows = [f"u{a},{b},{c},{(a * b % 7 - c + (3 * a + 5 * b + c) % 11 / 9):.6f}" for a, b, c in cells]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,item,day,value", *rows]) + "\n")
    return tmp_path / "ratings.csv"


def test_two_hosts_agree_with_one_process(hosts: tuple[Host, Host]) -> None:
    script = [sys.executable, HERE / "evaluations.py"]
    found = results(Job(2, *ACROSS, *script, inside=hosts[0].inside).finish(seconds=200))
    alone = subprocess.run(script, capture_output=True, text=True, check=True, timeout=120)
    assert found[0] == found[1]
    assert_agreement(found[0]["found"], json.loads(alone.stdout.removeprefix("RESULT "))["found"])


def test_two_hosts_train_as_one_process_does(hosts: tuple[Host, Host], data: Path, tmp_path: Path) -> None:
    two = tmp_path / "two"
    alone = fit(read(data), method="paper", max_iterations=12, inducing=10, rank=2)
    command = [GPTF, "train", data, *SMALL, "--max-iterations", 12, "--output", two]
    text = Job(2, *ACROSS, "--network-interfaces", INTERFACE, *command, inside=hosts[0].inside).finish(seconds=200)
    assert ", 2 workers" in text
    expected, found = ([step.bound for step in each.history.steps] for each in (alone, FittedModel.load(two)))
    assert len(found) == len(expected) == 12
    assert found == pytest.approx(expected, rel=1e-10)


def test_a_cut_cable_ends_the_job_on_both(hosts: tuple[Host, Host], data: Path) -> None:
    first, second = hosts
    command = [GPTF, "train", data, *ENDLESS]
    job = Job(2, *ACROSS, "--network-interfaces", INTERFACE, *command, inside=first.inside)
    job.wait_for("step 10 ", seconds=200)
    assert job.worker(0) in first.processes()
    assert job.worker(1) in second.processes()
    second.run("ip", "link", "set", INTERFACE, "down")
    cut = time.monotonic()
    text = job.finish(code=1, seconds=20, patience=10)
    while (left := {**first.processes(), **second.processes()}) and time.monotonic() < cut + 20:
        time.sleep(0.05)
    assert not left, text
    assert time.monotonic() - cut < 20, text
    # On a machine that is too busy for horovodrun to answer worker 0 in time, the line names worker 0.
    verdict = r"worker 1 \(process \d+ on host2\) does not answer|does not answer worker 0 \(process \d+ on host1\)"
    assert re.search(verdict, errors(text)[0]), text


def elastic(hosts: tuple[Host, Host], data: Path, *options: object) -> Job:
    """A job on both that goes on without one of them. It is ssh that tells horovodrun of a cut cable."""
    hosts[0].run("sh", "-c", "printf 'ServerAliveInterval 2\\nServerAliveCountMax 3\\n' >> /etc/ssh/ssh_config")
    script = data.with_name("discover.sh")
    script.write_text("#!/bin/sh\necho host1:1\necho host2:1\n")
    script.chmod(0o755)
    flags = ["--min-np", 1, "--max-np", 2, "--network-interfaces", INTERFACE, "--host-discovery-script", script]
    command = [GPTF, "train", data, *ENDLESS, "--elastic", *options, "--output", data.with_name("run")]
    job = Job(2, *flags, *command, inside=hosts[0].inside)
    job.wait_for("step 10 ", seconds=200)
    return job


def test_a_stopped_worker_that_is_alone_on_its_host_is_removed(hosts: tuple[Host, Host], data: Path) -> None:
    job = elastic(hosts, data, "--timeout", 15)  # long enough to start on a busy machine
    stopped = job.worker_on("host2")
    assert stopped in hosts[1].processes()
    os.kill(stopped, signal.SIGSTOP)
    job.wait_for("Workers that go on: 1;", seconds=60)
    began = time.monotonic()
    while (left := hosts[1].processes()) and time.monotonic() < began + 5.0:
        time.sleep(0.05)
    text = job.end()
    assert not left, text
    assert re.search(r"Note: .* worker \d \(process \d+ on host2\) does not answer: .* The others go on\.", text), text


def test_a_cut_cable_leaves_an_elastic_job_to_the_host_that_it_was_started_on(
    hosts: tuple[Host, Host], data: Path
) -> None:
    job = elastic(hosts, data)
    hosts[1].run("ip", "link", "set", INTERFACE, "down")
    cut = time.monotonic()
    job.wait_for("Workers that go on: 1;", seconds=20)
    while (left := hosts[1].processes()) and time.monotonic() < cut + 20:
        time.sleep(0.05)
    text = job.end()
    assert not left, text


def test_what_hosts_need_and_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hosts.PATH", str(tmp_path))
    assert re.search("only root|ip was not found, .* Debian's package: iproute2", missing() or "")
