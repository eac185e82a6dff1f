# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What /proc and /etc of boards say, as small trees to plant, and what is to be read from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from ssh_servers import NewKey, Server

_A72 = "fp asimd evtstrm crc32 cpuid"
_A76 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
    "asimddp"
)
_X86 = "fpu tsc msr cx8 sep mtrr cmov mmx fxsr sse sse2 ht syscall nx lm pni ssse3 sse4_1 sse4_2"
_HASWELL = f"{_X86} fma movbe popcnt aes xsave avx f16c rdrand abm bmi1 avx2 bmi2 erms"


@dataclass(frozen=True)
class Planted:
    """One board: what it shows, and what is to be found."""

    arch: str
    model: str | None
    compatible: tuple[str, ...]
    kernel: str
    ram_kib: int
    cpuinfo: str
    cpu: str
    isa: str | None
    targets: tuple[str, ...]
    page_kib: int = 4


def _arm(features: str, *parts: str, name: str = "") -> str:
    return "".join(
        f"processor\t: {number}\n{name}BogoMIPS\t: 108.00\nFeatures\t: {features}\n"
        f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\n"
        "CPU revision\t: 3\n\n"
        for number, part in enumerate(parts)
    )


def _riscv(isa: str, uarch: str, count: int, first: int = 0) -> str:
    return "".join(
        f"processor\t: {number}\nhart\t\t: {number + first}\nisa\t\t: {isa}\nmmu\t\t: sv39\n"
        f"uarch\t\t: {uarch}\n\n"
        for number in range(count)
    )


def _x86(name: str, flags: str, count: int) -> str:
    return "".join(
        f"processor\t: {number}\nvendor_id\t: GenuineIntel\nmodel name\t: {name}\n"
        f"flags\t\t: {flags}\nbugs\t\t:\n\n"
        for number in range(count)
    )


