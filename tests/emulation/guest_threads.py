# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Threads of an emulated x86-64 process, on the one CPU that there is.

A thread runs until its slice is over, until it yields or waits for a futex, or until it ends; then
the next one that can run has its turn. Runs are equal: a slice is a number of instructions.
"""

import errno
import struct
from dataclasses import dataclass, field
from typing import Any

from guest_memory import PAGE, READ, WRITE, GuestMemory

SLICE = 20_011  # instructions
AREA_BYTES = PAGE  # of a thread: what XSAVE stores, 2,696 bytes with AVX-512; RFLAGS at the end
_GENERAL = (
    *("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "rip"),
    *(f"r{i}" for i in range(8, 16)),
)

# What clone() is asked for (include/uapi/linux/sched.h); a thread of the C library wants all of it.
_CLONE_VM, _CLONE_THREAD, _CLONE_SETTLS = 0x100, 0x10000, 0x80000
_CLONE_PARENT_SETTID, _CLONE_CHILD_CLEARTID = 0x100000, 0x200000
_NEEDED = _CLONE_VM | _CLONE_THREAD | _CLONE_SETTLS | _CLONE_CHILD_CLEARTID

_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_REQUEUE = 0, 1, 3  # include/uapi/linux/futex.h
_COMMAND = 0x7F  # without the flags for private ones and for the clock


class DeadlockError(Exception):
    """Every thread waits for another one."""


@dataclass
class Thread:
    """What the CPU does not hold while another thread has it."""

    id: int
    area: int  # address of what the guest's own code stores, see AREA_BYTES
    fs_base: int = 0
    clear_id: int = 0  # address where the end of the thread writes zero and wakes
    registers: dict[str, int] = field(default_factory=dict)
    waits_for: int | None = None  # address of a futex
    ended: bool = False

    @property
    def can_run(self) -> bool:
        """Whether the thread may have its turn."""
        return self.waits_for is None and not self.ended


class GuestThreads:
    """All threads; `current` is the one on the CPU."""

    def __init__(self, memory: GuestMemory, areas: int) -> None:
        """`areas`: address space for the threads' areas."""
        self._memory = memory
        self._next_area = areas
        self._n_created = 0
        self.yielded = False  # the current thread, since it has its turn
        self.current = self._new()
        self._alive = [self.current]  # in the order of their turns

    def _new(self) -> Thread:
        """A thread with the vectors and flags of a reset CPU: all is zero but MXCSR and a flag."""
        area = self._next_area
        self._next_area += AREA_BYTES
        self._memory.map(area, AREA_BYTES, READ | WRITE)
        self._memory.write(area + 24, struct.pack("<I", 0x1F80))
        self._memory.write(area + AREA_BYTES - 8, struct.pack("<Q", 2))
        self._n_created += 1
        return Thread(self._n_created, area)

    def __len__(self) -> int:
        return len(self._alive)

    def clone(
        self, cpu: Any, flags: int, stack: int, parent_id: int, child_id: int, tls: int
    ) -> int:
        """A new thread that goes on where `cpu` is, with 0 as its result; its number."""
        if flags & _NEEDED != _NEEDED:
            return -errno.ENOSYS  # a process
        thread = self._new()
        thread.registers = {name: getattr(cpu, name) for name in _GENERAL}
        thread.registers |= {"rax": 0, "rsp": stack}
        thread.fs_base, thread.clear_id = tls, child_id
        if flags & _CLONE_PARENT_SETTID:
            self._memory.write(parent_id, struct.pack("<I", thread.id))
        self._alive.append(thread)
        return thread.id

    def end(self) -> None:
        """The current thread is no more; another one must take its turn."""
        self._alive.remove(self.current)
        self.current.ended = True
        if self.current.clear_id:
            self._memory.write(self.current.clear_id, bytes(4))
            self._wake(self.current.clear_id, 1)

    def yield_turn(self) -> int:
        """What sched_yield does."""
        self.yielded = True
        return 0

    @property
    def keeps_turn(self) -> bool:
        """Whether the current thread goes on after its call."""
        return self.current.can_run and not self.yielded

    def next(self) -> Thread:
        """Whose turn it is: after the current one, the first that can run."""
        self.yielded = False
        at = 0 if self.current.ended else self._alive.index(self.current) + 1
        for thread in self._alive[at:] + self._alive[:at]:
            if thread.can_run:
                return thread
        raise DeadlockError(f"all of {len(self._alive)} threads wait")

    def save(self, cpu: Any) -> None:
        """Takes the general registers of the current thread off the CPU."""
        self.current.registers = {name: getattr(cpu, name) for name in _GENERAL}

    def restore(self, cpu: Any, thread: Thread) -> None:
        """Makes `thread` the current one, and gives the CPU its general registers."""
        for name, value in thread.registers.items():
            setattr(cpu, name, value)
        self.current = thread

    def futex(self, address: int, operation: int, value: int, value_2: int, address_2: int) -> int:
        """The three operations that musl uses, without time limits."""
        command = operation & _COMMAND
        if command == _FUTEX_WAIT:
            (now,) = struct.unpack("<I", self._memory.read(address, 4))
            if now != value & 0xFFFF_FFFF:
                return -errno.EAGAIN
            self.current.waits_for = address
            return 0
        if command == _FUTEX_WAKE:
            return self._wake(address, value)
        if command == _FUTEX_REQUEUE:
            woken = self._wake(address, value)
            moved = self._waiting(address)[:value_2]
            for thread in moved:
                thread.waits_for = address_2
            return woken + len(moved)
        return -errno.ENOSYS

    def _waiting(self, address: int) -> list[Thread]:
        return [thread for thread in self._alive if thread.waits_for == address]

    def _wake(self, address: int, n: int) -> int:
        woken = self._waiting(address)[:n]
        for thread in woken:
            thread.waits_for = None
        return len(woken)
