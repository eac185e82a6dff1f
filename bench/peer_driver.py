# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as a process that answers lines of JSON; runs inside the peer's own environment.

    python bench/peer_driver.py facts
    python bench/peer_driver.py serve MODEL POSITIONS  (a request a line on stdin, an answer a line)
    python bench/peer_driver.py first MODEL            (one request: from start to the first token)

Everything is llama.cpp's default but what is named here: default buffer types, so weights are
repacked where it has a kernel for that; mmap; flash attention where it chooses it; 512 tokens of a
prompt at once; an f16 cache. Nothing is sampled in the measured part, and only the last token of
each batch has logits.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp

_BATCH = 512


class Peer:
    """A loaded model with one context."""

    def __init__(self, path: str, positions: int, threads: int) -> None:
        model_options = llama_cpp.llama_model_default_params()
        model_options.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_options)
        if not self.model:
            raise SystemExit(f"peer_driver: llama.cpp cannot load {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = positions
        options.n_batch = options.n_ubatch = _BATCH
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("peer_driver: llama.cpp cannot make a context")

    def forget(self) -> None:
        """Empty the key/value cache."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)

    def feed(self, tokens: list[int]) -> None:
        """Tokens, in batches; returns when they are computed."""
        for first in range(0, len(tokens), _BATCH):
            batch = tokens[first : first + _BATCH]
            ids = (ctypes.c_int32 * len(batch))(*batch)
            if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(ids, len(batch))):
                raise SystemExit("peer_driver: llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def logits(self) -> list[float]:
        """Of the token that was fed last."""
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        row = llama_cpp.llama_get_logits_ith(self.context, -1)
        return list(row[: llama_cpp.llama_vocab_n_tokens(vocab)])

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Feeds `prompt`, then `tokens` one by one, with `threads` threads."""
        llama_cpp.llama_set_n_threads(self.context, request["threads"], request["threads"])
        self.forget()
        started = time.perf_counter()
        self.feed(request["prompt"])
        prefilled = time.perf_counter()
        for token in request["tokens"]:
            self.feed([token])
        result = {
            "prefill_seconds": prefilled - started,
            "decode_seconds": time.perf_counter() - prefilled,
        }
        return result | ({"logits": self.logits()} if request.get("logits") else {})


def peak_rss_bytes() -> int:
    """Of this process; getrusage's number begins with the parent's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("peer_driver: /proc/self/status has no VmHWM")


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """llama.cpp's log is not shown."""


def main() -> None:
    """The command line."""
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    if sys.argv[1] == "facts":
        info = llama_cpp.llama_print_system_info().decode()
        print(json.dumps({"version": llama_cpp.__version__, "system_info": info}))
    elif sys.argv[1] == "first":
        request = json.loads(sys.stdin.readline())
        before = peak_rss_bytes()
        started = time.perf_counter()  # the interpreter and the libraries are not counted
        peer = Peer(sys.argv[2], request["positions"], request["threads"])
        peer.feed(request["prompt"])
        logits = peer.logits()
        logits.index(max(logits))
        seconds = time.perf_counter() - started
        peak = peak_rss_bytes() - before
        print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak}))
    else:
        peer = Peer(sys.argv[2], int(sys.argv[3]), 1)
        print("{}", flush=True)
        for line in sys.stdin:
            print(json.dumps(peer.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