PLANTED = {
    "pi4": Planted(
        arch="aarch64",
        model="Raspberry Pi 4 Model B Rev 1.1",
        compatible=("raspberrypi,4-model-b", "brcm,bcm2711"),
        kernel="6.12.25+rpt-rpi-v8",
        ram_kib=3882340,
        cpuinfo=_arm(_A72, *["0xd08"] * 4)
        + "Revision\t: c03111\nModel\t\t: Raspberry Pi 4 Model B Rev 1.1\n",
        cpu="4 x Cortex-A72",
        isa="neon",
        targets=("rpi4",),
    ),
    "pi5": Planted(
        arch="aarch64",
        model="Raspberry Pi 5 Model B Rev 1.0",
        compatible=("raspberrypi,5-model-b", "brcm,bcm2712"),
        kernel="6.12.25+rpt-rpi-2712",
        ram_kib=8245248,
        cpuinfo=_arm(_A76, *["0xd0b"] * 4),
        cpu="4 x Cortex-A76",
        isa="neon_dotprod",
        targets=("rpi5",),
        page_kib=16,
    ),
    "board with a Compute Module 4": Planted(
        arch="aarch64",
        model="A carrier for the Compute Module 4",
        compatible=("example,carrier", "brcm,bcm2711"),
        kernel="6.6.51",
        ram_kib=1889172,
        cpuinfo=_arm(_A72, *["0xd08"] * 4),
        cpu="4 x Cortex-A72",
        isa="neon",
        targets=("rpi-cm4", "rpi4"),
    ),
    "orin nano": Planted(
        arch="aarch64",
        model="NVIDIA Jetson Orin Nano Developer Kit",
        compatible=("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"),
        kernel="5.15.148-tegra",
        ram_kib=7802336,
        cpuinfo=_arm(_A76, *["0xd42"] * 6, name="model name\t: ARMv8 Processor rev 1 (v8l)\n"),
        cpu="6 x Cortex-A78AE",
        isa="neon_dotprod",
        targets=("jetson-orin-nano",),
    ),
    "rock 5b": Planted(
        arch="aarch64",
        model="Radxa ROCK 5B",
        compatible=("radxa,rock-5b", "rockchip,rk3588"),
        kernel="6.1.84-vendor-rk35xx",
        ram_kib=16170148,
        cpuinfo=_arm(_A76, *["0xd05"] * 4, *["0xd0b"] * 4),
        cpu="4 x Cortex-A55, 4 x Cortex-A76",
        isa="neon_dotprod",
        targets=("rk3588",),
    ),
    "bpi-f3": Planted(
        arch="riscv64",
        model="Banana Pi BPI-F3",
        compatible=("bananapi,bpi-f3", "spacemit,k1"),
        kernel="6.16.0",
        ram_kib=3900636,
        cpuinfo=_riscv("rv64imafdcv_zicbom_zicboz_zba_zbb_zbs_zve32f", "spacemit,x60", 8),
        cpu="8 x spacemit,x60",
        isa="rvv",
        targets=("bpi-f3",),
    ),
    "a K1 with the vendor's kernel": Planted(
        arch="riscv64",
        model="spacemit k1-x deb1 board",
        compatible=("spacemit,k1-x",),
        kernel="6.1.15",
        ram_kib=3900636,
        cpuinfo=_riscv("rv64imafdcv_sscofpmf_sstc_svpbmt_zicbom", "spacemit,x60", 8),
        cpu="8 x spacemit,x60",
        isa=None,  # before Linux 6.5 the letter V may be a draft
        targets=("bpi-f3", "milkv-jupiter"),
    ),
    "visionfive2": Planted(
        arch="riscv64",
        model="StarFive VisionFive 2 v1.3B",
        compatible=("starfive,visionfive-2-v1.3b", "starfive,jh7110"),
        kernel="6.12.10",
        ram_kib=8133912,
        cpuinfo=_riscv("rv64imafdc_zicntr_zicsr_zifencei_zihpm", "sifive,u74-mc", 4, first=1),
        cpu="4 x sifive,u74-mc",
        isa="scalar",
        targets=("visionfive2",),
    ),
    "an aarch64 server": Planted(
        arch="aarch64",
        model="Virtual machine",
        compatible=("linux,dummy-virt",),
        kernel="6.1.0-37-arm64",
        ram_kib=16384000,
        cpuinfo=_arm(f"{_A76} i8mm bf16", "0xd40", "0xd40"),
        cpu="2 x CPU part 0xd40",
        isa="neon_i8mm",
        targets=(),
    ),
    "haswell": Planted(
        arch="x86_64",
        model="OptiPlex 9020",
        compatible=(),
        kernel="6.1.0-37-amd64",
        ram_kib=16335840,
        cpuinfo=_x86("Intel(R) Core(TM) i7-4770 CPU @ 3.40GHz", _HASWELL, 8),
        cpu="8 x Intel(R) Core(TM) i7-4770 CPU @ 3.40GHz",
        isa="avx2",
        targets=("haswell",),
    ),
    "nehalem": Planted(
        arch="x86_64",
        model=None,
        compatible=(),
        kernel="6.1.0-37-amd64",
        ram_kib=6087000,
        cpuinfo=_x86("Intel(R) Core(TM) i7 CPU 920 @ 2.67GHz", _X86, 8),
        cpu="8 x Intel(R) Core(TM) i7 CPU 920 @ 2.67GHz",
        isa="sse42",
        targets=("x86-64",),
    ),
    "ice lake": Planted(
        arch="x86_64",
        model="PowerEdge R650",
        compatible=(),
        kernel="6.12.0",
        ram_kib=131754708,
        cpuinfo=_x86(
            "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz",
            f"{_HASWELL} avx512f avx512dq avx512bw avx512vl avx512_vnni",
            2,
        ),
        cpu="2 x Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz",
        isa="avx512_vnni",
        targets=("x86-avx512",),
    ),
}


def plant(folder: Path, name: str, path: str) -> dict[str, str]:
    """Makes the tree of a board, and the environment in which detect.sh finds it.

    `path` is the PATH for all other programs.
    """
    board = PLANTED[name]
    files = {
        "proc/cpuinfo": board.cpuinfo,
        "proc/meminfo": f"MemTotal:       {board.ram_kib} kB\nMemFree:          123456 kB\n"
        "SwapTotal:        102396 kB\n",
        "proc/sys/kernel/osrelease": f"{board.kernel}\n",
        "proc/self/smaps": "55550000-55560000 r-xp 00000000 b3:02 1 /usr/bin/sed\n"
        f"KernelPageSize:       {board.page_kib} kB\nMMUPageSize: {board.page_kib} kB\n",
        "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian"\n',
    }
    if board.compatible:
        files["proc/device-tree/model"] = f"{board.model}\0"
        files["proc/device-tree/compatible"] = "".join(f"{one}\0" for one in board.compatible)
    else:
        files["sys/class/dmi/id/product_name"] = f"{board.model or ''}\n"
    for place, content in files.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    uname = folder / "bin" / "uname"
    uname.parent.mkdir()
    uname.write_text(f"#!/bin/sh\necho {board.arch}\n")
    uname.chmod(0o755)
    return {"COLIBRI_SYSROOT": str(folder), "PATH": f"{uname.parent}:{path}"}


