# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a static x86-64 Linux program on a CPU that this machine need not have.

    bochs_run.py [--cpu MODEL] [--count] PROGRAM [ARGUMENT...]

The CPU is Bochs' (https://bochs.sourceforge.io), which bochscpu-python brings into the process.
There is no operating system: the program runs flat in long mode, and its system calls are answered
by linux_calls.py. The exit status is the program's; as in a shell it is 132 after an illegal
instruction, 136 after an arithmetic exception and 139 after a bad address.
"""

import argparse
import ctypes
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guest_memory import EXECUTE, PAGE, READ, WRITE, FaultError, GuestMemory, MemoryFullError
from guest_threads import AREA_BYTES, SLICE, DeadlockError, GuestThreads
from linux_calls import ExitedError, LinuxCalls

SHIM_SOURCE = Path(__file__).with_name("bochs_shim.c")

RAM_BYTES = 1 << 30  # touched pages only take memory of this machine
STACK_TOP, STACK_BYTES = 0x7FFF_FFFF_0000, 1 << 20
CALL_ENTRY = 0x7FFE_0000_0000  # where the instruction SYSCALL arrives
SWITCH_ENTRY = CALL_ENTRY + PAGE // 2  # code that changes vectors and flags for another thread's
THREAD_AREAS = 0x7FFD_0000_0000
PIE_BASE = 0x40_0000

NEVER = 2**64 - 1  # as an end of a slice

# What an operating system that knows them enables: x87 and SSE, AVX, AVX-512.
XCR0_AVX, XCR0_AVX512 = 0x07, 0xE7


@dataclass(frozen=True)
class CpuModel:
    """A CPU that Bochs knows."""

    creator: str  # Bochs' function create_<creator>_cpuid
    xcr0: int


CPU_MODELS = {
    "haswell": CpuModel("corei7_haswell_4770", XCR0_AVX),  # no AVX-512
    "skylake_x": CpuModel("corei7_skylake_x", XCR0_AVX512),  # F, BW, VL, DQ; no VNNI
    "icelake_u": CpuModel("corei7_icelake_u", XCR0_AVX512),  # VNNI
    "sapphire_rapids": CpuModel("sapphire_rapids", XCR0_AVX512),  # VNNI, BF16, FP16
}

# Exceptions of the CPU that are not SIGSEGV
SIGNALS = {
    0: signal.SIGFPE,  # division
    6: signal.SIGILL,  # undefined opcode
    7: signal.SIGILL,  # device not available
    16: signal.SIGFPE,  # x87
    19: signal.SIGFPE,  # SIMD floating point
}
NAMES = {
    signal.SIGFPE: "arithmetic exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGSEGV: "bad address",
}


def build_shim(directory: Path) -> Path:
    """The library that must be preloaded, see bochs_shim.c, built in `directory`."""
    shim = directory / "bochs_shim.so"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu"]
    options = ["-O1", "-shared", "-fPIC", "-nostdlib", "-o"]
    subprocess.run([*compiler, *options, shim, SHIM_SOURCE], check=True)
    return shim


def _choose_cpu(model: CpuModel) -> None:
    """Tells the shim where the library that `import bochscpu` will load has what it calls there."""
    spec = importlib.util.find_spec("bochscpu")
    assert spec is not None
    (library,) = Path(str(spec.origin)).parent.glob("_bochscpu.*.so")
    symbols = {
        "bochs_cpu_creator": f"_Z{len(model.creator) + 13}create_{model.creator}_cpuidP8BX_CPU_C",
        "bochs_far_branch": "bx_instr_far_branch",
    }
    package, shim = ctypes.CDLL(str(library)), ctypes.CDLL(None)
    for pointer, symbol in symbols.items():
        address = ctypes.cast(getattr(package, symbol), ctypes.c_void_p).value
        ctypes.c_void_p.in_dll(shim, pointer).value = address


@dataclass(frozen=True)
class Loaded:
    """A program in memory."""

    entry: int
    headers: int  # address of the program headers
    header_size: int
    n_headers: int


def load(memory: GuestMemory, elf: bytes) -> Loaded:
    """Places the segments of an ELF file (System V ABI, chapters 4 and 5) in memory."""
    kind, machine = struct.unpack_from("<HH", elf, 16)
    if elf[:5] != b"\x7fELF\x02" or machine != 62:
        raise SystemExit("bochs_run: not an ELF file for x86-64")
    base = PIE_BASE if kind == 3 else 0
    entry, at = struct.unpack_from("<QQ", elf, 24)
    size, n = struct.unpack_from("<HH", elf, 54)
    headers = 0
    for i in range(n):
        part, flags, offset, address, _, in_file, in_memory = struct.unpack_from(
            "<IIQQQQQ", elf, at + i * size
        )
        if part == 3:  # PT_INTERP
            raise SystemExit("bochs_run: the program is linked dynamically")
        if part != 1:  # PT_LOAD
            continue
        protection = (flags & 4 and READ) | (flags & 2 and WRITE) | (flags & 1 and EXECUTE)
        memory.map(base + address, in_memory, protection)
        memory.write(base + address, elf[offset : offset + in_file])
        if offset <= at < offset + in_file:
            headers = base + address + at - offset
    return Loaded(base + entry, headers, size, n)


def push_arguments(memory: GuestMemory, program: Loaded, arguments: list[str]) -> int:
    """Lays out the stack of a new process (System V ABI for x86-64, 3.4.1); the stack pointer."""
    memory.map(STACK_TOP - STACK_BYTES, STACK_BYTES, READ | WRITE)
    random = STACK_TOP - 16  # 16 bytes, here zeros
    address = random
    pointers = []
    for argument in arguments:
        text = os.fsencode(argument) + b"\0"
        address -= len(text)
        memory.write(address, text)
        pointers.append(address)
    auxiliary = {
        3: program.headers,  # AT_PHDR
        4: program.header_size,
        5: program.n_headers,
        6: PAGE,  # AT_PAGESZ
        9: program.entry,
        25: random,  # AT_RANDOM
        0: 0,
    }
    words = [len(arguments), *pointers, 0, 0]  # an empty environment
    words += [word for pair in auxiliary.items() for word in pair]
    pointer = (address - 8 * len(words)) & -16
    memory.write(pointer, struct.pack(f"<{len(words)}Q", *words))
    return pointer


class Machine:
    """One CPU with one program."""

    def __init__(self, model: CpuModel, arguments: list[str]) -> None:
        _choose_cpu(model)
        import bochscpu
        import bochscpu.memory

        self._bochscpu: Any = bochscpu
        self._memory = GuestMemory(RAM_BYTES)
        program = load(self._memory, Path(arguments[0]).read_bytes())
        stack = push_arguments(self._memory, program, arguments)
        self._session = bochscpu.Session()
        self._session.missing_page_handler = self._add_page
        self._cpu = self._session.cpu
        self._cpu.state = self._initial_state(model.xcr0, program.entry, stack)
        self._threads = GuestThreads(self._memory, THREAD_AREAS)
        self._calls = LinuxCalls(
            self._memory, self._threads, self._set_fs, self._clone, lambda: self.instructions
        )
        self._exception: int | None = None
        self._slice_end = ctypes.c_ulonglong.in_dll(ctypes.CDLL(None), "bochs_slice_end")
        self._hook = bochscpu.Hook()
        self._hook.far_branch = self._on_far_branch
        self._hook.exception = self._on_exception

    def _initial_state(self, xcr0: int, entry: int, stack: int) -> Any:
        """Long mode at ring 0, with the vector registers enabled."""
        import bochscpu.cpu

        state = bochscpu.State()
        bochscpu.cpu.set_long_mode(state)
        state.cr0 |= 1 << 1  # MP
        state.cr3 = self._memory.root
        state.cr4 |= 1 << 9 | 1 << 10 | 1 << 18  # OSFXSR, OSXMMEXCPT, OSXSAVE
        state.xcr0 = xcr0
        state.rip, state.rsp, state.rflags = entry, stack, 2
        state.mxcsr, state.mxcsr_mask = 0x1F80, 0xFFFF
        state.fpcw, state.fptw = 0x37F, 0xFFFF
        state.cs = self._segment(0x10, 0x209B)
        for name in ("ss", "ds", "es", "fs", "gs"):
            setattr(state, name, self._segment(0x18, 0xC093))
        # SYSCALL comes to CALL_ENTRY, and the emulator stops before the first instruction there.
        # The program goes on after these, which forget what the TLB knows of its memory:
        #     mov r11, cr3; mov cr3, r11; jmp rcx
        # RCX is where it goes on. Both registers are the call's own.
        state.star, state.lstar, state.sfmask = 0x10 << 32, CALL_ENTRY, 0
        self._memory.map(CALL_ENTRY, PAGE, READ | EXECUTE)
        self._memory.write(CALL_ENTRY, bytes.fromhex("410f20db 410f22db ffe1"))
        # RDI and RSI point to the areas of the threads, RSP to the end of the first one:
        #     pushfq; mov eax, -1; mov edx, eax; xsave64 [rdi]; xrstor64 [rsi]
        #     lea rsp, [rsi + 0xff8]; popfq; syscall
        switch = "9c b8ffffffff 89c2 480fae27 480fae2e 488da6f80f0000 9d 0f05"
        self._memory.write(SWITCH_ENTRY, bytes.fromhex(switch))
        return state

    def _segment(self, selector: int, attributes: int, base: int = 0) -> Any:
        segment = self._bochscpu.Segment()
        segment.present, segment.selector = True, selector
        segment.base, segment.limit, segment.attr = base, 0xFFFF_FFFF, attributes
        return segment

    def _set_fs(self, base: int) -> None:
        self._cpu.fs = self._segment(0x18, 0xC093, base)

    def _clone(self, *arguments: int) -> int:
        return self._threads.clone(self._cpu, *arguments)

    def _add_page(self, physical: int) -> None:
        page = physical & -PAGE
        self._bochscpu.memory.page_insert(page, self._memory.host_address(page))

    def _on_far_branch(self, session: Any, *_: object) -> None:
        session.stop()

    def _on_exception(self, session: Any, _: int, vector: int, *__: object) -> None:
        self._exception = vector
        session.stop()

    def run(self) -> int:
        """Runs the program to its end; its exit status."""
        cpu = self._cpu
        while True:
            sliced = len(self._threads) > 1
            self._slice_end.value = self.instructions + SLICE if sliced else NEVER
            self._session.run([self._hook])
            if self._exception is not None:
                return self._killed(self._exception)
            if cpu.rip == CALL_ENTRY:
                arguments = (cpu.rdi, cpu.rsi, cpu.rdx, cpu.r10, cpu.r8, cpu.r9)
                try:
                    result = self._calls.call(cpu.rax, *arguments)
                except ExitedError as exited:
                    return exited.status
                cpu.rax = result & 0xFFFF_FFFF_FFFF_FFFF
                if self._threads.keeps_turn:
                    continue
            elif not sliced or self._slice_end.value != NEVER:
                sys.stderr.write(f"bochs_run: stopped at {cpu.rip:#x}\n")
                return 128 + signal.SIGSEGV
            self._switch()

    def _switch(self) -> None:
        """Gives the CPU to the thread whose turn it is."""
        thread, cpu = self._threads.next(), self._cpu
        if thread is self._threads.current:
            return
        self._threads.save(cpu)
        cpu.rdi, cpu.rsi, cpu.rip = self._threads.current.area, thread.area, SWITCH_ENTRY
        cpu.rsp = cpu.rdi + AREA_BYTES
        self._slice_end.value = NEVER
        self._session.run([self._hook])
        self._threads.restore(cpu, thread)
        self._set_fs(thread.fs_base)

    def _killed(self, vector: int) -> int:
        number = SIGNALS.get(vector, signal.SIGSEGV)
        at = self._cpu.rip
        what = f"{NAMES[number]} at {at:#x}"
        if number == signal.SIGSEGV:
            what += f", address {self._cpu.cr2:#x}"
        try:
            what += f": {self._memory.read(at, 11).hex(' ')}"
        except FaultError:
            what += " (no code there)"
        sys.stderr.write(f"bochs_run: {what}\n")
        return 128 + number

    @property
    def instructions(self) -> int:
        """Instructions executed so far."""
        counter = ctypes.c_ulonglong.in_dll(ctypes.CDLL(None), "bochs_instructions")
        return int(counter.value)


def main() -> int:
    """The exit status of the program."""
    parser = argparse.ArgumentParser(description="Run a static x86-64 program on Bochs' CPU.")
    parser.add_argument("--cpu", choices=CPU_MODELS, default="sapphire_rapids")
    parser.add_argument("--count", action="store_true", help="print the instructions executed")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGUMENT...]")
    args = parser.parse_args()
    if not args.command:
        parser.error("which program?")
    if importlib.util.find_spec("bochscpu") is None:
        parser.error("bochscpu-python is not installed: pip install bochscpu-python==0.4.0")
    if not hasattr(ctypes.CDLL(None), "bochs_cpu_creator"):
        with tempfile.TemporaryDirectory(prefix="colibri-bochs-") as directory:
            environment = os.environ | {"LD_PRELOAD": str(build_shim(Path(directory)))}
            again = subprocess.run([sys.executable, *sys.argv], env=environment, check=False)
        return again.returncode

    machine = Machine(CPU_MODELS[args.cpu], args.command)
    start = time.monotonic()
    try:
        status = machine.run()
    except (DeadlockError, MemoryFullError) as error:
        parser.error(str(error))
    if args.count:
        seconds = time.monotonic() - start
        sys.stderr.write(f"bochs_run: {machine.instructions:,} instructions in {seconds:.1f} s\n")
    return status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the emulator's library does not always survive a clean end
