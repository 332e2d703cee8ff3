"""The commit, the changes and the untracked files of a checkout are recorded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sfactory.experiment import provenance
from sfactory.experiment.provenance import MOST_DIFF_BYTES, WorkingTree
from sfactory.experiment.run_dir import RunDir
from tests.support.files import write_files
from tests.support.trainer import within

NOTHING = {"git_commit": None, "git_dirty": None, "git_untracked": None}


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one commit, which is the current directory. On a busy machine git may take long."""
    monkeypatch.setattr(provenance, "_TIMEOUT_S", within(2.0))
    root = write_files(tmp_path / "checkout", {"a.py": "x = 1\n", "sub/b.py": "y = 1\n", ".gitignore": "*.log\n"})
    monkeypatch.chdir(root)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return root


def look(leave_out: Path | str = "train_dir") -> WorkingTree:
    return WorkingTree.of_current_directory(leave_out=Path(leave_out))


def test_a_clean_checkout_has_only_a_commit(checkout: Path) -> None:
    os.utime(checkout / "a.py", (1, 1))  # touched, not changed

    tree = look()

    assert tree == WorkingTree(git("rev-parse", "HEAD"), b"", ())
    assert tree.facts == {"git_commit": tree.commit, "git_dirty": False, "git_untracked": []}


def test_changes_of_the_whole_checkout_are_seen_from_any_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "a.py").write_text("x = 2\n")
    git("add", "a.py")
    (checkout / "sub" / "b.py").write_text("y = 2\n")
    (checkout / "new.py").write_text("")
    monkeypatch.chdir(checkout / "sub")

    tree = look()

    assert tree.diff is not None
    lines = [line for line in tree.diff.decode().splitlines() if line[:2] in ("+x", "-x", "+y", "-y")]
    assert lines == ["-x = 1", "+x = 2", "-y = 1", "+y = 2"]
    assert tree.untracked == ("new.py",)
    assert tree.facts["git_dirty"] is True


def test_untracked_files_are_listed_without_ignored_ones_and_those_of_runs(checkout: Path) -> None:
    write_files(checkout, {"note.txt": "", "x.log": "", "sub/deep/é.py": "", "train_dir/run/config.json": "{}"})

    for place in ("train_dir", checkout / "train_dir"):
        assert look(place).untracked == ("note.txt", "sub/deep/é.py")
    for place in ("/elsewhere", checkout):
        assert look(place).untracked == ("note.txt", "sub/deep/é.py", "train_dir/run/config.json")
    assert look().facts["git_dirty"] is False

    write_files(checkout, {f"{'long' * 20}/{number:04d}": "" for number in range(1000)})

    untracked = look().untracked
    assert untracked is not None
    assert [name[-4:] for name in untracked] == [f"{number:04d}" for number in range(100)]


def test_each_uncommitted_change_is_kept_once_for_all_sessions(checkout: Path) -> None:
    train_dir = checkout / "train_dir"
    for text in ("x = 2\n", "x = 2\n", "x = 3\n", "x = 1\n", "x = 3\n"):
        (checkout / "a.py").write_text(text)
        with RunDir.open(train_dir, "exp") as run:
            run.write_run_json("running", argv=[], seed=1)
            run.write_run_json("done", argv=[], seed=1)

    records = json.loads(run.run_json.read_text())["sessions"]
    third = f"git_{records[2]['id']}.diff"
    assert [record["git_diff"] for record in records] == ["git.diff", "git.diff", third, None, third]
    assert [record["git_dirty"] for record in records] == [True, True, True, False, True]
    assert all(record["git_untracked"] == [] for record in records)
    assert b"+x = 3\n" in (train_dir / "exp" / third).read_bytes()
    assert len(list((train_dir / "exp").glob("*.diff"))) == 2
    (checkout / "a.py").write_text("x = 1\n")
    git("apply", f"{train_dir}/exp/git.diff")
    assert (checkout / "a.py").read_text() == "x = 2\n"


def test_a_large_change_is_cut_at_a_line_and_says_so(checkout: Path) -> None:
    (checkout / "a.py").write_text("".join(f"line {number}\n" for number in range(200_000)))

    diff = look().diff

    assert diff is not None
    assert MOST_DIFF_BYTES - 200 < len(diff) <= MOST_DIFF_BYTES
    *_, before, last = diff.decode().splitlines()
    assert before.startswith("+line ")
    assert last == "... cut here: the changes are larger than 1 MiB"


def test_the_users_configuration_runs_no_programs_and_leaves_the_changes_as_git_applies_them(
    checkout: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    touch = f"touch {marker}"
    odd = ("color.ui", "always"), ("diff.noprefix", "true"), ("diff.relative", "true"), ("diff.context", "0")
    for name, value in (("diff.external", touch), ("core.pager", touch), *odd):
        git("config", name, value)
    (checkout / "a.py").write_text("x = 1\ny = 2\n")

    diff = look().diff

    assert diff is not None
    assert b"--- a/a.py\n+++ b/a.py\n@@ -1 +1,2 @@\n x = 1\n+y = 2\n" in diff
    assert not marker.exists()


def test_without_a_checkout_a_commit_or_git_all_facts_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert look().facts == NOTHING

    git("init", "-q")
    assert look().facts == NOTHING

    monkeypatch.setenv("PATH", str(tmp_path))
    assert look().facts == NOTHING


def test_a_git_that_hangs_is_abandoned(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "bin", {"git": "#!/bin/sh\nexec sleep 600\n"})
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setattr(provenance, "_TIMEOUT_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    assert look().facts == NOTHING
