# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Emulated boards that are whole systems: Linux and dropbear under qemu-system, on loopback.

CPU model, RAM and disk are the board's own. Each board has a directory: its disk, which outlives
it, and while it runs its process, port, key and known_hosts. A board that a verb needs and that
does not run is started for it, and stopped by the last one that uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

from pydantic import Field

from colibri_deploy.errors import ColibriDeployError, EmulationError, ProcessError
from colibri_deploy.process import run
from colibri_deploy.running_board import (
    ADDRESS,
    RunningBoard,
    locked,
    running_board,
    state_directory,
)
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import Target
from colibri_deploy.vm_image import Image, cache_directory, find_image

PREFIX = "vm:"  # of a board's name on the command line
BOOT_SECONDS = 180.0
_STOP_SECONDS = 30.0
_PORT_TRIES = 5


@dataclass(frozen=True)
class VmOptions:
    """What a board is made of besides its target."""

    ram_mib: Annotated[int, Field(ge=64)] = 512
    disk_mib: Annotated[int, Field(ge=8)] = 2048  # of the file system with the home directory
    disk_mb_per_s: Annotated[float, Field(gt=0)] | None = None  # 1e6 bytes; None: unlimited


@dataclass(frozen=True)
class _Machine:
    """How QEMU emulates an architecture."""

    program: str
    package: str  # Debian's
    options: tuple[str, ...]
    cpu: str  # where the target names none
    bus: str  # of virtio's devices
    network: str  # more options of the network card
    kernel_options: str


_MACHINES = {
    "aarch64": _Machine(
        program="qemu-system-aarch64",
        package="qemu-system-arm",
        options=("-M", "virt,gic-version=3"),
        cpu="max,pauth-impdef=on",
        bus="device",
        network="",
        kernel_options="console=ttyAMA0 nokaslr",
    ),
    "riscv64": _Machine(
        program="qemu-system-riscv64",
        package="qemu-system-misc or qemu-system-riscv",
        options=("-M", "virt"),
        cpu="rv64,v=true,vext_spec=v1.0,vlen=256",
        bus="device",
        network="",
        kernel_options="console=ttyS0",
    ),
    "x86_64": _Machine(
        program="qemu-system-x86_64",
        package="qemu-system-x86",
        options=("-M", "pc,hpet=off"),
        cpu="max",
        bus="pci",
        network=",romfile=",  # it boots from no network
        kernel_options="console=ttyS0 tsc=reliable no_timer_check",
    ),
}
_KERNEL_OPTIONS = "quiet mitigations=off cryptomgr.notests"


