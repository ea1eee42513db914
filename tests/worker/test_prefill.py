"""Where the chunks of a prompt start."""

from hypothesis import given
from hypothesis import strategies as st

from worker.prefill import plan


def test_chunks_start_at_multiples_and_at_cuts():
    made = plan(600, "llama", 256, cuts=(300,))
    assert (made.starts, made.cuts) == ((0, 256, 300, 512), (300,))


@given(st.integers(1, 500), st.integers(1, 64), st.sets(st.integers(0, 600), max_size=3))
def test_b19_the_chunks_cover_the_prompt_once_on_a_grid_anchored_at_zero(length, chunk, cuts):
    made = plan(length, "llama", chunk, tuple(cuts))
    at, ends = 0, []
    while at < length:
        end = made.chunk_end(at, length)
        assert at < end <= min(length, at // chunk * chunk + chunk)
        ends.append(end)
        at = end
    assert ends[-1] == length
    assert set(range(0, length, chunk)) <= set(made.starts)


def test_after_a_start_off_the_grid_comes_one_short_chunk():
    made = plan(600, "llama", 256)
    assert made.chunk_end(300, 600) == 512


def test_the_hash_tells_apart_what_computes_different_bits():
    hashes = {
        plan(600, "llama", 256).hash,
        plan(600, "qwen2", 256).hash,
        plan(600, "llama", 128).hash,
        plan(600, "llama", 256, (300,)).hash,
    }
    assert len(hashes) == 4
    # A cut beyond the prompt, or on the grid, changes nothing.
    assert plan(600, "llama", 256, (700, 512)).hash == plan(500, "llama", 256).hash
