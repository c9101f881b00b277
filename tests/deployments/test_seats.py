"""No two living replicas of one application sit on the same seat, and a dead one leaves it."""

import subprocess
import sys
from pathlib import Path

SITTER = """
import sys
from pathlib import Path
from deployments.seats import take_seat
folder, table, wanted, patience_s = sys.argv[1:]
seat = take_seat(table, int(wanted), 2, patience_s=float(patience_s), folder=Path(folder))
print(seat, flush=True)
sys.stdin.read()
"""


def start(folder: Path, table: str, wanted: int, patience_s: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SITTER, str(folder), table, str(wanted), str(patience_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def seat_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def kill(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def test_two_that_want_the_same_seat_get_two(tmp_path: Path) -> None:
    first = start(tmp_path, "app", 1)
    assert seat_of(first) == 1
    second = start(tmp_path, "app", 1)
    assert seat_of(second) == 0
    kill(first)  # -9: the system lets go
    third = start(tmp_path, "app", 1)
    assert seat_of(third) == 1
    kill(second, third)


def test_who_replaces_another_waits_for_its_seat(tmp_path: Path) -> None:
    old = [start(tmp_path, "app", number) for number in (0, 1)]
    assert [seat_of(process) for process in old] == [0, 1]
    new = start(tmp_path, "app", 0, patience_s=60)
    kill(old[1])
    assert seat_of(new) == 1
    kill(old[0], new)


def test_who_waits_in_vain_sits_above(tmp_path: Path) -> None:
    sitting = [start(tmp_path, "app", number) for number in (0, 1)]
    assert [seat_of(process) for process in sitting] == [0, 1]
    late = start(tmp_path, "app", 1)
    assert seat_of(late) == 2
    kill(*sitting, late)


def test_seats_of_another_application_are_others(tmp_path: Path) -> None:
    one, two = start(tmp_path, "one", 0), start(tmp_path, "two", 0)
    assert (seat_of(one), seat_of(two)) == (0, 0)
    kill(one, two)
