"""The bound on real workers: the same numbers as in one process, the same bits on all and at every run, two collectives."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import HERE, Job, assert_agreement, results

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    done = subprocess.run([sys.executable, HERE / "evaluations.py"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.removeprefix("RESULT "))["found"]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, Any], Path]:
    timeline = tmp_path_factory.mktemp("timeline") / "timeline.json"
    job = Job(3, sys.executable, HERE / "evaluations.py", HOROVOD_TIMELINE=str(timeline))
    return results(job.finish()), timeline


def test_three_workers_agree_with_one_process(alone: dict[str, Any], three: tuple[dict[int, Any], Path]) -> None:
    assert len(three[0]) == 3
    assert_agreement(three[0][0]["found"], alone)


def test_the_bits_are_the_same_on_all_workers_and_in_a_second_job(three: tuple[dict[int, Any], Path]) -> None:
    again = results(Job(3, sys.executable, HERE / "evaluations.py").finish())
    for rank in range(3):
        assert three[0][rank] == three[0][0]
        assert again[rank] == three[0][0]


def test_the_timeline_shows_two_collectives_an_evaluation_and_one_a_pass(three: tuple[dict[int, Any], Path]) -> None:
    """Counted by Horovod itself. A tensor is a process of the timeline; each NEGOTIATE_ALLREDUCE begins a collective."""
    text = three[1].read_text()
    begun = len(re.findall(r'"ph": "B", "name": "NEGOTIATE_ALLREDUCE"', text))
    other = set(re.findall(r"NEGOTIATE_(\w+)", text)) - {"ALLREDUCE"}
    found = three[0][0]
    assert not other
    assert begun == 2 * found["evaluations"] + found["passes"] + 1, "and one to leave together"
