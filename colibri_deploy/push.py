# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Pushes an engine, and a model with it, to a board: what is there is not sent again.

The engine goes first, because it is what verifies the other files on the board. Until the switch of
one symbolic link, the release that was current before stays so; what no release needs any more is
removed after it. A line that breaks on the way costs time only: the push connects again, and goes
on with what the board lacks then.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from colibri_deploy import golden_model
from colibri_deploy.board_lock import board_lock
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.chunks import CHUNK_BYTES
from colibri_deploy.errors import (
    BoardArchError,
    BoardFullError,
    ConnectionLostError,
    DowngradeError,
    FileMissingError,
    SignatureError,
    TransferError,
)
from colibri_deploy.model import Model
from colibri_deploy.model_dir import CONFIG_NAME, MODEL_NAME
from colibri_deploy.release.released import ReleasedEngine
from colibri_deploy.release.semver import is_older, is_version
from colibri_deploy.release.signature import parse_key
from colibri_deploy.ssh import Connection
from colibri_deploy.store import (
    ENGINE_NAME,
    Assembly,
    BoardState,
    Item,
    Pruned,
    Store,
    Stored,
    release_id,
)
from colibri_deploy.targets import Target, machine_arch
from colibri_deploy.upload import n_connections, upload

PATIENCE_SECONDS = 60.0  # how long a board is tried that cannot be reached any more
_WORTH_CHUNKS = 16  # fewer are sent sooner than the board is asked for them
_MOST_BREAKS = 4  # of the line one after the other, without a byte more on the board
_FIRST_WAIT_SECONDS = 0.2  # after a break; doubled after the next


