# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that colibri-deploy raises, each with the exit code of the command line.

Codes 3 to 12 mean the same as in the engine (`enum colibri_code` in src/colibri.h); 2 is a wrong
command line (click's); codes of the tool's own start at 20. A message is one line: what happened,
where, what to do next. `details` holds further lines, such as a compiler's message.
"""

from __future__ import annotations

from typing import ClassVar


class ColibriDeployError(Exception):
    """Base of all errors that a user can do something about."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if details:
            self.add_note(details)  # for those who see it in a traceback


class FileMissingError(ColibriDeployError):
    """A file is missing or cannot be read."""

    exit_code = 3


class ConfigError(ColibriDeployError):
    """config.json is not valid or does not fit model.bin."""

    exit_code = 4


class ModelFileError(ColibriDeployError):
    """model.bin cannot be used; the subclasses say why."""

    exit_code = 5


class ModelFormatError(ModelFileError):
    """model.bin is not a model that this version reads."""

    exit_code = 5


class ModelTruncatedError(ModelFileError):
    """model.bin is shorter or longer than its header says."""

    exit_code = 6


class ModelCorruptError(ModelFileError):
    """A checksum does not match."""

    exit_code = 7


class InputError(ColibriDeployError):
    """Text or token ids that the model cannot take."""

    exit_code = 11


class UnknownTargetError(ColibriDeployError):
    """There is no target of that name."""

    exit_code = 20


class TargetFileError(ColibriDeployError):
    """A target file is not valid; the message names file, line and field."""

    exit_code = 21


class ToolchainError(ColibriDeployError):
    """The compiler or the build tools are missing or do not work."""

    exit_code = 22


class BuildError(ColibriDeployError):
    """The engine does not configure or compile."""

    exit_code = 23


class ProcessError(ColibriDeployError):
    """A program could not be started, ended with a status other than 0, or took too long."""

    exit_code = 24

    def __init__(self, message: str, details: str = "", status: int | None = None) -> None:
        super().__init__(message, details)
        self.status = status  # None: it never started, or it was ended for taking too long


class ProcessTimeoutError(ProcessError):
    """A program was ended because it took too long."""

    exit_code = 24


class ResourceError(ColibriDeployError):
    """The installation lacks the engine's sources or data."""

    exit_code = 25


class ConversionError(ColibriDeployError):
    """A checkpoint is damaged or of a kind that cannot be converted."""

    exit_code = 26


class BoardsFileError(ColibriDeployError):
    """boards.yaml is not valid; the message names file, line and field."""

    exit_code = 27


class UnknownBoardError(ColibriDeployError):
    """There is no board of that name, or its address or target cannot be used."""

    exit_code = 28


class BoardConnectionError(ColibriDeployError):
    """A board cannot be reached, or the connection was lost."""

    exit_code = 29


class ConnectionLostError(BoardConnectionError):
    """The network or the server refused or cut a connection: trying again may help."""

    exit_code = 29


class UnknownHostKeyError(ColibriDeployError):
    """The key that a board shows is not in known_hosts."""

    exit_code = 30

    def __init__(self, message: str, fingerprint: str) -> None:
        super().__init__(message)
        self.fingerprint = fingerprint  # as OpenSSH prints it: "SHA256:..."


class ChangedHostKeyError(ColibriDeployError):
    """A board shows another key than known_hosts says, or a revoked one."""

    exit_code = 31


class AuthenticationError(ColibriDeployError):
    """A board lets nobody in with the keys at hand."""

    exit_code = 32


class BoardArchError(ColibriDeployError):
    """A board is of another architecture than its target."""

    exit_code = 33


class BoardError(ColibriDeployError):
    """A command failed on a board; the message is in the board's own words."""

    exit_code = 34


class BoardFullError(ColibriDeployError):
    """There is no room on a board."""

    exit_code = 35


class TransferError(ColibriDeployError):
    """A file on a board is not what was sent, and this push cannot mend it."""

    exit_code = 36


class SmokeError(ColibriDeployError):
    """What was pushed does not pass the smoke test."""

    exit_code = 37


class EmulationError(ColibriDeployError):
    """A board cannot be emulated on this machine."""

    exit_code = 38


class BoardMismatchError(ColibriDeployError):
    """A board is not what boards.yaml says of it, or cannot be asked."""

    exit_code = 41


class DownloadError(ColibriDeployError):
    """Something that is fetched from the network cannot be had."""

    exit_code = 39


class SshConfigError(ColibriDeployError):
    """~/.ssh/config is not valid, or asks for what is not done here."""

    exit_code = 40


class BoardBusyError(ColibriDeployError):
    """Somebody else deploys to the board."""

    exit_code = 47


class EngineError(ColibriDeployError):
    """The engine ended with an error on a board; its own status is in the message."""

    exit_code = 48


class ReleaseError(ColibriDeployError):
    """A board has no such release, or it is damaged there."""

    exit_code = 42


class ForeignFilesError(ColibriDeployError):
    """A board's directory holds what no deploy has put there."""

    exit_code = 43


class DoctorError(ColibriDeployError):
    """A board, or this machine, has what is worse than a note."""

    exit_code = 44


class BoardsFailedError(ColibriDeployError):
    """Some of several boards failed; the message names boards and steps."""

    exit_code = 45


class DeadlineError(ColibriDeployError):
    """The work on a board takes longer than it may."""

    exit_code = 46


class ArchiveError(ColibriDeployError):
    """An archive of a release holds what none may, or is damaged; the message names the member."""

    exit_code = 49


class ReleaseFilesError(ColibriDeployError):
    """The files of a release are not what it says of them; the message names them."""

    exit_code = 50


class SignatureError(ColibriDeployError):
    """A release is not signed, or not by a key that is trusted."""

    exit_code = 51


class DowngradeError(ColibriDeployError):
    """A board has a later version than the one that is to be pushed."""

    exit_code = 52


class RebuildError(ColibriDeployError):
    """A release that is built again has other bytes; the message names the first file."""

    exit_code = 53


class PackagingError(ColibriDeployError):
    """A checkout, or what was built from it, cannot be released; the message says why."""

    exit_code = 55


class StoppedError(ColibriDeployError):
    """Ctrl-C; the message names the boards that were not finished."""

    exit_code = 130
