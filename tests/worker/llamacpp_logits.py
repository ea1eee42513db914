"""Prints llama.cpp's logits of a text as `.npy`: `PYTHON llamacpp_logits.py MODEL PARTS < IDS`.

PARTS: how many ids are forwarded at a time, such as `40,1,1`; together all of them. Runs in an
environment that holds llama-cpp-python, so it imports nothing of ours.
"""

import ctypes
import sys

import llama_cpp
import numpy as np


def main() -> None:
    """Loads, forwards, writes (ids, vocab) float32 to standard output."""
    path, parts = sys.argv[1], [int(part) for part in sys.argv[2].split(",")]
    ids = [int(word) for word in sys.stdin.read().split()]
    assert sum(parts) == len(ids)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        sys.exit("llama.cpp cannot load the model")  # it has said why on standard error
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 512
    # All in fp32, as ours: flash attention rounds to fp16.
    options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
    options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, options)
    width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows, at = [], 0
    for count in parts:
        rows.append(_forward(context, ids[at : at + count], at, width))
        at += count
    np.save(sys.stdout.buffer, np.concatenate(rows))


def _forward(context: object, ids: list[int], start: int, width: int) -> np.ndarray:
    """Logits of all the ids: (ids, vocab)."""
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for row, token in enumerate(ids):
        batch.token[row], batch.pos[row] = token, start + row
        batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, True
    status = llama_cpp.llama_decode(context, batch)
    assert status == 0, f"llama_decode: {status}"
    address = ctypes.cast(
        llama_cpp.llama_get_logits(context), ctypes.POINTER(ctypes.c_float)
    )  # fmt: skip
    made = np.ctypeslib.as_array(address, shape=(len(ids), width)).copy()
    llama_cpp.llama_batch_free(batch)
    return made


if __name__ == "__main__":
    main()
