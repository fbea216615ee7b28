"""The instruction sets that loops are compiled for, and how tests choose one of them."""

# ATen's name of each, and the compiler's options.
INSTRUCTION_SETS = [
    (
        "DEFAULT",
        [],
    ),
    (
        "AVX2",
        [
            "-mavx2",
            "-mfma",
            "-mf16c",
        ],
    ),
    (
        "AVX512",
        [
            "-mavx512f",
            "-mavx512bw",
            "-mavx512vl",
            "-mavx512dq",
            "-mfma",
            "-mf16c",
            # gcc 12 warns of its own header: avx512fintrin.h, "__Y is used uninitialized".
            "-Wno-uninitialized",
            "-Wno-maybe-uninitialized",
        ],
    ),
]

# Suffixes of test names, and variables: ATEN_CPU_CAPABILITY is ATen's own, MKL_ENABLE_INSTRUCTIONS that of its matrix
# products and functions.
TEST_ENVIRONMENTS = [
    (
        "",
        {},
    ),
    (
        "_avx2",
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        },
    ),
    (
        "_default",
        {
            "ATEN_CPU_CAPABILITY": "default",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        },
    ),
]
