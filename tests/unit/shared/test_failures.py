"""What a process leaves as the reason of its death is read by name, whole or by its end."""

from __future__ import annotations

import multiprocessing
import os

from sfactory.shared.status import FailureBoard


def write_and_die(board: FailureBoard) -> None:
    board.write("b", "reason: ü")
    os._exit(9)


def test_nothing_was_left_at_first() -> None:
    assert FailureBoard(["a", "b"]).read("b") == ""


def test_each_process_has_a_text_of_its_own() -> None:
    board = FailureBoard(["a", "b"])

    board.write("a", "first, and longer")
    board.write("a", "first")
    board.write("b", "second")

    assert (board.read("a"), board.read("b")) == ("first", "second")


def test_of_a_long_text_the_end_is_kept() -> None:
    board = FailureBoard(["a"])

    board.write("a", "x" * 20_000 + "ValueError: the cause")

    text = board.read("a")
    assert len(text) == 16_384
    assert text.endswith("xValueError: the cause")


def test_a_cut_through_a_letter_and_unpaired_surrogates_do_not_hurt() -> None:
    board = FailureBoard(["a"])

    board.write("a", "x" + "ü" * 10_000)
    assert board.read("a").endswith("üü")
    board.write("a", "\udcff is no letter")
    assert board.read("a") == "? is no letter"


def test_a_text_survives_the_death_of_its_writer() -> None:
    board = FailureBoard(["a", "b"])
    child = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(board,))

    child.start()
    child.join(60)

    assert child.exitcode == 9
    assert board.read("b") == "reason: ü"
