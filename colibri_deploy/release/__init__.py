# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a release is made of, and how one is verified; docs/release.md describes both."""
