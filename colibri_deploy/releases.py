# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What is done with the releases on a board but pushing: going back to one, and removing all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from colibri_deploy.board_lock import board_lock
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.errors import ForeignFilesError, ReleaseError
from colibri_deploy.ssh import Connection
from colibri_deploy.store import Store

_NAMED = 5  # foreign files in a message


@dataclass(frozen=True)
class Rollback:
    """A release to go back to; every file of it was found to be what was pushed."""

    root: str  # directory on the board
    release: str  # id
    current: str | None  # release to be replaced; it can be gone back to in turn
    kept: tuple[str, ...]  # ids that `to` may name, the last one first


@dataclass(frozen=True)
class Undeployment:
    """What an undeployment removes."""

    root: str  # directory on the board
    bytes: int | None  # on the disk; None: nothing is there
    releases: tuple[str, ...]  # ids, the current one first


def plan_rollback(connection: Connection, to: str | None) -> Rollback:
    """The release `to`, or the one that was current before; nothing is written.

    Raises ReleaseError if there is none, or if it is damaged, and the errors of `Store`.
    """
    store = Store(BoardShell(connection))
    state = store.probe()
    kept = state.previous
    name = connection.board.name
    if to is None and not kept:
        raise ReleaseError(f"{name} has no release before {state.current or 'the first'}: push")
    release = kept[0] if to is None else to
    if release not in (*kept, state.current):
        others = ", ".join(kept) or "none"
        raise ReleaseError(f"{name} has no release {release}; before the current one: {others}")
    damaged = store.damaged(release)
    if damaged:
        raise ReleaseError(
            f"{', '.join(damaged)} of release {release} is damaged on {name}; "
            "the current release stays: push what you want there"
        )
    return Rollback(state.root, release, state.current, kept)


def roll_back(
    connection: Connection,
    plan: Rollback,
    on_wait: Callable[[str], None] = lambda owner: None,
    *,
    is_unfit: bool = False,
) -> None:
    """Makes the planned release the current one.

    If the one before `is_unfit` it is dropped: nothing goes back to it. Otherwise it can be gone
    back to in turn.
    `on_wait` is that of `board_lock`. Raises BoardBusyError, ReleaseError if another deploy has
    changed the releases since, and the errors of `Store`.
    """
    shell = BoardShell(connection)
    with board_lock(shell, plan.root, on_wait) as nonce:
        store = Store(shell, nonce)
        if store.probe().current != plan.current:
            raise ReleaseError(
                f"another deploy changed the current release of {connection.board.name}: try again"
            )
        store.roll_back(plan.release)
        if is_unfit and plan.current is not None:
            store.drop(plan.current)


def plan_undeploy(connection: Connection) -> Undeployment:
    """What is on a board; nothing is written.

    Raises ForeignFilesError if something is there that no deploy has put there, and the errors of
    `Store`.
    """
    store = Store(BoardShell(connection))
    state = store.probe()
    contents = store.contents()
    if contents.foreign:
        more = len(contents.foreign) - _NAMED
        raise ForeignFilesError(
            f"{state.root} on {connection.board.name} holds what no deploy has put there: "
            f"{', '.join(contents.foreign[:_NAMED])}{f' and {more} more' if more > 0 else ''}; "
            "nothing was removed, move it away first"
        )
    current = (state.current,) if state.current else ()
    return Undeployment(state.root, contents.bytes, (*current, *state.previous))


def undeploy(
    connection: Connection, plan: Undeployment, on_wait: Callable[[str], None] = lambda owner: None
) -> bool:
    """Removes everything that deploys have put on a board; whether the directory is gone, too.

    `on_wait` is that of `board_lock`. Raises BoardBusyError and the errors of `Store`.
    """
    shell = BoardShell(connection)
    with board_lock(shell, plan.root, on_wait) as nonce:
        return Store(shell, nonce).undeploy()
