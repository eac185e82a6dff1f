# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`colibri-deploy` and `python -m colibri_deploy`."""

import sys


def main() -> None:
    """The console script. Loading the verbs takes a while, so Ctrl-C is met here, too."""
    try:
        from colibri_deploy import cli

        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("\nAborted!\n")  # as click says it once it is loaded
        sys.exit(1)


if __name__ == "__main__":
    main()
