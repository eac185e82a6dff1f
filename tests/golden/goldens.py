# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hashes that every board and every emulator must give, and the prompts behind them.

Numerics clb1, each as tests/golden/reference.py prints it for the model, the prompt and the type of
cache. `small_synthetic` and `synthetic` are made by synthetic.py.
"""

import dataclasses

from colibri_deploy.convert import DTypeChoice

Key = tuple[str, DTypeChoice]  # a model and how its matrices are stored

# The families that add an operation to those of Mixtral and Llama, each by one checkpoint.
FAMILIES = (
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "olmoe", "phimoe"),
    *("qwen2_moe", "qwen3_moe"),
)

# More than one chunk of attention; below every fixture's vocabulary.
PROMPT = [(7919 * i + 13) % 512 for i in range(270)]
NUM_TOKENS = 2

# After PROMPT, with the type of cache that the model has by default.
HASHES: dict[Key, str] = {
    ("mixtral", "keep"): "b4ee3beb4f75c95184ba6d78f91aff4de86c2b81dfd84ba0321bf9558f39ab34",
    ("mixtral", "q8"): "042936657d4aeb8aaa7b0bdaf858b6446b4a84ce90ef0955e044c7eb53b5c694",
    ("mixtral", "q4"): "e2435de83500c2a261646deeb033fbc2154b23add3555d5cad6c6370be42ab0c",
    ("mixtral", "mxfp4"): "debedc5956f0212af9994872b839bbe3906d392ceb7406a4d97a445954835c0f",
    ("starcoder_moe", "keep"): "c00020fa8a765f7e3e0a096d89c2053579e8fd86cb7c3d3cf3068b3f0ff57568",
    ("starcoder_moe", "q8"): "0cf277b3ebe0d171509ffef0317bf9cf17fafcdd26c49e31e6e87838f05cf67d",
    ("starcoder_moe", "q4"): "473ed1969158ba1281d18628ac33159b2c5b88cd8c360e3da32566bf67ea5513",
    ("starcoder_moe", "mxfp4"): "533d602c580a2339ebc63da994c0a6c33ef1e9142a4b8567381e6c74d27b5001",
    ("llama", "keep"): "8a1390c5141792c9428e75cbfb5e4ffa3592dbcfc179bb4e3f2872742d88ac6e",
    ("llama", "q8"): "0f9559ae3e496c320a8cbdc96315f053361c09c189a794720babdf5e40b5075e",
    ("llama", "q4"): "23398ef1dd579fabe738a63e47e983fbd94de85ca1dc938e4a30cc64b3946e50",
    ("llama", "mxfp4"): "e9fcd1330206604b597a3863133a277678e44d6d5eba7980daa07e5cd2cfa990",
    ("synthetic", "f32"): "03436f5ed78d017f96448fa7ba6ba819dc63d27634f2c709c4cc8e690832f5a3",
    ("synthetic", "f16"): "101c3a281af1e8a17f65a8996d1b501318266673a216e99be0c219d72a443104",
    ("synthetic", "bf16"): "aeed44bda72964a81f7e961c120830be6b8b8096021738a9a162df53c64175c9",
    ("synthetic", "q8"): "6682420a472d176181255b18436e7d8c2adb8a437bf161e9c01824af409fe92e",
    ("synthetic", "q4"): "bf2619acd2d3d98907c25e7f758cbd484f0a02aeb669dc9bb41a5de679b9592e",
    ("synthetic", "mxfp4"): "11429303b84493d0b0328dedb223c80f646891afbf004e9daeb2d9bd6782227b",
}


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A prompt that is continued greedily to `length` tokens.

    The hash covers the logits after the prompt and all that follow. They are the same whatever
    part of the sequence is given and not generated; `splits` are parts that are tried.
    """

    prompt: list[int]
    length: int
    splits: tuple[int, ...]