# Where all is well, by file: what the board says of its state.
_CPU = "sys/devices/system/cpu"
_ZONE = "sys/class/thermal/thermal_zone0"
_COOLER = "sys/class/thermal/cooling_device0"
_SENSOR = "sys/class/hwmon/hwmon1"
HEALTHY = {
    "proc/mounts": "sysfs /sys sysfs rw,nosuid,nodev,noexec 0 0\n"
    "/dev/mmcblk0p2 / ext4 rw,noatime 0 0\n"
    "/dev/mmcblk0p1 /boot/firmware vfat ro 0 0\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/self/limits": "Limit                     Soft Limit           Hard Limit\n"
    "Max processes             96364                96364                processes\n"
    "Max locked memory         8388608              8388608              bytes\n",
    f"{_CPU}/present": "0-3\n",
    f"{_CPU}/online": "0-3\n",
    **{
        f"{_CPU}/cpu{number}/cpufreq/{name}": f"{value}\n"
        for number in range(4)
        for name, value in (
            ("scaling_driver", "cpufreq-dt"),
            ("scaling_governor", "ondemand"),
            ("scaling_max_freq", "2400000"),
            ("cpuinfo_max_freq", "2400000"),
        )
    },
    f"{_ZONE}/type": "cpu-thermal\n",
    f"{_ZONE}/temp": "48300\n",
    f"{_ZONE}/trip_point_0_type": "critical\n",
    f"{_ZONE}/trip_point_0_temp": "110000\n",
    f"{_ZONE}/trip_point_1_type": "passive\n",
    f"{_ZONE}/trip_point_1_temp": "80000\n",
    f"{_COOLER}/type": "cpufreq-cpu0\n",
    f"{_COOLER}/cur_state": "0\n",
    "sys/class/hwmon/hwmon0/name": "cpu_thermal\n",
    f"{_SENSOR}/name": "rpi_volt\n",
    f"{_SENSOR}/in0_lcrit_alarm": "0\n",
}


def plant_state(folder: Path, changes: Mapping[str, str]) -> None:
    """Adds to the tree of a board that it is well but for `changes`.

    A key in meminfo or bin/PROGRAM is such a line or program; all others are files of the tree.
    """
    meminfo = folder / "proc/meminfo"
    free = "MemAvailable: 7000000 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"
    meminfo.write_text(meminfo.read_text() + free)
    for place, content in {**HEALTHY, **changes}.items():
        if place.startswith("meminfo "):
            field = place.removeprefix("meminfo ")
            kept = [line for line in meminfo.read_text().splitlines() if field not in line]
            meminfo.write_text("\n".join([*kept, f"{field}: {content}", ""]))
            continue
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(0o755)


@pytest.fixture
def planted_server(
    ssh_server: Callable[..., Server], new_key: NewKey, tmp_path: Path
) -> Callable[..., Server]:
    """`planted_server(kind, name)` is a server on a board of PLANTED; ~/key there lets in.

    With `state` it says how it is, and that is well but for these changes, see `plant_state`.
    """
    key = new_key("key")

    def start(kind: str, planted: str, state: Mapping[str, str] | None = None) -> Server:
        wrapper = tmp_path / f"as-planted-{kind}"
        folder = tmp_path / f"planted {kind}"
        env = plant(folder, planted, os.environ["PATH"])
        if state is not None:
            plant_state(folder, state)
        lines = [f"export {name}='{value}'" for name, value in env.items()]
        script = "\n".join(
            ["#!/bin/sh", "echo from the rc file", *lines, 'eval "$SSH_ORIGINAL_COMMAND"']
        )
        wrapper.write_text(script + "\n")
        wrapper.chmod(0o755)
        options = (f"ForceCommand {wrapper}",) if kind == "openssh" else ("-c", str(wrapper))
        server = ssh_server(kind, *options)
        server.lets_in(key)
        return server

    return start
