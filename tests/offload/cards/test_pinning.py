"""Page-locking leaves no error behind, no half-locked memory, and never cuts an address."""

import ctypes
import mmap
from types import SimpleNamespace

import pytest

from offload.cards.pinning import PIECE_BYTES, Pinner, Runtime, load_runtime

PAGE = mmap.PAGESIZE


class FakeFunction:
    """One function of the runtime, as ctypes hands it out."""

    def __init__(self, answer) -> None:
        self._answer = answer
        self.argtypes: list[type] | None = None
        self.restype: type | None = None

    def __call__(self, *args: int) -> int:
        assert self.argtypes is not None
        assert self.restype is ctypes.c_int
        assert len(args) == len(self.argtypes)
        return self._answer(*args)


class FakeLibrary:
    """A runtime that remembers what is locked, and raises a left-over error at the next launch."""

    def __init__(self, prefix: str = "cuda") -> None:
        self.locked: dict[int, int] = {}
        self.left_over = 0
        self.refuse_from = 1 << 62  # addresses that cannot be locked
        setattr(self, f"{prefix}HostRegister", FakeFunction(self._register))
        setattr(self, f"{prefix}HostUnregister", FakeFunction(self._unregister))
        setattr(self, f"{prefix}GetLastError", FakeFunction(self._last_error))

    def _register(self, address: int, num_bytes: int, flags: int) -> int:
        assert flags == 1
        if address >= self.refuse_from:
            return self._fail(1)
        if any(a < address + num_bytes and address < a + n for a, n in self.locked.items()):
            return self._fail(712)
        self.locked[address] = num_bytes
        return 0

    def _unregister(self, address: int) -> int:
        return 0 if self.locked.pop(address, None) else self._fail(713)

    def _last_error(self) -> int:
        code, self.left_over = self.left_over, 0
        return code

    def _fail(self, code: int) -> int:
        self.left_over = code
        return code


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary()


@pytest.fixture
def pinner(library) -> Pinner:
    return Pinner(lambda: Runtime(library, "cuda"))


def test_whole_pages_are_locked_and_unlocked(library, pinner):
    assert pinner.register(16 * PAGE, 3 * PAGE + 1)
    assert library.locked == {16 * PAGE: 4 * PAGE}
    assert pinner.unregister(16 * PAGE)
    assert library.locked == {}


def test_a_large_range_is_locked_in_pieces_of_at_most_a_gib(library, pinner):
    assert pinner.register(0, 2 * PIECE_BYTES + PAGE)
    assert library.locked == {0: PIECE_BYTES, PIECE_BYTES: PIECE_BYTES, 2 * PIECE_BYTES: PAGE}
    assert pinner.unregister(0)
    assert library.locked == {}


def test_a_refused_piece_leaves_nothing_locked_and_no_error_behind(library, pinner, caplog):
    library.refuse_from = PIECE_BYTES
    assert not pinner.register(0, 2 * PIECE_BYTES)
    assert library.locked == {}
    assert library.left_over == 0
    assert pinner.num_failures == 1
    assert "cudaHostRegister: error 1" in caplog.text


def test_the_same_range_twice_is_refused_and_the_first_lock_stays(library, pinner):
    assert pinner.register(0, PAGE)
    assert not pinner.register(0, PAGE)
    assert library.locked == {0: PAGE}
    assert library.left_over == 0


def test_one_warning_is_enough(pinner, library, caplog):
    library.refuse_from = 0
    for _ in range(3):
        assert not pinner.register(0, PAGE)
    assert len(caplog.records) == 1
    assert pinner.num_failures == 3


def test_memory_that_could_not_be_unlocked_is_told_and_counted(library, pinner):
    pinner.register(0, PAGE)
    library.locked.clear()
    assert not pinner.unregister(0)
    assert pinner.num_failures == 1
    assert library.left_over == 0


def test_what_was_never_locked_is_unlocked_without_a_call(pinner):
    assert pinner.unregister(123 * PAGE)
    assert pinner.num_failures == 0


def test_no_bytes_are_no_lock(pinner, library):
    assert not pinner.register(0, 0)
    assert library.locked == {}


def test_the_runtime_is_loaded_at_the_first_call_only():
    loaded: list[int] = []

    def load() -> Runtime:
        loaded.append(1)
        return Runtime(FakeLibrary(), "cuda")

    pinner = Pinner(load)
    assert loaded == []
    pinner.register(0, PAGE)
    pinner.register(PAGE, PAGE)
    assert loaded == [1]


def test_pointers_are_declared_as_wide_as_they_are():
    library = FakeLibrary()
    Runtime(library, "cuda")
    assert library.cudaHostRegister.argtypes == [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    assert library.cudaHostUnregister.argtypes == [ctypes.c_void_p]


@pytest.mark.parametrize(
    ("hip", "prefix", "file"),
    [(None, "cuda", "libc10_cuda.so"), ("7.1", "hip", "libc10_hip.so")],
)
def test_all_functions_come_from_torchs_own_library_after_cuda_is_initialised(hip, prefix, file):
    calls: list[str] = []
    api = SimpleNamespace(
        cuda=SimpleNamespace(init=lambda: calls.append("init")),
        version=SimpleNamespace(hip=hip),
        __file__="/somewhere/torch/__init__.py",
    )

    def open_library(path: str) -> FakeLibrary:
        calls.append(path)
        return FakeLibrary(prefix)

    pinner = Pinner(lambda: load_runtime(api, open_library))
    assert pinner.register(0, PAGE)
    assert calls == ["init", f"/somewhere/torch/lib/{file}"]
