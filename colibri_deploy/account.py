# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Who runs this program; in a container that may be a user id without an account."""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path


def user_name() -> str | None:
    """The login name by the environment, otherwise the account's; None: neither tells."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # before Python 3.13, and from then on
        return None


def account_home() -> Path | None:
    """The home directory of the account, whatever HOME says; None: there is no account."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