FROM_ONE_TOKEN = Continuation(PROMPT[:1], 36, (1, 20, 36))
FROM_ONE_TOKEN_HASHES: dict[Key, dict[str, str]] = {
    ("mixtral", "keep"): {
        "f32": "c8b25063e11c3e9c287603705f30fdeac5b067ef792776e3b74b8c4e7ecefce7",
        "f16": "bd02d167f3f361fcc4ed3a929f6b669f37e3c195a42a4af90ce34dbf35491a79",
        "q8": "ec1f9bfb3658c73353208255279bd88d5711a96f1ddce1f4f89ea323614ab200",
    },
    ("mixtral", "q8"): {
        "f32": "745792669a29aa665cf52c031408513ade77185abc7744d7c8229dd982b40f4b",
        "f16": "2bb5297ab5056b8915e57001bf993921a636756b1846f917489d5bc395482d2d",
        "q8": "1b3ccdcd534eba83efcd0a0ba37afe20b2e59292891d5233f16540659a369a9d",
    },
    ("mixtral", "q4"): {
        "f32": "b94f93c3b2537f480f028c1264ac37084678546df977bb1104215cd734b0c95a",
        "f16": "255e568390dda1d84be58c603e61c463e24bfd26252385653943d9950fb511f3",
        "q8": "3cb4f031ff5ced66e0f2b0728066dc1b32c45786ecb089afa8d0e6a3c580b0e9",
    },
    ("mixtral", "mxfp4"): {
        "f32": "500d72d49e2b112f3a0950d4120dc54292ce2915d4c9469e6f7eb442a93b1070",
        "f16": "7184642d794c86b59f00aff2a45518bc7915f12a7382138f628c2a6fddf1e497",
        "q8": "e0f9f690701acd5fcec98ba7d586dae848d5405b47bbfab4ad3d332493aa31c6",
    },
    ("starcoder_moe", "keep"): {
        "f32": "4e5817225ffce624e7e1315f73bafc3454aa989cbc501fa785184fe7fb8b384b",
        "f16": "b21f6b340906cf6ef59818f98be614956de25ad9011658e0bfe5e7e951eabfa2",
        "q8": "45a2e6d94546036404be2421cc65b89144c043b7e2be9d34b7bcf8d258c4359f",
    },
    ("starcoder_moe", "q8"): {
        "f32": "8b5e0621d7d09ba71ee2c2f20efb56dc820d450287e34d409ed907bc6b9f618d",
        "f16": "aad1f925b23b03ca4312c652d9a510ee54172f14acf846e9c220f92b9beddf7c",
        "q8": "95c28d7a40bffd67e1b1092fef27e625086559b2145a3f0d4456b0e5eb6c3e02",
    },
    ("starcoder_moe", "q4"): {
        "f32": "ca72152a3f12821ab6a388dbc80b88ec013eb9ce4a12299ec130e2adcbb36203",
        "f16": "47ce1963a8db3163222b186ceaf2c64cc5a58a689715a18e9ef7e74ef6feef5b",
        "q8": "cb74f6944b85da1f1d7a282084d56942a4211ceedf4696888bb48fccbf0b5ca7",
    },
    ("starcoder_moe", "mxfp4"): {
        "f32": "000958bc077270693f5213ed09fbdc3fb3b3571c633f2fb4960789587e1769ca",
        "f16": "c30b0d14688462d6e88f5cbd1957984aa4ee78555f2d0c6684553077ff15b6aa",
        "q8": "921a915d1ca961d8a750f0f03863e44f5432898e8f76b7dca7723235fc56a9fc",
    },
    ("llama", "keep"): {
        "f32": "2ebc9411403986df4aec2bbc9f16509157d6ff5dd7006e4b473a087b7747c21e",
        "f16": "e312c5375c61677def9feae9575058eaf43b30a27a2d736e5d102abbb4c3dad9",
        "q8": "b93eeeb223b9528b347431efa9adc97e8b1a73e01ef85b5deaebee3bd45319b2",
    },
    ("llama", "q8"): {
        "f32": "b5ab2f2294a7ed1430dae2701544bb279e6a708031cca456c048c0d742064107",
        "f16": "868b044b2e8a535fd73d24afd50d349c4c05e45dd187fff8aaa3736457ff02ca",
        "q8": "61382eeef094dc22d5ed3c8679d97bd31744d4513feabec4a387d16cb0b68227",
    },
    ("llama", "q4"): {
        "f32": "15f7234121b1ea687c9752f37b7e66169732a4bec7d86f49577ce36032b18da2",
        "f16": "c6c2efeecbe423536938d7153ec2e4647265d1dc8d0168a62b618937b52e30b6",
        "q8": "9ad3e098e37cfc308b94261dd2fff4c19585958cc675c653080f011b17d3a4f7",
    },
    ("llama", "mxfp4"): {
        "f32": "3c1eaa9530c59dd8f4b3b19acbd4db5d547000589a547e45d3d92827f37b9a4b",
        "f16": "5362379b722554d6174c445920b213ca7a7120aa33ff3f364ed4da034e466bc4",
        "q8": "98dc694ede7efe8ff4ceaaee791554e9e4b35af984533eca05b1ea9fe35c368c",
    },
    ("qwen2_moe", "keep"): {
        "f32": "04ade7d84bf59242e4d503371f6cdaef4af786933c1ae4c68afa6159bccb82e9",
        "f16": "981d28fbbdeaa983e96214e27373101cae757339b2f5bb664b76df5f16fef423",
        "q8": "ca5aaa9116afc2a13f0eede636d86ac02f3efe0a8da57f49ef2578059c94de4c",
    },
    ("qwen3_moe", "keep"): {
        "f32": "70a56669167d567efe119d34801a47fb808b580df74a02775811784cab0b2ba5",
        "f16": "6783e95acd9a79f993104ce57872f9d468c185be664dcbb90ad3d36044185902",
        "q8": "9f67d0535d1d8b4c85fd2f6628ea320ee27f45ca425535c318fd9fcc91f8ef66",
    },
    ("olmoe", "keep"): {
        "f32": "2a4e09bead19fb0fa9df56d9a9e5193b9c64f4538d46fb382d0962e959964dd2",
        "f16": "68a14920014c1e7de86dd6719b9a1c500924022db0d7078f4f831ac219c16d13",
        "q8": "2c0f2a18d8c27a38355354ee27957aa848ab0f478a815b591ccc845f7bd879e6",
    },
    ("deepseek_v2", "keep"): {
        "f32": "1d960e04aba2e1b1040500f60295640c41ca56827f403a8716f1f1086006f387",
        "f16": "4a16b5918b42493c0d95382f3d5b1d2639565f635f8ec0e0f69806f641c3aae8",
        "q8": "f1faa16f5f65a28b1f79ec1f31995afe877f6f669947f95ea96e1acf6b7ce9ad",
    },
    ("deepseek_v3", "keep"): {
        "f32": "54cc99d7ea5616f645f38d17d171e3a95304de9ac95672ec9a4ad223642b38a6",
        "f16": "20cbf8417d78e45af59d5f07ab5b2264ea3309716e38e1f26060e4368802e1c8",
        "q8": "eeafb5b9619f0ad2143ae6aa4134974df9984ed79d499dec90276227259d5b73",
    },
    ("granitemoe", "keep"): {
        "f32": "4ede4ac7ce273edb9ddb4283f4dcfbde116b30916fe8552fb3a391ca45c23d65",
        "f16": "c25ee61adee0ea865909da5bf9b376c20c13cd26801f29bae6c513f6eab5e252",
        "q8": "9e4c25987f8b012fcc3341cf8786671c02b81255e0ae3c1e4284d9bb1477cbf0",
    },
    ("phimoe", "keep"): {
        "f32": "b850ac16ff3f3207bdd6e4e56bda07531e51a78b607d35ec21e5cae8d83831a7",
        "f16": "8122c1c9264136f5e7dc72c049b5c9bde7cc768b181bdc85444d37693e4846dc",
        "q8": "a55ae8619d0ac5fce6af46cf9e49fe7a3b7d8fdf359db0ebc447841c326929b4",
    },
    ("gpt_oss", "keep"): {
        "f32": "8e6d1dafe50f6992814426c9914496482de371959a91a81cc57a93f0a74ed36c",
        "f16": "4e4e1a89378af1f3dfdacf24d023305eda4dec0a800caaf9bf12b66556cf53d0",
        "q8": "23a498d6862eb82aa5f236b4a42ea1e0f23d08e1d71667d09b1120c688b12c57",
    },
    ("glm4_moe", "keep"): {
        "f32": "6a8a975e39d18b3bfa1baba1b93ce4035a7db162b75c01b29953260e73c7a103",
        "f16": "aad5c10405d2936667426f49ceeae920fe2cc0ae2a85d491de97346e18eb6a14",
        "q8": "cfe5e070fe2a848ece10b6664a4b977f9249e5f90c47783ffe7aeab30aecb1b0",
    },
    ("small_synthetic", "f32"): {
        "f32": "b4e685c1d9b6224aa00e89f6bf7b60397ef4771612bac5961ac6d1ffa22b5ae4",
        "f16": "983aeaf368dbcc3bbaf86219a266ea82cec0d3fa931ac1e4a329596e7f6951e9",
        "q8": "1041b0e76eb57aca2f8bd812180234a7797f3f86ff25932ad82af24d18729c5e",
    },
    ("small_synthetic", "f16"): {
        "f32": "64e4105ba43512131e60a20ce866a1ac8742ca251f98f5614dc094a1606a8fb1",
        "f16": "ee2c697ece6b1b13a1205c9dd7880dc0127977b2d5f07b1d5f86c6ea745c00c8",
        "q8": "683028cd17fbeaecd5a05c21c9d22379b01688f714aec3202d9690675034e4ce",
    },
    ("small_synthetic", "bf16"): {
        "f32": "7c661d699a9eb8feebebd6196970f9c58cb488d13ae80a5f698e33f6ee994809",
        "f16": "aece9e53bd6cc0a645a81fc63ce044d332e673aa6677be2fa8dc30c49d041fb9",
        "q8": "a3c72e212ab7d25f9c9138bb278ff94f882ae8a201c835895b7903f22c9a1244",
    },
    ("small_synthetic", "q8"): {
        "f32": "1c12f040532fd826ed92f3e7b8025093ed4ba0181435bc3ca28a901022bc2b59",
        "f16": "450c4f025dfc3ab7bb1d31818796a68d1fb7978c80545098c56f4d6abd5abf6e",
        "q8": "ec52cf86b9071498545c6438f51d0b004435dcb13b67cc7a0afb341fb496340f",
    },
    ("small_synthetic", "q4"): {
        "f32": "7db2691cb9ea6d41da4eeb5a09d6aa88f3b47c385fce862e30efd4e9771d6936",
        "f16": "21c5f746abd81bb55a7f57fc5ac76a888e97d2cb2bc319ca85d979f45437dd33",
        "q8": "8c8daf40730f7de49a5bca302e28ef47068d03507d3f2dcb5b0662ad4f33face",
    },
    ("small_synthetic", "mxfp4"): {
        "f32": "db47a16586af9c155eac5fd2898bba627b019181421058e4e40bf2f44c55314a",
        "f16": "1d056583f2310e800e0ed306c217493ffb540cfd05c6f00e22f26d6ef7d0e8d5",
        "q8": "453b2994e1d1584c76167933c941d3272e4ccbbc285068b36a495d27a1b99a7a",
    },
    ("synthetic", "f32"): {
        "f32": "2e9f0f83d2f2b5a4d80cd268f4dc1ffb03c2572d296fbaea461f6e623e4127e7",
        "f16": "0d436176641ab2b0d9bf57e9056bad10de6d468c07c3c66cba17c9eeda2b2dd2",
        "q8": "82f9fb2ce671e31f2a216757e5eef20b163ccbbf1b687776d5ee4868973be01a",
    },
    ("synthetic", "f16"): {
        "f32": "ceeca6c2101a3e2f641ade5862106d23528abeb54210f65ec0c340ef73d163c3",
        "f16": "159568262dad12d4f3f7cf5675b289b25030f6e99ca880a3bb88f3b55a418f1e",
        "q8": "7806ff2045a8819ee58e8535ef1326cfee942fcee41bc91967daa60b07502f9e",
    },
    ("synthetic", "bf16"): {
        "f32": "63643dd96d08e1f81ebd8eb3afcea8c67982b26666f223ca6c39445ec0132fc1",
        "f16": "7210e7e1d7c83aba05ab8058449c57542f13b4470a527b528bb5daa32ecbd549",
        "q8": "ba4f78fdda53d5e2ec54894e86bd67120cd564c4e12469a907a57e9e8fb37d09",
    },
    ("synthetic", "q8"): {
        "f32": "f18ab65fa7601968e36d3f7c3a68dc1156cc5faa2f0cef13819da8b4eaa418a0",
        "f16": "24f4ae1749a188b4d835ba6e070160d5edfa208dfab1cd046e6033b196c7cc1e",
        "q8": "2786ff74f33e7eb28fa2839ea7918ea4bd6cb644cc147a165eb90bac1d7a3fe7",
    },
    ("synthetic", "q4"): {
        "f32": "8c5809d7cc342c4beb17c348a25be3bc8ffb873596cc765a216e42c9b0fb489c",
        "f16": "9385795421c3912edbafe890d8134465886457f48cb58cb7528176245bac7d3d",
        "q8": "251847f347441516d74ce9d902e40279a6b3682f916271a0c5d4cbb714254533",
    },
    ("synthetic", "mxfp4"): {
        "f32": "eb0e3f0c49c9c725d17010938f7874288a5e6753823f47f93d8212d9dd929813",
        "f16": "a4bb92e25c0ac53adc3361a809d319703ebbb64d9f72134d50af0b36080250eb",
        "q8": "0997eb7fdf4b48f3ef9d69f4dc1afd15bb52a4baf0b306b743a83a49425c3fbc",
    },
}

