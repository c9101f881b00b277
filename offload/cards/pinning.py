"""Page-locks host memory in place, so that the card's copy engine reads it without a detour.

torch's own pinned pool rounds every block up to a power of two; registering memory that we own
costs nothing extra. It knows addresses only: whoever owns the memory unregisters it, once every
copy from it has drained.
"""

import ctypes
import logging
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 30  # some drivers fail above 2 GiB in one call, and leak locked pages
_PORTABLE = 1  # locked for every context, not only the calling one's
_OK = 0
_LIBRARIES = {"cuda": "libc10_cuda.so", "hip": "libc10_hip.so"}


class Pinner:
    """Registers and unregisters through the runtime that torch itself is linked with."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load = load or load_runtime
        self._runtime: Any = None  # loaded at the first call: a card without pins never needs it
        self._registered: dict[int, list[int]] = {}  # address -> starts of its pieces
        self._warned = False
        self.num_failures = 0  # also of unregistering: that memory has to stay mapped

    def register(self, address: int, num_bytes: int) -> bool:
        """Lock whole pages of memory that is faulted in; False: nothing is locked, go on without.

        ``address`` starts a page. Never raises for what the driver refuses.
        """
        assert address % mmap.PAGESIZE == 0
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        done: list[int] = []
        for offset in range(0, size, PIECE_BYTES):
            start, length = address + offset, min(PIECE_BYTES, size - offset)
            if not self._call("Register", start, length, _PORTABLE):
                for piece in done:
                    self._call("Unregister", piece)
                return False
            done.append(start)
        self._registered[address] = done
        return bool(done)

    def unregister(self, address: int) -> bool:
        """Unlock what ``register`` locked, after its copies drained.

        False: the memory must stay mapped for the life of the process.
        """
        pieces = self._registered.pop(address, [])
        return all([self._call("Unregister", piece) for piece in pieces])

    def _call(self, verb: str, address: int, *rest: int) -> bool:
        if self._runtime is None:
            self._runtime = self._load()
        code = self._runtime.call(verb, address, *rest)
        if code == _OK:
            return True
        # The error waits on this thread, and the next kernel launch or allocation would raise it.
        self._runtime.clear_error()
        self.num_failures += 1
        if not self._warned:
            self._warned = True
            log.warning(
                "host memory could not be page-locked (%sHost%s: error %d); copies from it will be "
                "slower; look at the container's memory limit and at ulimit -l",
                self._runtime.prefix,
                verb,
                code,
            )
        return False


class Runtime:
    """``HostRegister``, ``HostUnregister`` and ``GetLastError`` of one loaded library."""

    def __init__(self, library: Any, prefix: str) -> None:
        self.prefix = prefix  # "cuda" or "hip"
        self._functions = {
            "Register": getattr(library, f"{prefix}HostRegister"),
            "Unregister": getattr(library, f"{prefix}HostUnregister"),
        }
        self._last_error = getattr(library, f"{prefix}GetLastError")
        # Without declared types a 64-bit pointer is cut to an int.
        self._functions["Register"].argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        self._functions["Unregister"].argtypes = [ctypes.c_void_p]
        self._last_error.argtypes = []
        for function in (*self._functions.values(), self._last_error):
            function.restype = ctypes.c_int

    def call(self, verb: str, address: int, *rest: int) -> int:
        """The runtime's error code, 0 for success."""
        return int(self._functions[verb](address, *rest))

    def clear_error(self) -> None:
        self._last_error()


def load_runtime(api: Any = torch, open_library: Callable[[str], Any] = ctypes.CDLL) -> Runtime:
    """All functions from one handle, torch's own library: another copy has errors of its own."""
    api.cuda.init()
    prefix = "hip" if api.version.hip else "cuda"
    path = Path(api.__file__).parent / "lib" / _LIBRARIES[prefix]
    return Runtime(open_library(str(path)), prefix)
