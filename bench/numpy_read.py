#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A second opinion on the read bandwidth: prints GB/s of numpy's sum of integers, the best of 15.

python bench/numpy_read.py BYTES THREADS
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np


def main() -> None:
    """The command line."""
    n_bytes, threads = map(int, sys.argv[1:])
    parts = np.array_split(np.ones(n_bytes // 8, np.int64), threads)
    best = 0.0
    for _ in range(15):
        workers = [threading.Thread(target=part.sum) for part in parts]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, 1e-9 * n_bytes / (time.perf_counter() - started))
    print(f"{best:.2f}")


if __name__ == "__main__":
    main()
