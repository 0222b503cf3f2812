"""A journal holds what was said, whole lines only, and how far somebody has heard it."""

from pathlib import Path

from gptf_gpytorch.tracking.journal import Journal


def test_lines_come_back_in_order_from_any_of_their_ends(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    for step in range(3):
        journal.append("metrics", step=step, values={"bound": -1.5})
    found = list(journal.records())
    assert [record["step"] for record, _ in found] == [0, 1, 2]
    assert [record["step"] for record, _ in journal.records(found[0][1])] == [1, 2]


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    journal.append("metrics", step=1, values={})
    path = journal.folder / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "metr')
    assert journal.waiting == 1
    journal.append("metrics", step=2, values={})
    assert [record["step"] for record, _ in journal.records()] == [1, 2]


def test_what_was_sent_is_remembered(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    journal.append("begin")
    journal.append("end")
    assert journal.waiting == 2
    (_, end), _ = journal.records()
    journal.remember({**journal.sent, "start": end, "run_id": "abc"})
    assert (journal.waiting, journal.sent["run_id"]) == (1, "abc")


def test_the_journals_of_a_folder_are_found(tmp_path: Path) -> None:
    assert Journal.all(tmp_path) == []
    Journal.new(tmp_path).append("begin")
    (found,) = Journal.all(tmp_path)
    assert found.waiting == 1


def test_a_journal_is_for_its_owner_alone(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    journal.append("begin", uri="https://me:password@mlflow.example.com")
    assert journal.folder.stat().st_mode & 0o777 == 0o700


def test_whoever_opened_the_run_last_ends_it(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    for kind, run_id in (("begin", "abc"), ("again", None), ("again", "abc")):
        journal.append(kind, run_id=run_id)
        journal.append("end")
        assert journal.lent == bool(run_id)
