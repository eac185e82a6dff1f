# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `release`."""

from __future__ import annotations

import click

from colibri_deploy.cli.release_verify import verify


@click.group()
def release() -> None:
    """Check releases."""


release.add_command(verify)
