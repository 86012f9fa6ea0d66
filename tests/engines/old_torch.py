"""What older releases ask of torch and today's no longer answers; a rig imports this before its engine."""

import torch

if not hasattr(torch._C._cpu, "_is_avx512_supported"):
    # By which vLLM 0.17 picks a kernel that is not there.
    torch._C._cpu._is_avx512_supported = lambda: False