ACROSS_CHUNKS = Continuation(PROMPT[:250], 272, (250, 256, 257, 272))
ACROSS_CHUNKS_HASHES: dict[Key, dict[str, str]] = {
    ("mixtral", "keep"): {
        "f32": "58a97153ed80af234b5fcd6dd33348cb03b94903305f7eec866e388c87d8833d",
        "f16": "a50d8a19f8c1e16fa7df81630cafebe35b772c86647b1acda3a49a20574ba6dd",
        "q8": "814806b6c63b7683bd2597bccbce9225f0036667421a90d0e630389a68aaf73a",
    },
    ("mixtral", "q8"): {
        "f32": "6bccbddf65757ecb4e4fb095c996670b6c7373e6692f1fc1de908c2c46d464e3",
        "f16": "bad0b586e8387ec7bc9da4cbc473448720434cb4fd2a2ab9c0472133993acf20",
        "q8": "433b621f3bf56caea6390762a0702c41824304127d6411834dddcf768b3a270b",
    },
    ("mixtral", "q4"): {
        "f32": "84bb2a5d802ab13330865f6e7186ece53ea6d6452c72dfa2134020d80a931279",
        "f16": "081b7605907e7bb341a7d1facf643dc4653b0eaf29d70994c0a1949bcc84ee27",
        "q8": "68b30c27e7d782c15a0ede74d445f4e30002661aa5d77b219a4c16dfa5dc8860",
    },
    ("mixtral", "mxfp4"): {
        "f32": "836a9bda9a67d5f963275407e10270c59b5ebb5f95f46fb69b6145f334391c89",
        "f16": "3bcbd4273192f911e6092284ef63842a74dab0e6e8e5c78d21d1cd48a9796d07",
        "q8": "06b344ffdec86a050c1fd3e8ba2020fc6f74f012342fe562da1690c4a80a2f4e",
    },
}
