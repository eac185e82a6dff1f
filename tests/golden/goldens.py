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
    ("mixtral", "q4"): "e2435de83500c2a261646deeb033fbc2154b23add3555d5cad6c6370be42ab0c",
    ("starcoder_moe", "keep"): "c00020fa8a765f7e3e0a096d89c2053579e8fd86cb7c3d3cf3068b3f0ff57568",
    ("starcoder_moe", "q8"): "0cf277b3ebe0d171509ffef0317bf9cf17fafcdd26c49e31e6e87838f05cf67d",
    ("starcoder_moe", "q4"): "473ed1969158ba1281d18628ac33159b2c5b88cd8c360e3da32566bf67ea5513",
    ("llama", "keep"): "8a1390c5141792c9428e75cbfb5e4ffa3592dbcfc179bb4e3f2872742d88ac6e",
    ("llama", "q8"): "0f9559ae3e496c320a8cbdc96315f053361c09c189a794720babdf5e40b5075e",
    ("llama", "q4"): "23398ef1dd579fabe738a63e47e983fbd94de85ca1dc938e4a30cc64b3946e50",
    ("synthetic", "f32"): "03436f5ed78d017f96448fa7ba6ba819dc63d27634f2c709c4cc8e690832f5a3",
    ("synthetic", "q8"): "6682420a472d176181255b18436e7d8c2adb8a437bf161e9c01824af409fe92e",
    ("synthetic", "q4"): "bf2619acd2d3d98907c25e7f758cbd484f0a02aeb669dc9bb41a5de679b9592e",
}

# The synthetic model after a prompt that slow emulators can afford; one chunk of attention.
SHORT_PROMPT = PROMPT[:12]
SHORT_HASHES = {
    "f32": "86bf6b022e7bc05676cff0522b3ca36c166970d7dbc447dedaab7722612e2214",
    "q8": "af9c5d0cd61996803682c26f47e0c8c30f9bea610a0eec057fa2f7b96addaee7",
    "q4": "6b1dd6b3f46124d12450f787304ae9b36cf6549b511fc21437fcdff314893923",
}
