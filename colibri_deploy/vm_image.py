# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Images of emulated boards: Debian's kernel, and an initramfs with BusyBox and dropbear.

One image serves all boards of an architecture. It lies in the user's cache directory under a key of
all that it is made of: the packages' checksums and the text of this file and initramfs.py. The host
key and the one client key that is let in are made with it.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import lzma
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from colibri_deploy import initramfs
from colibri_deploy.debian import Member, Package, Suite, members
from colibri_deploy.errors import EmulationError
from colibri_deploy.initramfs import Initramfs

USER = "colibri"  # who logs in; root may, too, with the same key
DISK = "vda"  # where the home directory of USER lies, an ext4
_UID = 1000

_USERLAND = (
    "busybox-static",
    "dropbear-bin",
    "libc6",  # this and the rest is what dropbear is linked with
    "libcrypt1",
    "libgmp10",
    "libtomcrypt1",
    "libtommath1",
    "zlib1g",
)
_PROGRAMS = {"/bin/busybox": "bin/busybox", "/sbin/dropbear": "bin/dropbear"}
_LIBRARY = re.compile(
    r"/lib(64)?/([^/]+-linux-gnu/)?"
    r"(ld-linux[^/]*|lib(c|crypt|gmp|tomcrypt|tommath|z)\.so\.[^/]+)"
)
# What the kernels have as modules, or built in: the network, the disk, and ext4.
_MODULES = (
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_mmio",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "crc16",
    "mbcache",
    "jbd2",
    "crc32c_generic",
    "ext4",
)
_MODULE = re.compile(r"/lib/modules/.*/([^/]+)\.ko(\.xz)?")

_INITTAB = """\
::sysinit:/etc/rc
::respawn:/bin/dropbear -F -E -s -m -r /etc/dropbear/dropbear_ed25519_host_key
"""
_RC = """\
#!/bin/busybox sh
# Run by init before anything else. QEMU's user network is always the same.
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
for module in {modules}; do
    insmod /lib/modules/$module.ko
done
hostname board
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 up
route add default gw 10.0.2.2
mount -t ext4 -o noatime /dev/{disk} /home/{user} || echo "no disk"
mkdir -p /home/{user}/.ssh
cp /root/.ssh/authorized_keys /home/{user}/.ssh/
chown -R {user}:{user} /home/{user}
chmod 700 /home/{user}/.ssh
"""


@dataclass(frozen=True)
class Recipe:
    """Where the parts of an architecture's image come from."""

    debian_arch: str
    suite: str
    kernel: str  # the package that depends on the current kernel


RECIPES = {
    "aarch64": Recipe("arm64", "bookworm", "linux-image-cloud-arm64"),
    "riscv64": Recipe("riscv64", "trixie", "linux-image-riscv64"),  # the first with riscv64
    "x86_64": Recipe("amd64", "bookworm", "linux-image-cloud-amd64"),
}


@dataclass(frozen=True)
class Image:
    """A kernel and an initramfs, and the keys to them."""

    directory: Path
    arch: str
    packages: tuple[Package, ...]

    @property
    def kernel(self) -> Path:
        """Linux, as QEMU loads it."""
        return self.directory / "kernel"

    @property
    def initrd(self) -> Path:
        """The initramfs."""
        return self.directory / "initramfs"

    @property
    def client_key(self) -> Path:
        """The private key that is let in."""
        return self.directory / "client"

    @property
    def host_key(self) -> str:
        """The public key that the board shows: type and blob, as in known_hosts."""
        return (self.directory / "host.pub").read_text(encoding="utf-8").strip()


def cache_directory() -> Path:
    """Where images lie."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "colibri" / "vm"


def find_image(arch: str, cache: Path) -> Image | None:
    """The image of an architecture that this version has built, if there is one."""
    for path in sorted(cache.glob(f"{arch}-*/image.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["recipe"] == _recipe_hash(arch):
            packages = tuple(Package(**one) for one in record["packages"])
            return Image(path.parent, arch, packages)
    return None


def build_image(arch: str, cache: Path, on_step: Callable[[str], None]) -> tuple[Image, bool]:
    """Makes the image of an architecture, unless the one that is there is made of the same.

    Returns it, and whether it is new; an older one is removed. Raises DownloadError where packages
    cannot be had, and EmulationError.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"lock-{arch}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt's directory and the old image are one builder's
        return _build(arch, cache, on_step)


