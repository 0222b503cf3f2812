"""The installed `gptf`, as a user runs it: files in, files and numbers out, one line for each mistake."""

import ast
import csv
import json
import os
import pickle
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

import gptf_gpytorch
from gptf_gpytorch.cli import main
from gptf_gpytorch.serving import averages
from gptf_gpytorch.wording import as_flag

GPTF = [str(Path(sys.executable).with_name("gptf"))]
QUICK = ["--method", "paper", "--rank", "2", "--inducing", "20", "--max-iterations", "15", "--validation", "0"]


class Bomb:
    """What runs a command when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def gptf(*arguments: object, code: int = 0, **options: object) -> subprocess.CompletedProcess:
    done = subprocess.run([*GPTF, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[list], header: str = "user,item,day,value") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ratings and clicks in csv, with ids that need quotes and are not ASCII."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    users, items, days = [f"Zoë, {n}" for n in range(15)], [f"i{n}" for n in range(12)], list(range(101, 109))
    a, b, c = (rng.normal(size=len(ids)) for ids in (users, items, days))
    cells = rng.permutation(len(users) * len(items) * len(days))[:900]
    ratings, clicks = [], []
    for cell in cells:
        u, i, d = np.unravel_index(cell, (len(users), len(items), len(days)))
        f = np.sin(2 * a[u]) * b[i] + c[d]
        ratings.append([users[u], items[i], days[d], f"{50 + 10 * f + rng.normal():.6f}"])
        clicks.append([users[u], items[i], days[d], int(f + 0.3 * rng.normal() > 0)])
    for name, rows in (("ratings", ratings), ("clicks", clicks)):
        write(folder / f"{name}.csv", rows[:800])
        write(folder / f"{name}-test.csv", rows[800:])
    return folder


@pytest.fixture(scope="module")
def runs(data: Path) -> Path:
    folder = data / "runs"
    gptf("train", data / "ratings.csv", *QUICK, "--output", folder / "ratings", "--quiet")
    gptf("train", data / "clicks.csv", *QUICK, "--likelihood", "probit", "--output", folder / "clicks", "--quiet")
    return folder


def test_evaluate_says_how_good_a_model_is(data: Path, runs: Path) -> None:
    found = json.loads(gptf("evaluate", runs / "ratings", data / "ratings-test.csv", "--json").stdout)
    assert set(found) == {"rmse", "mse", "mae", "nlpd"}
    values = [float(row["value"]) for row in rows_of(data / "ratings-test.csv")]
    assert found["rmse"] < 0.6 * np.std(values)
    found = json.loads(gptf("evaluate", runs / "clicks", data / "clicks-test.csv", "--json").stdout)
    assert set(found) == {"auc", "average_precision", "log_loss", "ece", "nlpd"}
    assert found["auc"] > 0.8
    assert "rmse" in gptf("evaluate", runs / "ratings", data / "ratings-test.csv").stdout


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_come_in_the_users_ids_and_columns(data: Path, runs: Path, tmp_path: Path, suffix: str) -> None:
    import pandas

    target = tmp_path / f"out{suffix}"
    gptf("predict", runs / "clicks", data / "clicks-test.csv", "--output", target)
    found = pandas.read_csv(target) if suffix == ".csv" else pandas.read_parquet(target)
    asked = pandas.read_csv(data / "clicks-test.csv")
    assert list(found.columns) == [*asked.columns, "mean", "std", "probability", "lower", "upper"]
    assert list(found["user"]) == list(asked["user"])
    assert ((found["lower"] <= found["probability"]) & (found["probability"] <= found["upper"])).all()


def test_unseen_ids_follow_the_policy(data: Path, runs: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", [["Zoë, 1", "i1", 101], ["nobody", "i1", 101]], "user,item,day")
    target = tmp_path / "out.csv"
    error = gptf("predict", runs / "ratings", new, "--output", target, code=1).stderr
    assert "nobody" in error
    assert "user" in error
    assert len(error.strip().splitlines()) == 1
    assert not target.exists()
    gptf("predict", runs / "ratings", new, "--output", target, "--unseen", "prior")
    rows = rows_of(target)
    assert float(rows[1]["std"]) > float(rows[0]["std"])
    # A new user whose few ratings are those of a known one is taken for a twin.
    ratings = [row for row in rows_of(data / "ratings.csv") if row["user"] == "Zoë, 2"]
    # That some are there twice is no reason to ask for a flag that there is not.
    few = [["nobody", row["item"], row["day"], row["value"]] for row in [*ratings, *ratings[:3]]]
    few = write(tmp_path / "few.csv", few)
    cells = [[user, f"i{n}", day] for user in ("Zoë, 2", "nobody") for n in range(12) for day in (101, 105)]
    new = write(tmp_path / "twins.csv", cells, "user,item,day")
    distances, of_the_known = [], []
    for how in (["--unseen", "prior"], ["--fold-in", few]):
        gptf("predict", runs / "ratings", new, "--output", target, *how)
        known, unknown = np.array([float(row["mean"]) for row in rows_of(target)]).reshape(2, -1)
        distances.append(np.abs(known - unknown).mean())
        of_the_known.append(known)
    assert distances[1] < 0.5 * distances[0]
    # A product's last digits depend on how many entries are predicted together.
    np.testing.assert_allclose(of_the_known[1], of_the_known[0], rtol=1e-12)


def test_recommend_ranks_and_leaves_out_what_was_seen(data: Path, runs: Path) -> None:
    given = ["--given", "user=Zoë, 3", "--given", "day=104", "--mode", "item"]
    found = json.loads(gptf("recommend", runs / "clicks", *given, "--top", "12", "--json").stdout)
    chances = [row["probability"] for row in found]
    assert len(found) == 12
    assert chances == sorted(chances, reverse=True)
    left = json.loads(
        gptf("recommend", runs / "clicks", *given, "--top", "12", "--json", "--exclude", data / "clicks.csv").stdout
    )
    seen = {row["item"] for row in rows_of(data / "clicks.csv") if (row["user"], row["day"]) == ("Zoë, 3", "104")}
    assert {row["id"] for row in left} == {row["id"] for row in found} - seen
    assert "probability" in gptf("recommend", runs / "clicks", *given).stdout
    cells = [[row["user"], row["item"], row["day"]] for row in rows_of(data / "clicks.csv")]
    seen_without_values = write(data / "seen.csv", [*cells, ["nobody", "i1", 101]], "user,item,day")
    again = gptf("recommend", runs / "clicks", *given, "--top", "12", "--json", "--exclude", seen_without_values)
    assert json.loads(again.stdout) == left


@pytest.mark.filterwarnings("default::gptf_gpytorch.ApproximationWarning")
def test_recommend_averages_over_the_modes_that_are_left_open(
    data: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = gptf("recommend", runs / "clicks", "--given", "user=Zoë, 3", "--mode", "item", "--top", "12", "--json")
    assert "Averaged over all entities of the other modes: 8 day." in done.stderr
    by_day = {}
    for day in range(101, 109):
        given = ["--given", "user=Zoë, 3", "--given", f"day={day}", "--mode", "item", "--top", "12", "--json"]
        answer = CliRunner().invoke(main, ["recommend", str(runs / "clicks"), *given])
        for row in json.loads(answer.stdout):
            by_day.setdefault(row["id"], []).append(row["probability"])
    expected = {item: np.mean(chances) for item, chances in by_day.items()}
    found = json.loads(done.stdout)
    assert [row["id"] for row in found] == sorted(expected, key=lambda item: -expected[item])
    assert [row["probability"] for row in found] == pytest.approx([expected[row["id"]] for row in found])
    assert "Note" not in done.stderr
    monkeypatch.setattr(averages, "_BUDGET", 1)
    monkeypatch.setattr(averages, "_FEWEST", 5)
    sampled = CliRunner().invoke(main, ["recommend", str(runs / "clicks"), "--given", "user=Zoë, 3", "--mode", "item"])
    assert "Note: averages are over a seeded sample of the 8 combinations" in sampled.stderr


def test_balance_may_stand_before_the_file(data: Path) -> None:
    flags = ["--likelihood", "probit", *QUICK]
    for arguments in (["--balance", data / "clicks.csv"], [data / "clicks.csv", "--balance"]):
        assert "step 10" in gptf("train", *arguments, *flags).stderr
    few = gptf("train", "--balance", "0.25", data / "clicks.csv", *flags).stderr
    many = gptf("train", "--balance", data / "clicks.csv", *flags).stderr
    counts = [int(text.split(" entries")[0].splitlines()[-1].replace(",", "")) for text in (few, many)]
    assert counts[0] < counts[1]


def test_a_configuration_file_is_overridden_by_flags(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'method = "paper"\nrank = 2\ninducing = 20\nmax_iterations = 3\nkernel = "matern52"\n'
    )
    command = ["train", data / "ratings.csv", "--config", tmp_path / "run.toml", "--rank", "1,2,1"]
    gptf(*command, "--output", tmp_path / "run", "--quiet")
    found = json.loads(gptf("inspect", tmp_path / "run", "--json").stdout)
    assert (found["kernel"], found["ranks"], found["inducing"]) == ("matern52", [1, 2, 1], 20)
    shown = gptf("inspect", ".", cwd=tmp_path / "run" / "model").stdout.splitlines()
    assert any(re.fullmatch(r"modes +15 user, 12 item, 8 day", line) for line in shown), shown
    assert any(re.fullmatch(r"bound +-?\d+\.\d{1,4}", line) for line in shown), shown


def test_every_option_that_a_message_names_is_a_flag() -> None:
    named = set()
    for path in Path(gptf_gpytorch.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "option" and path.stem != "wording":
                named |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    flags = {flag for command in main.commands.values() for param in command.params for flag in param.opts}
    assert {"unseen", "duplicates", "given"} <= named
    assert {as_flag(name) for name in named} <= flags


def test_a_mode_without_ids_is_said_to_be_counted_from_0(data: Path, tmp_path: Path) -> None:
    rows = [f"{i} {j} {(i * j) % 7}" for i in range(1, 9) for j in range(1, 8)]
    (tmp_path / "data.tns").write_text("\n".join(rows) + "\n")
    gptf("train", tmp_path / "data.tns", *QUICK, "--output", tmp_path / "run", "--quiet")
    for command in (["recommend", "--given", "mode_0=7", "--mode", "mode_1"], ["explain", "--near", "mode_1=6"]):
        done = CliRunner().invoke(main, [command[0], str(tmp_path / "run"), *command[1:], "--json"])
        assert done.exit_code == 0, done.stderr
        assert "Indices from 0 (a tns file counts from 1): mode_" in done.stderr
        assert json.loads(done.stdout)


def test_every_command_has_an_example_with_flags_that_it_has() -> None:
    for name, command in main.commands.items():
        [example] = re.findall(rf"Example: gptf {name}(.*)", command.help)
        assert set(re.findall(r"--[a-z-]+", example)) <= {flag for param in command.params for flag in param.opts}


def test_explain_and_inspect(runs: Path) -> None:
    found = json.loads(gptf("explain", runs / "ratings", "--near", "item=i3", "--top", "4", "--json").stdout)
    assert sum(found["relevance"].values()) == pytest.approx(1.0)
    assert len(found["nearest"]) == 4
    assert "%" in gptf("explain", runs / "ratings").stdout
    found = json.loads(gptf("inspect", runs / "ratings", "--json").stdout)
    assert found["modes"] == {"user": 15, "item": 12, "day": 8}
    assert found["steps"] == 15
    assert "gaussian" in gptf("inspect", runs / "ratings").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "{data}/none.csv"], 1, "must exist"),
        (["train", "{data}/ratings.csv", "--rank", "x"], 2, "one number, or one for each mode"),
        (["train", "{data}/ratings.csv", "--method", "paper", "--rank", "2,2"], 1, "rank"),
        (["train", "{data}/ratings.csv", "--inducing", "0"], 2, "inducing must be a whole number from 1 on. Got 0"),
        (["train", "{data}/ratings.csv", "--likelihood", "probit"], 1, "0 or 1"),
        (["train", "{data}/ratings.csv", "--value", "rating"], 1, "rating"),
        (["train", "{data}/ratings.csv", "--config", "{data}/bad.toml"], 2, "Did you mean inducing?"),
        (["train", "{data}/ratings.csv", "--output", "{data}/ratings.csv"], 1, "output folder must be writable"),
        (
            ["train", "{data}/ratings.csv", "--output", "{data}/runs/ratings"],
            1,
            "--resume goes on with it",
        ),
        (["train", "{data}/ratings.csv", "--output", "{data}/new", "--resume"], 1, "a checkpoint to resume from"),
        (["recommend", "{data}/runs/ratings", "--mode", "itm"], 1, "Did you mean 'item'?"),
        (
            ["recommend", "{data}/runs/ratings", "--mode", "user", "--given", "user=x"],
            1,
            "--given must be of modes other",
        ),
        (
            ["recommend", "{data}/runs/ratings", "--mode", "item", "--given", "user=1", "--given", "user=2"],
            2,
            "must name a mode once. Got user=1 and user=2.",
        ),
        (["recommend", "{data}/runs/ratings", "--mode", "item", "--by", "probability"], 1, "--by must be 'mean'"),
        (["recommend", "{data}/runs/ratings", "--mode", "item", "--top", "0"], 2, "--top"),
        (["evaluate", "{data}/runs/ratings", "{data}/strange.csv"], 1, "(or pass --unseen prior). Got 'nobody'"),
        (
            ["predict", "{data}/runs/ratings", "{data}/strange.csv", "--output", "{data}/x.csv"],
            1,
            "(or pass --unseen prior). Got 'nobody'",
        ),
        (["predict", "{data}/runs/ratings", "{data}/none.csv", "--output", "{data}/x.csv"], 1, "must exist"),
        (["predict", "{data}/runs/ratings", "{data}/strange.csv", "--output", "{data}/strange.csv"], 1, "another file"),
        (
            ["predict", "{data}/runs/ratings", "{data}/ratings-test.csv", "--output", "{data}/no/x.csv"],
            1,
            "No such file or directory",
        ),
        (["evaluate", "{data}/none", "{data}/ratings.csv"], 1, "must be a folder. Got"),
        (["inspect", "{data}/pickle"], 1, "must be a folder. Got"),
        (["train", "{data}/pickle"], 1, "format must be one of"),
        (["train", "{data}/twice.csv"], 1, "or --duplicates must say"),
        (["train", "{data}/floats.csv"], 1, "--ids string takes the text as it is, --modes leaves a column out"),
        (
            ["train", "{data}/ratings.csv", "--method", "paper", "--rank", "2,2"],
            1,
            "--rank must be one number, or one for each of the 3 modes",
        ),
        (["train", "{data}/ratings.csv", "--max-iterations", "-1"], 2, "--max-iterations must be a whole number"),
        (["train", "{data}/ratings.csv", "--config", "{data}/table.toml"], 2, "at the top, as in rank = 3"),
        (
            ["train", "{data}/ratings.csv", "--config", "{data}/output.toml"],
            2,
            "all else, as the output folder, is given",
        ),
        (["train", "{data}/ratings.csv", "--config", "{data}/zero.toml"], 2, "rank must be a whole number"),
        (["train"], 2, "Missing argument 'DATA'"),
        (["trian"], 2, "No such command 'trian'"),
        (["--loud"], 2, "No such option '--loud'"),
        (["recommend", "{data}/runs/ratings", "--mode", "item", "--given", "user"], 2, "MODE=ID"),
        (["recommend", "{data}/runs/ratings", "--mode", "item", "--given", "user=x", "--given", "day=101"], 1, "'x'"),
        (["explain", "{data}/runs/ratings", "--near", "planet=x"], 1, "planet"),
        (["inspect", "{data}"], 1, "must hold a readable manifest.json"),
        (["inspect", "{data}/ratings.csv"], 1, "must be a folder. Got"),
        (["predict", "{data}/runs/ratings", "{data}/ratings-test.csv", "--output", "{data}/x.xls"], 1, "x.xls"),
        (["predict", "{data}/runs/ratings", "{data}/ratings-test.csv", "--output", "/proc/x.csv"], 1, "/proc/x.csv"),
    ],
)
def test_a_mistake_is_one_clear_line(data: Path, runs: Path, arguments: list[str], code: int, words: str) -> None:
    (data / "bad.toml").write_text("inducng = 3\n")
    (data / "table.toml").write_text("[train]\nrank = 3\n")
    (data / "output.toml").write_text('output = "runs/a"\n')
    (data / "zero.toml").write_text("rank = 0\n")
    (data / "strange.csv").write_text("user,item,day,value\nnobody,i1,101,3\n")
    (data / "twice.csv").write_text("a,b,value\nx,y,1\nx,y,2\n")
    (data / "floats.csv").write_text("a,b,value\n1.5,y,1\n2.5,y,2\n")
    (data / "pickle").write_bytes(pickle.dumps(Bomb(str(data / "executed"))))
    done = CliRunner().invoke(main, [argument.format(data=data) for argument in arguments], prog_name="gptf")
    error = done.stderr.strip()
    assert done.exit_code == code, error
    assert words in error
    assert len(error.splitlines()) == 1
    assert error.startswith("Error: ")
    assert not (data / "executed").exists()


@pytest.mark.parametrize("first", [True, False])
def test_debug_shows_where_an_error_came_from(data: Path, first: bool) -> None:
    command = ["train", str(data / "ratings.csv"), "--value", "nothing"]
    command = [*GPTF, "--debug", *command] if first else [*GPTF, *command, "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_damaged_model_is_refused(data: Path, runs: Path, tmp_path: Path) -> None:
    for name, change in (
        ("state.safetensors", lambda c: c[:-9] + bytes([c[-9] ^ 1]) + c[-8:]),
        ("run.json", lambda c: c[:50]),
    ):
        copy = shutil.copytree(runs / "ratings" / "model", tmp_path / name)
        (copy / name).write_bytes(change((copy / name).read_bytes()))
        assert "must be what was saved" in gptf("inspect", copy, code=1).stderr


def test_in_a_pipe_progress_is_plain_lines_and_quiet_is_silent(data: Path) -> None:
    done = gptf("train", data / "ratings.csv", *QUICK)
    assert "step 10  bound " in done.stderr
    assert "\x1b" not in done.stderr
    assert done.stdout == ""
    quiet = gptf("train", data / "ratings.csv", *QUICK, "--quiet")
    assert quiet.stderr == quiet.stdout == ""


def test_on_a_terminal_there_is_a_bar_with_the_time_left(data: Path) -> None:
    terminal, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"}
    command = [*GPTF, "train", str(data / "ratings.csv"), *QUICK, "--max-iterations", "40"]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment, close_fds=True)
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536) if select.select([terminal], [], [], 60)[0] else b""
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    assert process.wait(timeout=60) == 0
    os.close(terminal)
    text = shown.decode()
    assert "step 40/40" in text
    assert "left" in text
    assert "\x1b[" in text, "a live bar moves the cursor"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_and_resumed_a_run_ends_at_the_same_bits(data: Path, tmp_path: Path, number: int, code: int) -> None:
    flags = [*QUICK, "--inducing", "30", "--tolerance", "0", "--checkpoint-seconds", "1000"]
    # So many steps that the signal comes before the last one.
    command = ["train", str(data / "clicks.csv"), "--likelihood", "probit", *flags, "--max-iterations", "150"]
    gptf(*command, "--quiet", "--output", tmp_path / "whole")
    process = subprocess.Popen(
        [*GPTF, *command, "--output", str(tmp_path / "parts")], stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line.startswith("step 10 "):
            break
    process.send_signal(number)
    asked = time.monotonic()
    _, rest = process.communicate(timeout=30)
    assert process.returncode == code, rest
    assert time.monotonic() - asked < 10
    resume = next(line for line in rest.splitlines() if re.match(r"Resume: \S*gptf ", line))
    assert resume.endswith("--resume")
    gptf(*command, "--quiet", "--output", tmp_path / "parts", "--resume")
    states = [tmp_path / part / "model" / "state.safetensors" for part in ("whole", "parts")]
    whole, parts = (safetensors.torch.load_file(state) for state in states)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
