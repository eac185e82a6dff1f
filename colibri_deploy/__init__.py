# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the Colibri engine for boards, and prepares the models that it runs."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("colibri-deploy")
except PackageNotFoundError:  # run from a checkout without an installation
    __version__ = "0+unknown"