class VmBoard:
    """An emulated board; a context manager, on the network while entered."""

    def __init__(
        self,
        name: str,
        target: Target,
        options: VmOptions,
        root: Path | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`name` begins with PREFIX; `root` holds the boards' directories."""
        self.name = name
        self._target = target
        self._options = options
        self._on_step = on_step
        self._machine = _MACHINES[target.arch]
        self.directory = (root or state_directory("vm")) / name.removeprefix(PREFIX)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            with locked(self.directory):
                self._users = stack.enter_context((self.directory / "users").open("w"))
                fcntl.flock(self._users, fcntl.LOCK_SH)
                vm = running_board(self.directory) or self._start(kept=False)
            self.board, self.known_hosts = vm.board, vm.known_hosts
            stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with locked(self.directory), self._users:
            vm = running_board(self.directory)
            if vm is None or vm.kept:
                return
            with contextlib.suppress(BlockingIOError):  # somebody else uses it
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _shut_down(vm)

    def start(self, home: Path | None = None) -> RunningBoard:
        """Starts it, or finds it running, and keeps it.

        `home` is what a disk that is new begins with. Raises EmulationError.
        """
        with locked(self.directory):
            if home is not None:
                self._make_disk(home)
            vm = running_board(self.directory) or self._start(kept=True)
            vm = replace(vm, kept=True)
            vm.write()
            return vm

    def stop(self, *, erase: bool = False) -> bool:
        """Stops it, whoever uses it, and removes its disk if told to; False: it did not run."""
        with locked(self.directory):
            vm = running_board(self.directory)
            if vm is not None:
                _shut_down(vm)
            if erase:
                shutil.rmtree(self.directory)
            return vm is not None

    def command(self, image: Image, port: int, identity: str) -> list[str]:
        """What emulates it, to be run in its directory."""
        machine, options = self._machine, self._options
        disk = "file=disk.ext4,if=none,id=disk,format=raw,discard=unmap"
        if options.disk_mb_per_s is not None:
            disk += f",throttling.bps-total={round(options.disk_mb_per_s * 1e6)}"
        return [
            machine.program,
            *machine.options,
            *("-cpu", self._target.facts.qemu_cpu or machine.cpu),
            *("-m", str(options.ram_mib)),
            *("-uuid", identity),
            *("-nodefaults", "-display", "none", "-serial", "file:console.log"),
            *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
            *("-append", f"{machine.kernel_options} {_KERNEL_OPTIONS}"),
            *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:{ADDRESS}:{port}-:22"),
            *("-device", f"virtio-net-{machine.bus},netdev=net{machine.network}"),
            *("-drive", disk),
            *("-device", f"virtio-blk-{machine.bus},drive=disk"),
            *("-daemonize", "-pidfile", "pid"),
        ]

    def image(self) -> Image:
        """What it boots. Raises EmulationError where that was not built."""
        image = find_image(self._target.arch, cache_directory())
        if image is None:
            raise EmulationError(
                f"there is no {self._target.arch} image for {self.name}; build it: "
                f"colibri-deploy emulate build {self._target.name}"
            )
        return image

    def _start(self, kept: bool) -> RunningBoard:
        """Boots it, and waits until SSH answers."""
        image = self.image()
        if shutil.which(self._machine.program) is None:
            raise EmulationError(
                f"{self.name} needs {self._machine.program}: install the package "
                f"{self._machine.package} (Debian, Ubuntu)"
            )
        if not self._disk.exists():
            self._make_disk(None)
        started, clock = time.time(), time.monotonic()
        self._on_step("booting")
        identity = str(uuid.uuid4())
        port = self._power_on(image, identity)
        vm = RunningBoard(
            name=self.name,
            pid=int((self.directory / "pid").read_text()),
            port=port,
            uuid=identity,
            kept=kept,
            started=started,
            seconds_to_ssh=0.0,
            directory=self.directory,
        )
        try:
            shutil.copy(image.client_key, self.directory / "client")
            line = f"[{ADDRESS}]:{port} {image.host_key}\n"
            (self.directory / "known_hosts").write_text(line, encoding="utf-8")
            self._await_ssh(vm, clock + BOOT_SECONDS)
            vm = replace(vm, seconds_to_ssh=time.monotonic() - clock)
            vm.write()
        except BaseException:
            vm.kill()
            raise
        return vm

    def _power_on(self, image: Image, identity: str) -> int:
        """Starts QEMU; the port. Another program may take a free port before QEMU does."""
        for attempt in range(1, _PORT_TRIES + 1):
            with socket.create_server((ADDRESS, 0)) as probe:
                port = int(probe.getsockname()[1])
            try:
                run(self.command(image, port, identity), cwd=self.directory)
                break
            except ProcessError as error:
                if "host forwarding" not in error.details or attempt == _PORT_TRIES:
                    raise EmulationError(
                        f"{self.name} does not start: {error.message}", details=error.details
                    ) from error
        return port

    def _await_ssh(self, vm: RunningBoard, deadline: float) -> None:
        """Returns when dropbear sends its banner. QEMU accepts connections long before that."""
        while vm.is_alive():
            with (
                contextlib.suppress(OSError),
                socket.create_connection((ADDRESS, vm.port), timeout=1) as line,
            ):
                if line.recv(4) == b"SSH-":
                    return
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        how = "does not answer" if vm.is_alive() else "ended"
        console = (self.directory / "console.log").read_text(errors="replace")
        raise EmulationError(
            f"{self.name} {how} while booting; {self.directory}/console.log ends with",
            details="\n".join(console.splitlines()[-10:]),
        )

    @property
    def _disk(self) -> Path:
        return self.directory / "disk.ext4"

    def _make_disk(self, home: Path | None) -> None:
        """A file system for the board's home directory, with the content of `home`."""
        if self._disk.exists():
            raise EmulationError(
                f"{self.name} has a disk already; remove it: "
                f"colibri-deploy emulate stop --erase {self.name}"
            )
        program = shutil.which("mke2fs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is None:
            raise EmulationError(
                f"{self.name} needs mke2fs: install the package e2fsprogs (Debian, Ubuntu)"
            )
        new = self.directory / "disk.new"
        with new.open("wb") as file:
            file.truncate(self._options.disk_mib << 20)
        content = ("-d", home) if home is not None else ()
        try:  # with few inodes, so that there is little to write
            run((program, "-q", "-t", "ext4", "-N", "1024", *content, new))
        except ProcessError as error:
            raise EmulationError(
                f"the disk of {self.name} cannot be made: {error.message}", details=error.details
            ) from error
        new.replace(self._disk)


def _shut_down(vm: RunningBoard) -> None:
    """What was written to its disk stays. Kills it where it does not listen."""
    root = replace(vm.board, user="root")
    with (
        contextlib.suppress(ColibriDeployError),
        Connection.open(root, vm.known_hosts) as connection,
    ):
        connection.run("sync; poweroff -f", timeout_s=_STOP_SECONDS)
    vm.await_end(_STOP_SECONDS)