class Progress(Protocol):
    """Told how far a step is."""

    def start(self, what: str, total: int) -> None:
        """A step begins that moves `total` bytes; 0: nobody counts them."""

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more are done."""

    def wait_for(self, owner: str) -> None:
        """Somebody else deploys, or did so until he died; it will be known in seconds."""


@dataclass(frozen=True)
class PlannedFile:
    """A file of the release, and how much of it the board has."""

    item: Item
    stored: Stored
    assembly: Assembly | None = None  # from the version before, where that is less to send
    sent: Stored | None = None  # how much the board has of what is sent for that
    has_chunks: bool = False  # whether the board has the list of them

    @property
    def upload(self) -> Item:
        """What is sent."""
        return self.assembly.sent if self.assembly else self.item

    @property
    def there(self) -> Stored:
        """How much the board has of it."""
        return self.sent or self.stored

    @property
    def to_send(self) -> int:
        """Bytes to send, if nothing on the board is damaged."""
        if self.item.path is None or self.stored.whole is not None:
            return 0
        return self.there.left(self.upload.bytes)

    @property
    def resumed_at(self) -> int:
        """Bytes that are there of an upload that was cut, if that is to go on."""
        return self.upload.bytes - self.to_send if self.to_send else 0

    @property
    def to_copy(self) -> int:
        """Bytes that the board writes to put the file together."""
        return self.stored.left(self.item.bytes) if self.assembly else 0


@dataclass(frozen=True)
class Origin:
    """The release that an engine is from, and what the board says to it."""

    engine: ReleasedEngine
    replaces: str | None  # version on the board, where it says one
    may_be_downgrade: bool  # the board has an engine that says no version
    is_first_key: bool  # the board trusts no key yet, and this one from then on


@dataclass(frozen=True)
class PushPlan:
    """What a push will do; nothing is written yet."""

    target: Target
    state: BoardState
    files: tuple[PlannedFile, ...]  # the engine first
    release: str  # id
    origin: Origin | None = None  # None: the engine was built here

    @property
    def to_send(self) -> int:
        """Bytes to send, if nothing on the board is damaged."""
        return sum(file.to_send for file in self.files)

    @property
    def to_copy(self) -> int:
        """Bytes that the board writes to put files together."""
        return sum(file.to_copy for file in self.files)


@dataclass(frozen=True)
class PushedFile:
    """A file of the release that is current now, verified on the board."""

    name: str
    sha256: str
    bytes: int | None  # None: it was on the board, and is not here
    sent: int  # bytes
    copied: int  # bytes taken from the version before
    resumed_at: int  # bytes that were there of an upload that was cut before this push
    repaired: bool  # it was damaged on the board


@dataclass(frozen=True)
class Pushed:
    """What a push did."""

    release: str
    previous: str | None  # release that was current before
    root: str  # directory on the board
    files: tuple[PushedFile, ...]
    mended: tuple[str, ...]  # links of the release, and its manifest, that were damaged
    pruned: Pruned
    signature: str | None  # of the release, and where it was checked; None: it is from no release
    bytes_sent: int
    connections: int  # the most over which a file was sent at once
    breaks: int  # how often the line broke, and the push connected again
    seconds: float


def plan_push(
    connection: Connection,
    target: Target,
    engine: Path | ReleasedEngine,
    model: Path | None,
    progress: Progress,
    chunk_bytes: int = CHUNK_BYTES,
    *,
    allow_downgrade: bool = False,
) -> PushPlan:
    """What is to be sent to a board; nothing is written there.

    Without a model the one of the current release stays. Raises BoardArchError, BoardFullError,
    FileMissingError, TransferError where it is not known which model that is, and the errors of
    `Model.open` and `Store`; for the engine of a release also SignatureError, if the board trusts
    another key, and DowngradeError, unless `allow_downgrade`.
    """
    released = engine if isinstance(engine, ReleasedEngine) else None
    if isinstance(engine, ReleasedEngine):
        engine = engine.path
    if not engine.is_file():
        raise FileMissingError(
            f"{engine} does not exist; build it: colibri-deploy build --target {target.name}"
        )
    paths = [(ENGINE_NAME, engine)]
    if model is not None:
        Model.open(model)
        paths += [(name, model / name) for name in (MODEL_NAME, CONFIG_NAME)]
    shell = BoardShell(connection)
    store = Store(shell)
    state = store.probe()
    check_arch(connection, target, state)
    origin = _origin(shell, store, state, released, allow_downgrade) if released else None
    items = [_read(name, path, progress, chunk_bytes) for name, path in paths]
    return replace(_plan(connection, store, target, items, progress, {}), origin=origin)


def _origin(
    shell: BoardShell,
    store: Store,
    state: BoardState,
    released: ReleasedEngine,
    allow_downgrade: bool,
) -> Origin:
    """What the board says to a release. Raises SignatureError and DowngradeError."""
    name = shell.connection.board.name
    trusted = store.trusted_key()
    key = released.proof.key if released.proof else None
    if trusted is not None and (key is None or key.text != trusted):
        by = key.fingerprint if key else "nobody"
        raise SignatureError(
            f"{name} takes releases that {parse_key(trusted).fingerprint} has signed, and this "
            f"one is signed by {by}. If the key was changed on purpose, remove "
            f"{state.root}/trusted_key there; the next release that is pushed brings its own"
        )
    version = _version(shell) if state.current else None
    if version and is_older(released.version, version) and not allow_downgrade:
        raise DowngradeError(
            f"{name} has version {version}, and the release is {released.version}: "
            "--allow-downgrade goes back to it all the same"
        )
    return Origin(
        released,
        version,
        may_be_downgrade=bool(state.current) and version is None,
        is_first_key=key is not None and trusted is None,
    )


def _version(shell: BoardShell) -> str | None:
    """The version of the board's current engine; None: it does not say."""
    answer = shell.attempt("run", "--version")
    words = answer.stdout.decode(errors="replace").split()
    return words[1] if answer.status == 0 and len(words) > 1 and is_version(words[1]) else None


def _plan(
    connection: Connection,
    store: Store,
    target: Target,
    local: list[Item],
    progress: Progress,
    known: Mapping[str, Assembly],
) -> PushPlan:
    """What is to be done for the files that are here.

    `known` are the assemblies of an earlier plan, by SHA-256.
    """
    items = local
    state, stored = store.look(items)
    if len(local) == 1 and state.current != release_id(local):  # else it has the engine alone
        _check_manifest(connection, state)
        items = local + [
            Item(name, sha) for name, sha in state.files.items() if name != ENGINE_NAME
        ]
        state, stored = store.look(items)
    files = tuple(
        _plan_file(store, state, item, stored[item.sha256], progress, known.get(item.sha256))
        for item in items
    )
    plan = PushPlan(target, state, files, release_id(items))
    if state.free_bytes is not None and plan.to_send + plan.to_copy > state.free_bytes:
        copied = f" and {plan.to_copy:,} to be copied there" if plan.to_copy else ""
        raise BoardFullError(
            f"no room on {connection.board.name}: {plan.to_send:,} bytes are to be sent{copied}, "
            f"{state.free_bytes:,} are free under {state.root}"
        )
    return plan


