"""The configuration: the same names everywhere, and no value that makes no sense."""

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import pytest
from small_tensor import make_entries

from gptf_gpytorch import CheckpointError, InputError, fit
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.state import check_same, describe


def test_toml_keywords_and_json_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'method = "paper"\nlikelihood = "probit"\nrank = [2, 3, 4]\nmax_seconds = 60\nvalidation = 0.1\npatience = 5\n'
    )
    expected = TrainConfig(
        method="paper", likelihood="probit", rank=(2, 3, 4), max_seconds=60.0, validation=0.1, patience=5
    )
    assert TrainConfig.read(path) == expected
    assert TrainConfig.from_dict(json.loads(json.dumps(expected.to_dict()))) == expected
    assert TrainConfig.from_dict(json.loads(json.dumps(TrainConfig().to_dict()))) == TrainConfig()
    assert TrainConfig.read(path, rank=7).rank == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inducin": 5}, "Got 'inducin'. Did you mean inducing?"),
        (
            {"output": "runs/a"},
            "Got 'output'. Known are method, likelihood, .*, keep; all else, as the output folder, is given beside",
        ),
        ({"max-iterations": 5}, "Did you mean max_iterations?"),
        ({"likelihood": "poisson"}, "likelihood must be one of gaussian, probit. Got 'poisson'"),
        ({"rank": 0}, "rank must be a whole number from 1 to 1000. Got 0"),
        ({"rank": []}, "rank must be one number, or one for each mode. Got none"),
        ({"rank": [2, 1.5]}, "rank must be a whole number from 1 to 1000. Got 1.5"),
        ({"inducing": True}, "inducing must be a whole number"),
        ({"occurrences": 1}, "occurrences must be true or false. Got 1"),
        ({"validation": 1.5}, r"validation must be a number in \[0, 0.9\]. Got 1.5"),
        ({"tolerance": float("nan")}, "tolerance must be a number"),
        ({"max_seconds": "1h"}, "max_seconds must be a number"),
        ({"standardize": 1}, "standardize must be true or false. Got 1"),
    ],
)
def test_a_bad_value_is_an_error_that_states_the_rule(values: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig.of(values)


def test_an_unknown_keyword_is_an_error_that_names_the_nearest_field() -> None:
    with pytest.raises(
        InputError, match=r"TrainConfig\(\) may hold only known keys. Got 'inducin'. Did you mean inducing\?"
    ):
        TrainConfig(inducin=5)
    config = TrainConfig(inducing=5)
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == dataclasses.replace(config) == config


@pytest.mark.parametrize(
    ("content", "message"), [(b"rank = ", "must be TOML"), (b"\xff\xfe", "must be TOML"), (b"rnk = 3", "mean rank")]
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        TrainConfig.read(path)
    assert "run.toml" in str(caught.value)
    with pytest.raises(InputError, match=r"must be a readable file"):
        TrainConfig.read(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 500}, "batch is for optimizer adam with draws of at least 1. Got lbfgs with 0"),
        ({"warmup": 0.5, "draws": 1}, "warmup is for optimizer adam with draws of at least 1. Got lbfgs with 1"),
        (
            {"batch": 50, "inducing": 60, "draws": 1, "optimizer": "adam"},
            "batch must be 0 or at least inducing, 60. Got 50",
        ),
        ({"forget": 0.1, "draws": 1, "optimizer": "adam"}, "forget must be 1 without batch. Got 0.1"),
        ({"start_steps": 9, "draws": 1, "optimizer": "adam"}, "start_steps must be 0 without batch. Got 9"),
    ],
)
def test_options_that_need_others_are_looked_at_when_a_run_begins(values: dict, message: str, tmp_path: Path) -> None:
    values = {"method": "paper", **values}
    (tmp_path / "run.toml").write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items()))
    config = TrainConfig.read(tmp_path / "run.toml")  # flags may bring what it needs
    with pytest.raises(InputError, match=message):
        fit(make_entries(), config)
    TrainConfig.read(tmp_path / "run.toml", optimizer="adam", draws=1, inducing=20, batch=500).check()


def test_a_checkpoint_of_before_an_option_goes_on_with_its_default() -> None:
    now = describe(TrainConfig(method="paper", rank=2), (3, 4), "digest")
    before = {**now, "config": {name: value for name, value in now["config"].items() if name != "occurrences"}}
    check_same(before, now)
    with pytest.raises(CheckpointError, match=r"occurrences must be what the run began with: False\. Got True"):
        check_same(before, describe(TrainConfig(method="paper", rank=2, occurrences=True), (3, 4), "digest"))
