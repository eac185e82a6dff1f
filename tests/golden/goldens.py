# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hashes that every board and every emulator must give, and the prompt behind them."""

# More than one chunk of attention; below every fixture's vocabulary.
PROMPT = [(7919 * i + 13) % 512 for i in range(270)]
NUM_TOKENS = 2

# Numerics clb1, as tests/golden/reference.py gives them (see test_reference.py).
HASHES = {
    ("mixtral", "keep"): "b4ee3beb4f75c95184ba6d78f91aff4de86c2b81dfd84ba0321bf9558f39ab34",
    ("mixtral", "q8"): "042936657d4aeb8aaa7b0bdaf858b6446b4a84ce90ef0955e044c7eb53b5c694",
    ("starcoder_moe", "keep"): "c00020fa8a765f7e3e0a096d89c2053579e8fd86cb7c3d3cf3068b3f0ff57568",
    ("starcoder_moe", "q8"): "0cf277b3ebe0d171509ffef0317bf9cf17fafcdd26c49e31e6e87838f05cf67d",
    ("llama", "keep"): "8a1390c5141792c9428e75cbfb5e4ffa3592dbcfc179bb4e3f2872742d88ac6e",
    ("llama", "q8"): "0f9559ae3e496c320a8cbdc96315f053361c09c189a794720babdf5e40b5075e",
    ("synthetic", "f32"): "03436f5ed78d017f96448fa7ba6ba819dc63d27634f2c709c4cc8e690832f5a3",
    ("synthetic", "q8"): "6682420a472d176181255b18436e7d8c2adb8a437bf161e9c01824af409fe92e",
}