def _plan_file(
    store: Store,
    state: BoardState,
    item: Item,
    stored: Stored,
    progress: Progress,
    assembly: Assembly | None,
) -> PlannedFile:
    has_chunks = item.sha256 in state.chunked
    whole = PlannedFile(item, stored, has_chunks=has_chunks)
    old = state.files.get(item.name)
    worth = _WORTH_CHUNKS * item.chunk_bytes
    if whole.to_send < worth or old not in state.chunked:
        return whole
    if assembly is None or assembly.old != old:
        progress.start(f"comparing {item.name} with the version on the board", 0)
        assembly = Assembly.of(item, old, store.chunks(old))
    if assembly is None:
        return whole
    sent = store.look([assembly.sent])[1][assembly.sent.sha256]
    parts = PlannedFile(item, stored, assembly, sent, has_chunks)
    return parts if whole.to_send - parts.to_send >= worth else whole


def push(connection: Connection, plan: PushPlan, progress: Progress) -> Pushed:
    """Does what was planned, and what else another deploy has made necessary since.

    Where the line breaks, it connects again and goes on. Raises ConnectionLostError if the board
    cannot be reached for PATIENCE_SECONDS, or if the line breaks again and again before anything
    has arrived; BoardBusyError, TransferError and the errors of `plan_push` and `Store`.
    """
    return _Push(connection, plan, progress).run()


