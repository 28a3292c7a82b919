"""A group of processes that end together on Windows, which has no process groups."""

from __future__ import annotations

import ctypes
import sys

LIMITS_CLASS = 9  # JobObjectExtendedLimitInformation, 36 words of 32 bits
FLAGS_WORD, KILL_ON_CLOSE = 4, 0x2000


class JobObject:
    """A process and all that it starts from now on: they end with `close`, or with the process that made this."""

    def __init__(self, pid: int) -> None:
        """Without effect on other systems, and for a process that has ended."""
        self._handle: int | None = None
        if sys.platform == "win32":
            import _winapi

            self._handle = _kernel().CreateJobObjectW(None, None)
            limits = (ctypes.c_uint32 * 36)()
            limits[FLAGS_WORD] = KILL_ON_CLOSE
            _kernel().SetInformationJobObject(self._handle, LIMITS_CLASS, ctypes.byref(limits), ctypes.sizeof(limits))
            try:
                process = _winapi.OpenProcess(_winapi.PROCESS_ALL_ACCESS, False, pid)
            except OSError:
                return
            _kernel().AssignProcessToJobObject(self._handle, process)
            _winapi.CloseHandle(process)

    def close(self) -> None:
        """Ends what is left."""
        if sys.platform == "win32":
            if self._handle is not None:
                _kernel().CloseHandle(self._handle)
                self._handle = None


if sys.platform == "win32":

    def _kernel() -> ctypes.WinDLL:
        kernel = ctypes.WinDLL("kernel32")
        kernel.CreateJobObjectW.restype = ctypes.c_void_p
        kernel.SetInformationJobObject.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)
        kernel.AssignProcessToJobObject.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        kernel.CloseHandle.argtypes = (ctypes.c_void_p,)
        return kernel
