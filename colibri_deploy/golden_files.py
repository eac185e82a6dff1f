# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The golden model on a board: two files in the store there, which belong to no release.

The first smoke test sends them, as a push sends files: what a cut has left is not sent again, and
they are verified on the board. Pushes leave them there, an undeployment removes them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from colibri_deploy.board_lock import board_lock
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.errors import BoardFullError, ConversionError, TransferError
from colibri_deploy.golden_model import SHA256, convert_golden_model
from colibri_deploy.model_dir import CONFIG_NAME, MODEL_NAME
from colibri_deploy.push import Progress
from colibri_deploy.store import ENGINE_NAME, BoardState, Item, Store, Stored

_ITEMS = tuple(Item(name, sha256) for name, sha256 in SHA256.items())


def golden_arguments(root: str) -> tuple[str, ...]:
    """The engine's arguments for the golden model in the store below `root`, on the board."""
    model, config = (f"{root}/store/{SHA256[name]}" for name in (MODEL_NAME, CONFIG_NAME))
    return ("--model", model, "--config", config)


def bring_golden_model(shell: BoardShell, progress: Progress) -> int:
    """Sends what the board lacks of the golden model; the bytes sent.

    What is there already is not verified. Raises BoardBusyError, BoardFullError, TransferError,
    ConversionError and the errors of `Store`.
    """
    state, stored = Store(shell).look(_ITEMS)
    if all(stored[item.sha256].whole is not None for item in _ITEMS):
        return 0
    with tempfile.TemporaryDirectory(prefix="colibri-") as scratch:
        model = Path(scratch) / "model"
        convert_golden_model(model)
        items = [Item.read(name, model / name) for name in SHA256]
        for item in items:
            if item.sha256 != SHA256[item.name]:
                raise ConversionError(
                    f"the golden model has another {item.name} here than everywhere else: "
                    "is the installation of colibri-deploy damaged?"
                )
        with board_lock(shell, state.root, progress.wait_for) as nonce:
            store = Store(shell, nonce)
            state, stored = store.look(items)
            return sum(_place(store, state, item, stored[item.sha256], progress) for item in items)


def remove_damaged(shell: BoardShell, state: BoardState, progress: Progress) -> None:
    """Removes the files of the golden model that are damaged. Raises as `bring_golden_model`."""
    with board_lock(shell, state.root, progress.wait_for) as nonce:
        store = Store(shell, nonce)
        for item in _ITEMS:
            store.seal(item, _engine(state))


def _place(store: Store, state: BoardState, item: Item, stored: Stored, progress: Progress) -> int:
    """Brings one file into the store, whole and verified; the bytes sent."""
    if stored.whole is not None:
        return 0
    start = stored.partial if stored.partial <= item.bytes else 0
    if state.free_bytes is not None and item.bytes - start > state.free_bytes:
        raise BoardFullError(
            f"no room for the golden model: {item.bytes - start:,} bytes are to be sent, "
            f"{state.free_bytes:,} are free under {state.root}"
        )
    sent = 0
    for offset in (start, 0):
        progress.start("sending the golden model", item.bytes - offset)
        sent += store.send(item, offset, progress.advance)
        if store.seal(item, _engine(state)):
            return sent
    raise TransferError(f"the golden model's {item.name} arrives damaged, though sent twice")


def _engine(state: BoardState) -> Item:
    return Item(ENGINE_NAME, state.files[ENGINE_NAME])
