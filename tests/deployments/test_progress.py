"""A bar is shown to whoever watches, and to nobody else."""

import io

from deployments.progress import ProgressBar


class Terminal(io.StringIO):
    """A file that someone watches."""

    def isatty(self) -> bool:
        return True


def test_a_bar_for_each_label_ends_where_it_was_told() -> None:
    terminal = Terminal()
    with ProgressBar(terminal) as bar:
        bar.show("placing vae", 1, 4)
        bar.show("placing vae", 4, 4)
        bar.show("drawing", 1, 2)
    # Each bar ends with a newline and is drawn anew after a carriage return: the last one counts.
    first, second = (line.split("\r")[-1] for line in terminal.getvalue().strip().split("\n"))
    assert first.startswith("placing vae: 100%")
    assert "4/4" in first
    assert second.startswith("drawing:  50%")


def test_what_is_printed_after_a_full_bar_begins_on_its_own_line() -> None:
    terminal = Terminal()
    with ProgressBar(terminal) as bar:
        bar.show("placing vae", 4, 4)
        print("placed", file=terminal)
    assert terminal.getvalue().endswith("]\nplaced\n")


def test_a_file_gets_no_bar() -> None:
    file = io.StringIO()
    with ProgressBar(file) as bar:
        bar.show("drawing", 1, 2)
    assert file.getvalue() == ""


def test_nothing_shown_is_nothing_printed() -> None:
    terminal = Terminal()
    with ProgressBar(terminal):
        pass
    assert terminal.getvalue() == ""
