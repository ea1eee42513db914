"""Where the chunks of a prompt start."""

from hypothesis import given
from hypothesis import strategies as st

from worker.prefill import agreed_length, plan


def test_chunks_start_at_multiples_and_at_cuts():
    made = plan(600, "llama", 256, cuts=(300,))
    starts = [position for position in range(600) if made.is_start(position)]
    assert (starts, made.cuts) == ([0, 256, 300, 512], (300,))
    assert [made.last_start(position) for position in (0, 255, 256, 299, 300, 511, 599)] == [
        0, 0, 256, 256, 300, 300, 512,
    ]  # fmt: skip


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
    assert {0, *ends[:-1]} == {position for position in range(length) if made.is_start(position)}


def test_after_a_start_off_the_grid_comes_one_short_chunk():
    made = plan(600, "llama", 256)
    assert made.chunk_end(300, 600) == 512


def test_the_hash_tells_apart_what_computes_different_bits():
    hashes = {
        plan(600, "llama", 256).hash_below(400),
        plan(600, "qwen2", 256).hash_below(400),
        plan(600, "llama", 128).hash_below(400),
        plan(600, "llama", 256, (300,)).hash_below(400),
    }
    assert len(hashes) == 4
    # A cut behind the length in question, beyond the prompt, or on the grid, changes nothing.
    plain = plan(600, "llama", 256).hash_below(300)
    assert plan(600, "llama", 256, (300,)).hash_below(300) == plain
    assert plan(600, "llama", 256, (700, 512)).hash_below(300) == plain


def test_two_plans_agree_up_to_the_first_cut_that_only_one_has():
    one = plan(600, "llama", 256, (100, 300))
    assert agreed_length(one, one) is None
    assert agreed_length(one, plan(600, "llama", 256, (100,))) == 300
    assert agreed_length(plan(600, "llama", 256, (50, 100)), one) == 50
    assert agreed_length(one, plan(600, "llama", 128, (100, 300))) == 0
    assert agreed_length(one, plan(600, "qwen2", 256, (100, 300))) == 0
