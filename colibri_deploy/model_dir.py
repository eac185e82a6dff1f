# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A model's directory: it appears under its name whole, or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from colibri_deploy.errors import ConversionError

MODEL_NAME = "model.bin"
CONFIG_NAME = "config.json"


def check_destination(destination: Path, force: bool) -> None:
    """Raise ConversionError unless a model may be written to `destination`.

    Fine are a path that does not exist, an empty directory, and with `force` a directory that
    holds a model and nothing else.
    """
    try:
        names = sorted(path.name for path in destination.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConversionError(
            f"{destination} cannot be used: {error.strerror}; choose another name"
        ) from None
    foreign = [name for name in names if name not in (MODEL_NAME, CONFIG_NAME)]
    if not foreign and names and MODEL_NAME not in names:
        foreign = names
    if foreign:
        raise ConversionError(
            f"{destination} is no model directory: it holds {foreign[0]}; choose another name"
        )
    if names and not force:
        raise ConversionError(f"{destination} holds a model already; --force replaces it")


@contextlib.contextmanager
def new_model_directory(destination: Path, force: bool = False) -> Iterator[Path]:
    """A directory to write a model in, which becomes `destination` when the block ends well.

    It lies beside the destination as `.<name>.partial` and is removed when the block raises. If
    the process is killed it stays, never under the final name, and the next conversion to the
    same destination removes it. A model that is replaced is moved to `.<name>.old` first and
    removed after; a kill between the two renames leaves it there.

    Raises ConversionError if the destination holds something else or is being written by another
    process.
    """
    destination = destination.resolve()
    check_destination(destination, force)
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.partial")
    old = destination.with_name(f".{destination.name}.old")
    lock = _lock(partial)
    try:
        _clear(partial)
        yield partial
        _sync(partial)
        check_destination(destination, force)
        replaced = destination.exists()
        if replaced:
            if old.exists():
                shutil.rmtree(old)
            destination.rename(old)
        try:
            partial.rename(destination)
        except OSError:
            if replaced:
                old.rename(destination)
            raise
        _sync(destination.parent)
        if old.exists():
            shutil.rmtree(old)
    finally:
        if partial.exists() and os.path.samestat(partial.stat(), os.fstat(lock)):
            shutil.rmtree(partial)
        os.close(lock)


def _lock(partial: Path) -> int:
    """Create the directory and lock it; the lock ends with the process at the latest."""
    while True:
        partial.mkdir(exist_ok=True)
        descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), partial.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ConversionError(
                f"another conversion writes {partial}; wait for it or choose another name"
            ) from None
        except FileNotFoundError:
            pass  # renamed or removed by the process that had the lock
        os.close(descriptor)


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