def _build(arch: str, cache: Path, on_step: Callable[[str], None]) -> tuple[Image, bool]:
    recipe = RECIPES[arch]
    suite = Suite(recipe.suite, recipe.debian_arch, cache / f"apt-{arch}")
    on_step(f"looking for packages in Debian {recipe.suite}")
    suite.update()
    kernel = suite.dependency(recipe.kernel, "linux-image-")
    packages = tuple(suite.find((kernel, *_USERLAND)))
    image = Image(cache / f"{arch}-{_key(arch, packages)}", arch, packages)
    if find_image(arch, cache) == image:
        return image, False
    size = sum(package.bytes for package in packages)
    on_step(f"downloading {kernel} and {len(packages) - 1} other packages, {size:,} bytes")
    debs = suite.download(packages)
    on_step("packing")
    with tempfile.TemporaryDirectory(prefix=f".{arch}-", dir=cache) as scratch:
        made = Path(scratch) / "image"
        made.mkdir(mode=0o700)
        _pack(made, debs)
        record = {
            "recipe": _recipe_hash(arch),
            "packages": [asdict(package) for package in packages],
        }
        (made / "image.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        for old in cache.glob(f"{arch}-*"):
            shutil.rmtree(old)
        made.rename(image.directory)
    suite.clean()
    return image, True


def _recipe_hash(arch: str) -> str:
    texts = [Path(module).read_bytes() for module in (__file__, initramfs.__file__)]
    return hashlib.sha256(b"\0".join((arch.encode(), *texts))).hexdigest()


def _key(arch: str, packages: Sequence[Package]) -> str:
    sums = [_recipe_hash(arch), *(package.sha256 for package in packages)]
    return hashlib.sha256(" ".join(sums).encode()).hexdigest()[:16]


def _pack(directory: Path, debs: Sequence[Path]) -> None:
    """Writes an image's files; the first package is the kernel's."""
    archive = Initramfs()
    for path in ("dev", "etc", "home", "proc", "run", "sys", "tmp", "var/log"):
        archive.directory(path)
    archive.directory("tmp", 0o1777)
    archive.directory("root", 0o700)
    archive.directory(f"home/{USER}", owner=_UID)
    archive.device("dev/console", 5, 1)
    archive.device("dev/null", 1, 3)
    for one in ("sbin", "usr"):
        archive.link(one, "bin" if one == "sbin" else ".")  # /usr/lib is /lib, and so on
    (directory / "kernel").write_bytes(_add_kernel(archive, debs[0]))
    for deb in debs[1:]:
        for member in members(deb, _is_userland):
            _add_userland(archive, member)
    _add_settings(archive)
    _add_keys(archive, directory)
    (directory / "initramfs").write_bytes(archive.pack())


def _merged(path: str) -> str:
    """A path as if /usr were /, whether the suite has merged them or not."""
    return path.removeprefix("/usr")


def _is_userland(path: str) -> bool:
    return _merged(path) in _PROGRAMS or _LIBRARY.fullmatch(_merged(path)) is not None


def _add_userland(archive: Initramfs, member: Member) -> None:
    path = _merged(member.path)
    if member.link is None:
        archive.file(_PROGRAMS.get(path, path[1:]), member.data, 0o755)
    elif not path.endswith("/busybox"):
        archive.link(path[1:], _merged(member.link))


def _add_kernel(archive: Initramfs, deb: Path) -> bytes:
    """Adds the modules, and returns Linux itself."""
    kernel = b""
    known = set()
    modules = {}

    def wanted(path: str) -> bool:
        match = _MODULE.fullmatch(_merged(path))
        if match:
            known.add(match[1].replace("-", "_"))
        return path.startswith("/boot/vmlinu") or (
            match is not None and match[1].replace("-", "_") in _MODULES
        )

    for member in members(deb, wanted):
        match = _MODULE.fullmatch(_merged(member.path))
        if match is None:
            kernel = member.data
        else:
            data = lzma.decompress(member.data) if match[2] else member.data
            modules[match[1].replace("-", "_")] = data
    if not kernel:
        raise EmulationError(f"{deb.name} has no kernel")
    order = _in_order(modules, known)
    for name in order:
        archive.file(f"lib/modules/{name}.ko", modules[name])
    rc = _RC.format(modules=" ".join(order), disk=DISK, user=USER)
    archive.file("etc/rc", rc.encode(), 0o755)
    return kernel


def _in_order(modules: dict[str, bytes], known: set[str]) -> list[str]:
    """The modules, each after those that it names in its `depends=`. Raises EmulationError."""
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in known:
            return  # done, or built in
        if name not in modules:
            raise EmulationError(f"the kernel needs the module {name}, which is not in _MODULES")
        match = re.search(rb"\0depends=([^\0]*)\0", modules[name])
        for needed in match[1].decode().split(",") if match else []:
            add(needed.replace("-", "_"))
        order.append(name)

    for name in _MODULES:
        add(name)
    return order


def _add_settings(archive: Initramfs) -> None:
    user = f"{USER}:x:{_UID}:"
    for path, text in (
        ("passwd", f"root:x:0:0:root:/root:/bin/sh\n{user}{_UID}::/home/{USER}:/bin/sh\n"),
        ("group", f"root:x:0:\n{user}\n"),
        ("shadow", f"root:*:1::::::\n{USER}:*:1::::::\n"),
        ("shells", "/bin/sh\n"),
        ("hosts", "127.0.0.1 localhost\n"),
        ("inittab", _INITTAB),
    ):
        archive.file(f"etc/{path}", text.encode(), 0o600 if path == "shadow" else 0o644)
    archive.link("init", "bin/busybox")
    archive.link("bin/sh", "busybox")


def _add_keys(archive: Initramfs, directory: Path) -> None:
    """Makes the host key and the client key; beside the image lie the halves that connect."""
    host, client = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    archive.directory("root/.ssh", 0o700)
    archive.file("root/.ssh/authorized_keys", _public(client), 0o600)
    archive.file("etc/dropbear/dropbear_ed25519_host_key", _dropbear_key(host), 0o600)
    (directory / "host.pub").write_bytes(_public(host))
    pem = client.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    path = directory / "client"
    path.touch(mode=0o600)
    path.write_bytes(pem)


def _public(key: Ed25519PrivateKey) -> bytes:
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form) + b"\n"


def _dropbear_key(key: Ed25519PrivateKey) -> bytes:
    """A private key as dropbear keeps it: the type, then seed and public key, each a string."""
    kind, blob = _public(key).split()[:2]
    public = base64.b64decode(blob)[-32:]
    secret = key.private_bytes_raw() + public
    return b"".join(len(part).to_bytes(4, "big") + part for part in (kind, secret))