class _Push:
    """A push, over as many connections one after the other as it takes."""

    def __init__(self, connection: Connection, plan: PushPlan, progress: Progress) -> None:
        self._connection = connection
        self._plan = plan
        self._progress = progress
        self._name = secrets.token_hex(8)
        self._previous: str | None = None
        self._sent = Counter[str]()  # bytes by name of the file, as are the next two
        self._counting = threading.Lock()  # for that, where several connections send
        self._copied = Counter[str]()
        self._resumed = {file.item.name: file.resumed_at for file in plan.files}
        self._repaired: set[str] = set()  # names
        self._connections = 1
        self._is_proven = False

    def run(self) -> Pushed:
        started = time.monotonic()
        least, in_vain = self._plan.to_send, 0
        for breaks in itertools.count():
            try:
                mended, pruned = self._attempt(is_first=breaks == 0)
                break
            except ConnectionLostError as error:
                if self._plan.to_send < least:
                    least, in_vain = self._plan.to_send, 0
                in_vain += 1
                self._reconnect(error, in_vain)
        return Pushed(
            release=self._plan.release,
            previous=self._previous,
            root=self._plan.state.root,
            files=tuple(self._pushed(file.item) for file in self._plan.files),
            mended=mended,
            pruned=pruned,
            signature=self._signature(),
            bytes_sent=self._sent.total(),
            connections=self._connections,
            breaks=breaks,
            seconds=time.monotonic() - started,
        )

    def _signature(self) -> str | None:
        if self._plan.origin is None:
            return None
        if self._plan.origin.engine.proof is None:
            return "none"
        return f"checked on host {'and board' if self._is_proven else 'only'}"

    def _reconnect(self, error: ConnectionLostError, in_vain: int) -> None:
        if in_vain == _MOST_BREAKS:
            raise ConnectionLostError(
                f"{error.message}, {in_vain} times before anything more had arrived", error.details
            ) from error
        self._progress.start("the line broke; connecting again", 0)
        time.sleep(_FIRST_WAIT_SECONDS * 2 ** (in_vain - 1))
        try:
            self._connection.reconnect(PATIENCE_SECONDS)
        except ConnectionLostError as second:
            raise ConnectionLostError(
                f"{error.message}, and it cannot be had again: {second.message}", second.details
            ) from second

    def _attempt(self, is_first: bool) -> tuple[tuple[str, ...], Pruned]:
        """All of it: what was mended, and what was pruned."""
        plan, progress = self._plan, self._progress
        shell = BoardShell(self._connection)
        with board_lock(shell, plan.state.root, progress.wait_for, self._name) as nonce:
            store = Store(shell, nonce)
            local = [file.item for file in plan.files if file.item.path]
            known = {file.item.sha256: file.assembly for file in plan.files if file.assembly}
            planned = _plan(self._connection, store, plan.target, local, progress, known)
            self._plan = plan = replace(planned, origin=plan.origin)
            if is_first:
                self._previous = plan.state.current
            engine = local[0]
            for file in plan.files:
                self._place(store, file, engine)
            if plan.origin and plan.origin.engine.proof:
                progress.start("checking the signature on the board", 0)
                self._is_proven = store.prove(engine, plan.origin.engine.proof)
            items = [file.item for file in plan.files]
            mended = store.release(plan.release, items, engine)
            return mended, store.prune(keep=golden_model.SHA256.values())

    def _place(self, store: Store, file: PlannedFile, engine: Item) -> None:
        """Brings one file into the store, whole and verified."""
        item = file.item
        chunks = item.chunks if item.path and not file.has_chunks else None
        if file.to_send:
            self._send(store, file.upload, file.there)
        if file.assembly:
            self._progress.start(f"putting {item.name} together on the board", 0)
            store.assemble(item, file.assembly)
            self._copied[item.name] = item.bytes - file.assembly.sent.bytes
        self._progress.start(f"verifying {item.name} on the board", 0)
        sound = store.seal(item, engine, chunks)
        if not sound and file.stored.whole is not None:
            self._repaired.add(item.name)
        if not sound and item.path is not None:
            self._send(store, item, Stored())
            self._progress.start(f"verifying {item.name} on the board", 0)
            sound = store.seal(item, engine, chunks)
        if not sound:
            again = (
                "it was sent twice; is its memory or its disk broken, or does the file change here?"
                if item.path
                else "it was removed; push it again with --model"
            )
            raise TransferError(f"{item.name} is damaged on {self._connection.board.name}: {again}")

    def _send(self, store: Store, item: Item, stored: Stored) -> None:
        def start(n_bytes: int) -> None:
            self._progress.start(f"sending {item.name}", n_bytes)

        def count(n_bytes: int) -> None:
            with self._counting:
                self._sent[item.name] += n_bytes
            self._progress.advance(n_bytes)

        n_bytes, board = stored.left(item.bytes), self._connection.board
        most = n_connections(n_bytes, board, self._plan.state.cpus)
        used = upload(store, item, stored, most, start, count)
        self._connections = max(self._connections, used)

    def _pushed(self, item: Item) -> PushedFile:
        return PushedFile(
            name=item.name,
            sha256=item.sha256,
            bytes=item.bytes if item.path else None,
            sent=self._sent[item.name],
            copied=self._copied[item.name],
            resumed_at=self._resumed[item.name],
            repaired=item.name in self._repaired,
        )


def check_arch(connection: Connection, target: Target, state: BoardState) -> None:
    """Raises BoardArchError unless the board runs binaries for the target."""
    if machine_arch(state.machine) != target.arch:
        raise BoardArchError(
            f"{connection.board.name} is {state.machine}, but the target {target.name} is "
            f"{target.arch}; `colibri-deploy targets` lists what there is"
        )


def _check_manifest(connection: Connection, state: BoardState) -> None:
    """Raises TransferError unless it is known which files the current release has."""
    if not state.is_consistent:
        raise TransferError(
            f"the manifest of release {state.current} is damaged on {connection.board.name}, and "
            "nothing else tells which model is to stay: push it again with --model, or remove "
            f"{state.root}/current there to push an engine alone"
        )


def _read(name: str, path: Path, progress: Progress, chunk_bytes: int) -> Item:
    size = path.stat().st_size if path.exists() else 0
    progress.start(f"reading {name}", size)
    return Item.read(name, path, progress.advance, chunk_bytes=chunk_bytes)
