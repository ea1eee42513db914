"""How products of float32 values are computed. Knows no tensors."""

import torch


def compute_fp32_in_full() -> None:
    """In float32, not in TF32, which rounds what goes in to 10 bits.

    That is torch's default, but containers for GPUs come with TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, and
    the delta rule, the router and fp32 layouts are exact by this alone.
    """
    torch.set_float32_matmul_precision("highest")
