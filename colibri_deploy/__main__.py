# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m colibri_deploy`."""

from colibri_deploy.cli import main

if __name__ == "__main__":
    main()
