# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The system calls that a static x86-64 Linux program makes, answered in Python.

Files are those of this machine, read-only. What is not here is ENOSYS, and named on stderr.
"""

import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator

from guest_memory import PAGE, FaultError, GuestMemory
from guest_threads import GuestThreads

_MAPPINGS = 0x2000_0000_0000  # where mmap places what may lie anywhere
_MAP_FIXED, _MAP_ANONYMOUS = 0x10, 0x20
_ARCH_SET_FS = 0x1002
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_RLIM_INFINITY = 2**64 - 1
_UTS_FIELD = 65


class ExitedError(Exception):
    """The program has ended with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def _signed(value: int) -> int:
    """A C int that was passed in a 64-bit register."""
    return (value & 0xFFFF_FFFF ^ 0x8000_0000) - 0x8000_0000


class LinuxCalls:
    """The calls by their numbers (arch/x86/entry/syscalls/syscall_64.tbl of Linux)."""

    def __init__(
        self,
        memory: GuestMemory,
        threads: GuestThreads,
        set_fs: Callable[[int], None],
        clone: Callable[[int, int, int, int, int], int],
        instructions: Callable[[], int],
    ) -> None:
        """`set_fs` sets the base of FS of the CPU; `clone` starts a thread with its registers.

        `instructions` counts those executed: each is a nanosecond of every clock.
        """
        self._memory = memory
        self._threads = threads
        self._set_fs = set_fs
        self._clone = clone
        self._instructions = instructions
        self._next_mapping = _MAPPINGS
        self._unknown: set[int] = set()
        self._table: dict[int, Callable[..., int]] = {
            0: self._read,
            1: self._write,
            2: lambda path, flags, *_: self._openat(_AT_FDCWD, path, flags),
            3: self._close,
            4: lambda path, result, *_: self._newfstatat(_AT_FDCWD, path, result, 0),
            5: self._fstat,
            8: self._lseek,
            9: self._mmap,
            10: self._mprotect,
            11: self._munmap,
            12: lambda *_: 0,  # brk: the C library turns to mmap
            13: lambda *_: 0,  # rt_sigaction
            14: lambda *_: 0,  # rt_sigprocmask
            16: lambda *_: -errno.ENOTTY,  # ioctl
            17: self._pread,
            19: self._readv,
            20: self._writev,
            24: lambda *_: self._threads.yield_turn(),
            28: lambda *_: 0,  # madvise
            39: lambda *_: 1,  # getpid
            56: lambda *arguments: self._clone(*arguments[:5]),
            60: self._exit_thread,
            63: self._uname,
            72: lambda *_: 0,  # fcntl
            89: lambda *_: -errno.EINVAL,  # readlink: nothing is a link
            97: lambda _, result, *__: self._prlimit(0, 0, 0, result),
            149: lambda *_: 0,  # mlock
            150: lambda *_: 0,  # munlock
            158: self._arch_prctl,
            186: lambda *_: self._threads.current.id,  # gettid
            200: lambda _, signal, *__: self._exit(128 + signal),  # tkill, of abort()
            202: lambda a, op, value, v2, a2, _: self._threads.futex(a, op, value, v2, a2),
            204: self._sched_getaffinity,
            218: lambda *_: 1,  # set_tid_address
            228: self._clock_gettime,
            231: self._exit,
            234: lambda _, __, signal, *___: self._exit(128 + signal),  # tgkill
            257: self._openat,
            262: self._newfstatat,
            273: lambda *_: 0,  # set_robust_list
            302: self._prlimit,
            318: self._getrandom,
        }

    def call(self, number: int, *arguments: int) -> int:
        """What the call returns: negative error numbers as the kernel gives them."""
        handler = self._table.get(number)
        if handler is None:
            if number not in self._unknown:
                sys.stderr.write(f"bochs_run: system call {number} is not there\n")
            self._unknown.add(number)
            return -errno.ENOSYS
        try:
            return handler(*arguments)
        except FaultError:
            return -errno.EFAULT
        except OSError as error:
            return -(error.errno or errno.EIO)

    def _exit(self, status: int, *_: int) -> int:
        raise ExitedError(status & 0xFF)

    def _exit_thread(self, status: int, *_: int) -> int:
        self._threads.end()
        return 0 if len(self._threads) else self._exit(status)

    # Files

    def _read(self, fd: int, buffer: int, size: int, *_: int) -> int:
        data = os.read(_signed(fd), size)
        self._memory.write(buffer, data)
        return len(data)

    def _pread(self, fd: int, buffer: int, size: int, offset: int, *_: int) -> int:
        data = os.pread(_signed(fd), size, offset)
        self._memory.write(buffer, data)
        return len(data)

    def _write(self, fd: int, buffer: int, size: int, *_: int) -> int:
        return os.write(_signed(fd), self._memory.read(buffer, size))

    def _vectors(self, vectors: int, n: int) -> Iterator[tuple[int, int]]:
        return struct.iter_unpack("<QQ", self._memory.read(vectors, 16 * n))

    def _readv(self, fd: int, vectors: int, n: int, *_: int) -> int:
        done = 0
        for address, size in self._vectors(vectors, n):
            got = self._read(fd, address, size)
            done += got
            if got < size:
                break
        return done

    def _writev(self, fd: int, vectors: int, n: int, *_: int) -> int:
        data = b"".join(self._memory.read(at, size) for at, size in self._vectors(vectors, n))
        return os.write(_signed(fd), data)

    def _openat(self, directory: int, path: int, flags: int, *_: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return -errno.EROFS
        name = self._memory.text(path)
        at = _signed(directory)
        return os.open(name, flags, dir_fd=None if at == _AT_FDCWD else at)

    def _close(self, fd: int, *_: int) -> int:
        if _signed(fd) > 2:  # the standard streams are this program's own, too
            os.close(_signed(fd))
        return 0

    def _lseek(self, fd: int, offset: int, whence: int, *_: int) -> int:
        if stat.S_ISFIFO(os.fstat(_signed(fd)).st_mode):
            return -errno.ESPIPE
        return os.lseek(_signed(fd), (offset ^ 1 << 63) - (1 << 63), whence)

    def _stat(self, status: os.stat_result, result: int) -> int:
        """struct stat of x86-64: 144 bytes (arch/x86/include/uapi/asm/stat.h)."""
        times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
        data = struct.pack(
            "<QQQIIIIQqqq6Q24x",
            *(status.st_dev, status.st_ino, status.st_nlink, status.st_mode),
            *(status.st_uid, status.st_gid, 0, status.st_rdev),
            *(status.st_size, status.st_blksize, status.st_blocks),
            *(part for time_ns in times for part in divmod(time_ns, 10**9)),
        )
        self._memory.write(result, data)
        return 0

    def _fstat(self, fd: int, result: int, *_: int) -> int:
        return self._stat(os.fstat(_signed(fd)), result)

    def _newfstatat(self, directory: int, path: int, result: int, flags: int, *_: int) -> int:
        name = self._memory.text(path)
        at = _signed(directory)
        if not name and flags & _AT_EMPTY_PATH:
            return self._fstat(at, result)
        return self._stat(os.stat(name, dir_fd=None if at == _AT_FDCWD else at), result)

    # Memory

    def _mmap(
        self, address: int, size: int, protection: int, flags: int, fd: int, offset: int
    ) -> int:
        if not size:
            return -errno.EINVAL
        if not flags & _MAP_FIXED:
            address = self._next_mapping
            # A page stays free behind each mapping: running over its end is a fault.
            self._next_mapping = (address + size) // PAGE * PAGE + 2 * PAGE
        self._memory.unmap(address, size)
        self._memory.map(address, size, protection)
        if not flags & _MAP_ANONYMOUS:
            self._memory.write(address, os.pread(_signed(fd), size, offset))
        return address

    def _mprotect(self, address: int, size: int, protection: int, *_: int) -> int:
        self._memory.protect(address, size, protection)
        return 0

    def _munmap(self, address: int, size: int, *_: int) -> int:
        self._memory.unmap(address, size)
        return 0

    # Process

    def _arch_prctl(self, code: int, address: int, *_: int) -> int:
        if code != _ARCH_SET_FS:
            return -errno.EINVAL
        self._threads.current.fs_base = address
        self._set_fs(address)
        return 0

    def _sched_getaffinity(self, _: int, size: int, mask: int, *__: int) -> int:
        if size < 8:
            return -errno.EINVAL
        self._memory.write(mask, struct.pack("<Q", 1))  # one CPU
        return 8

    def _clock_gettime(self, _: int, result: int, *__: int) -> int:
        self._memory.write(result, struct.pack("<QQ", *divmod(self._instructions(), 10**9)))
        return 0

    def _prlimit(self, _: int, __: int, new: int, old: int, *___: int) -> int:
        if new:
            return -errno.EPERM
        if old:
            self._memory.write(old, struct.pack("<QQ", _RLIM_INFINITY, _RLIM_INFINITY))
        return 0

    def _uname(self, result: int, *_: int) -> int:
        fields = ("Linux", "bochs", "6.1.0", "#1", "x86_64", "")
        data = b"".join(field.encode().ljust(_UTS_FIELD, b"\0") for field in fields)
        self._memory.write(result, data)
        return 0

    def _getrandom(self, buffer: int, size: int, *_: int) -> int:
        self._memory.write(buffer, bytes(size))  # runs are to be equal
        return size
