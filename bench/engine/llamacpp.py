"""llama.cpp as a contender: one model in a process of its own, asked over its standard streams.

    PYTHON bench/engine/llamacpp.py MODEL.gguf THREADS

Runs in an environment that holds llama-cpp-python and nothing of ours, so it imports nothing of
ours. A line in: `{"prompt": ids, "count": tokens, "follow": ids or null}`, and optionally `"ends"`,
ids that end an answer, and `"guesses"`, how many tokens its prompt lookup guesses at once; a line
out: `{"prefill_s", "decode_s", "tokens", "accepted"}`. The first token counts to the prefill, as
everywhere. With `"through": "package"` the package's own generator writes instead of this loop.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

CONTEXT = 2048  # tokens
BATCH = 256  # tokens forwarded together, as our prefill does


def main() -> None:
    """Answers lines until there are no more."""
    path, threads = sys.argv[1], int(sys.argv[2])
    model, package = Model(path, threads), None
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.pop("through", None) is None:
            made = model.write(**asked)
        else:
            package = package or Package(path, threads)
            made = package.write(**asked)
        print(json.dumps(made), flush=True)
    if package is not None:
        package.close()  # it logs, so before the other is gone


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
        self._rows = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def write(
        self, prompt: list[int], count: int, follow: list[int] | None,
        ends: Sequence[int] = (), guesses: int = 0,
    ) -> dict[str, object]:  # fmt: skip
        """`count` tokens after a prompt, greedy or those of `follow`, or up to one of `ends`."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=guesses) if guesses else None
        ids = np.zeros(len(prompt) + count, dtype=np.intc)
        ids[: len(prompt)] = prompt
        began_s = time.perf_counter()
        for start in range(0, len(prompt), BATCH):
            self._forward(prompt[start : start + BATCH])
        first_s = time.perf_counter()
        tokens = [follow[0] if follow else self._likeliest(-1)]
        accepted = []
        while len(tokens) < count and tokens[-1] not in ends:
            end = len(prompt) + len(tokens)
            ids[len(prompt) : end] = tokens
            guess = [] if lookup is None else lookup(ids[:end])[: count - len(tokens) - 1].tolist()
            if guess:
                self._forward_all([tokens[-1], *guess], end - 1)
            else:
                self._forward(tokens[-1:])
            path = _walk(guess, self._likeliest, follow[len(tokens) :] if follow else None, ends)
            if len(path) <= len(guess):
                llama_cpp.llama_memory_seq_rm(memory, 0, end - 1 + len(path), -1)
            tokens += path
            accepted.append(len(path) - 1)
        end_s = time.perf_counter()
        times = {"prefill_s": first_s - began_s, "decode_s": end_s - first_s}
        return {**times, "tokens": tokens, "accepted": accepted}

    def _forward(self, ids: list[int]) -> None:
        """Ids that follow those before; the logits of the last."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        self._decode(llama_cpp.llama_batch_get_one(tokens, len(ids)))

    def _forward_all(self, ids: list[int], start: int) -> None:
        """Ids from a position on; the logits of all."""
        rows = self._rows
        rows.n_tokens = len(ids)
        for row, token in enumerate(ids):
            rows.token[row], rows.pos[row] = token, start + row
            rows.n_seq_id[row], rows.seq_id[row][0], rows.logits[row] = 1, 0, 1
        self._decode(rows)

    def _decode(self, batch: llama_cpp.llama_batch) -> None:
        status = llama_cpp.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode: {status}"

    def _likeliest(self, row: int) -> int:
        """The likeliest token behind a row of the last forward."""
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, shape=(self._width,)).argmax())


def _walk(
    guess: list[int], likeliest: Callable[[int], int], follow: list[int] | None, ends: Sequence[int]
) -> list[int]:
    """The tokens behind the rows as far as the guess was right; at least one."""
    path: list[int] = []
    for row in range(len(guess) + 1):
        chosen = likeliest(row if guess else -1)
        path.append(follow[row] if follow else chosen)
        if path[-1] in ends or row == len(guess) or path[-1] != guess[row]:
            break
    return path


class Package(llama_cpp.Llama):
    """The package's own generator with its prompt lookup, which forwards and copies all logits."""

    def __init__(self, path: str, threads: int) -> None:
        super().__init__(
            path, n_ctx=CONTEXT, n_batch=BATCH, n_ubatch=BATCH, n_threads=threads,
            n_threads_batch=threads, draft_model=LlamaPromptLookupDecoding(), logits_all=True,
            verbose=False,
        )  # fmt: skip
        self._follow: list[int] | None = None
        self._chosen = 0
        self._before: list[int] = []  # tokens chosen before each forward

    def write(
        self, prompt: list[int], count: int, follow: list[int] | None,
        ends: Sequence[int] = (), guesses: int = 10,
    ) -> dict[str, object]:  # fmt: skip
        """See `Model.write`."""
        assert self.draft_model is not None
        self.draft_model.num_pred_tokens = guesses
        self._follow, self._chosen, self._before = follow, 0, []
        self.reset()
        began_s = time.perf_counter()
        tokens: list[int] = []
        for token in self.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True):
            tokens.append(token)
            if len(tokens) == 1:
                first_s = time.perf_counter()
            if len(tokens) == count or token in ends:
                break
        times = {"prefill_s": first_s - began_s, "decode_s": time.perf_counter() - first_s}
        ends_of = [*self._before[2:], len(tokens)]  # the first forward is the prompt's
        pairs = zip(self._before[1:], ends_of, strict=True)
        return {**times, "tokens": tokens, "accepted": [end - start - 1 for start, end in pairs]}

    def eval(self, tokens: Sequence[int]) -> None:
        """Forwards, and notes when."""
        self._before.append(self._chosen)
        super().eval(tokens)

    def sample(self, *args: object, **options: object) -> int:
        """What it would choose, at its cost, or the text to follow."""
        token: int = super().sample(*args, **options)
        if self._follow is not None:
            token = self._follow[self._chosen]
        self._chosen += 1
        return token


if __name__ == "__main__":
    main()
