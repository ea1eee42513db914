"""llama.cpp as a contender: one model in a process of its own, asked over its standard streams.

    PYTHON bench/engine/llamacpp.py MODEL.gguf THREADS

Runs in an environment that holds llama-cpp-python and nothing of ours, so it imports nothing of
ours. A line in: `{"prompt": ids, "count": tokens, "follow": ids or null}`; a line out:
`{"prefill_s", "decode_s", "tokens"}`. The first token counts to the prefill, as everywhere.
"""

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np

CONTEXT = 1024  # tokens
BATCH = 256  # tokens forwarded together, as our prefill does


def main() -> None:
    """Answers lines until there are no more."""
    path, threads = sys.argv[1], int(sys.argv[2])
    model = Model(path, threads)
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(model.write(**asked)), flush=True)


class Model:
    """A loaded model and one sequence."""

    def __init__(self, path: str, threads: int) -> None:
        self._log = llama_cpp.llama_log_callback(lambda *_: None)  # must outlive its use
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = CONTEXT, BATCH, BATCH
        options.n_threads = options.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        assert self._context, f"llama.cpp cannot load {path}"
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._width = llama_cpp.llama_vocab_n_tokens(vocab)

    def write(self, prompt: list[int], count: int, follow: list[int] | None) -> dict[str, object]:
        """`count` tokens after a prompt, greedy or those of `follow`."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        began_s = time.perf_counter()
        for start in range(0, len(prompt), BATCH):
            chosen = self._forward(prompt[start : start + BATCH])
        first_s = time.perf_counter()
        tokens = [follow[0] if follow else chosen]
        while len(tokens) < count:
            chosen = self._forward(tokens[-1:])
            tokens.append(follow[len(tokens)] if follow else chosen)
        end_s = time.perf_counter()
        return {"prefill_s": first_s - began_s, "decode_s": end_s - first_s, "tokens": tokens}

    def _forward(self, ids: list[int]) -> int:
        """The likeliest token after ids that follow those before."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(tokens, len(ids))
        status = llama_cpp.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode: {status}"
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, shape=(self._width,)).argmax())


if __name__ == "__main__":
    main()
