"""The engine: chunks, rounds and slots over a real tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoding import chosen_in, opened, read, write_on
from scripted import COMPILER
from tiny_checkpoints import write_tiny

from proto.chat import AnswerFormat, Call
from proto.worker_settings import CacheSettings, Launch, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.faults import StartFault
from worker.grammar.forms import form_of
from worker.grammar.matcher import Matcher
from worker.kernels import product
from worker.kernels.product import InFours, PackedProduct, PlainProduct, product_of
from worker.loading.locate import open_checkpoint
from worker.models.config import SamplingDefaults
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine, machine_of, max_len_of
from worker.state.slot import Slot

SEEDED = Sampling(temperature=1.0, top_p=0.95, top_k=50, min_p=0.0, seed=11)
PENALIZED = replace(SEEDED, frequency_penalty=0.4, repetition_penalty=1.1)
PROMPT = tuple(range(5, 95))


def _launch(path: Path, **changes: object) -> Launch:
    settings = replace(WorkerSettings(model=str(path), weights="fp32", threads=1), **changes)
    return Launch(settings, "tiny", str(path), "ipc:///x", "/x")


def _engine(path: Path, chunk: int = 32, **changes: object) -> Engine:
    machine = Machine("cpu", threads=1, chunk=chunk, lanes=1, slots=2)
    checkpoint = open_checkpoint(path)
    return build_engine(
        _launch(path, **changes), machine, checkpoint, masked_ids=(511,), end_ids=(2,)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    write_tiny("llama", path)
    return path


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3_5", "qwen3_5_moe", "qwen3_next"])
def any_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path)
    return path


def _open(engine: Engine, prompt: tuple[int, ...], sampling: Sampling = SEEDED) -> Slot:
    return opened(engine, prompt, Chooser(sampling, prompt))


def _write(engine: Engine, prompt: tuple[int, ...], count: int) -> list[int]:
    slot = _open(engine, prompt)
    written = [read(engine, slot), *write_on(engine, slot, count - 1)]
    engine.close(slot)
    return written


def test_seeded_text_does_not_depend_on_how_the_prompt_was_cut(any_folder: Path):
    written = [_write(_engine(any_folder, chunk), PROMPT, 40) for chunk in (1, 7, 32, 256)]
    assert written[0] == written[1] == written[2] == written[3]
    assert len(set(written[0])) > 5


def test_a_slot_that_served_before_writes_the_same(any_folder: Path):
    engine = _engine(any_folder)
    first = _write(engine, PROMPT, 20)
    _write(engine, tuple(range(100, 300)), 20)
    assert _write(engine, PROMPT, 20) == first


def test_two_sequences_in_turn_write_what_each_writes_alone(any_folder: Path):
    engine = _engine(any_folder, chunk=256)
    prompts = (PROMPT, tuple(range(200, 240)))
    alone = [_write(engine, prompt, 10) for prompt in prompts]
    slots = [_open(engine, prompt) for prompt in prompts]
    assert engine.free_slots == 0
    both = [[read(engine, slot)] for slot in slots]
    for _ in range(9):
        for slot, written in zip(slots, both, strict=True):
            written += write_on(engine, slot, 1)
    assert both == alone


def test_there_is_room_for_a_prompt_and_its_answer_before_anything_is_read(folder: Path):
    engine = _engine(folder, chunk=32)
    slot = opened(engine, PROMPT, Chooser(SEEDED, PROMPT), output=200)
    capacity = slot.cache.kv.capacity
    assert len(PROMPT) + 200 + 64 <= capacity < len(PROMPT) + 200 + 64 + 32
    read(engine, slot)
    write_on(engine, slot, 190)
    assert slot.cache.kv.capacity == capacity
    assert engine.kv_bytes_free == 1 * (512 + 64) * 4 * 2 * 2 * 16 * 4


def test_a_long_answer_grows_by_an_eighth(folder: Path):
    engine = _engine(folder, chunk=32)
    slot = _open(engine, PROMPT)
    read(engine, slot)
    grown = []
    for _ in range(120):
        assert engine.grow(slot)
        grown.append(slot.cache.kv.capacity)
        write_on(engine, slot, 1)
    assert sorted(set(grown)) == [160, 192, 224, 256, 320]


def test_the_state_of_delta_layers_counts_in_what_slots_may_take(tmp_path: Path):
    write_tiny("qwen3_5", tmp_path)
    kv, recurrent, conv = 1 * (512 + 64) * 2 * 2 * 16 * 4, 3 * 4 * 16 * 16 * 4, 3 * 3 * 128 * 4
    engine = _engine(tmp_path)
    assert engine.kv_bytes_free == engine.free_slots * (kv + recurrent + conv)


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(any_folder: Path, weights: str):
    assert _engine(any_folder, weights=weights).is_row_invariant()


def test_the_self_check_writes_a_token_and_gives_its_slot_back(any_folder: Path):
    engine = _engine(any_folder)
    engine.check()
    assert engine.free_slots == 2


def test_a_model_that_cannot_write_is_found_at_start(folder: Path, monkeypatch):
    engine = _engine(folder)
    monkeypatch.setattr(engine, "_forward", _raise)
    with pytest.raises(StartFault, match="cannot write a token"):
        engine.check()


def _raise(*_: object) -> None:
    raise RuntimeError("no kernel")


def test_the_embedded_models_defaults_are_its_makers(folder: Path):
    named = _engine(folder, model="smollm2").facts
    assert named.defaults == SamplingDefaults(temperature=0.2, top_p=0.9)
    assert _engine(folder).facts.defaults == SamplingDefaults()


def test_lengths_are_the_models_at_most_8192_on_a_cpu(folder: Path):
    machine = Machine("cpu", threads=1, chunk=256, lanes=1, slots=2)
    assert max_len_of(_launch(folder), machine, 512) == 512
    assert max_len_of(_launch(folder), machine, 131_072) == 8192
    assert max_len_of(_launch(folder), Machine("cuda", 1, 1024, 1, 2), 131_072) == 131_072
    assert max_len_of(_launch(folder, max_len=100), machine, 512) == 100
    with pytest.raises(StartFault, match="512"):
        max_len_of(_launch(folder, max_len=600), machine, 512)


def test_auto_and_zero_are_resolved_by_the_machine(folder: Path):
    cpu = machine_of(_launch(folder, threads=0), has_cuda=False)
    assert (cpu.device, cpu.chunk, cpu.slots) == ("cpu", 256, 2)
    assert cpu.threads >= 1
    assert machine_of(_launch(folder), has_cuda=True).chunk == 1024
    assert machine_of(_launch(folder, device="cpu"), has_cuda=True).device == "cpu"
    with pytest.raises(StartFault, match="CUDA"):
        machine_of(_launch(folder, device="cuda"), has_cuda=False)


# Products.


def test_packed_products_are_the_plain_ones(folder: Path):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(96, 64, generator=generator).bfloat16()
    bias = torch.randn(96, generator=generator).bfloat16()
    made = product_of(weight, bias)
    if not isinstance(made, PackedProduct):
        pytest.skip("This CPU or this torch packs no bf16 weights.")
    for rows in (1, 2, 3, 17, 64):
        x = torch.randn(rows, 64, generator=generator).bfloat16()
        assert torch.equal(made(x), PlainProduct(weight, bias)(x))


@pytest.mark.parametrize("shape", [(96, 64), (512, 1536), (33, 40), (2048, 1024)])
def test_fp32_rows_keep_their_bits_whatever_stands_beside_them(shape: tuple[int, int]):
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(shape, generator=generator), torch.randn(shape[0])
    made = product_of(weight, bias)
    x = torch.randn(70, shape[1], generator=generator)
    alone = torch.cat([made(row) for row in x.split(1)])
    for rows in (2, 3, 4, 5, 8, 17, 33, 64, 70):
        assert torch.equal(made(x[:rows]), alone[:rows])
    exact = x.double() @ weight.double().T + bias
    assert (alone - exact).abs().max() <= 1e-4 * exact.abs().max()


def test_an_fp32_product_that_rounds_what_goes_in_is_not_used(monkeypatch):
    weight, packed = torch.randn(96, 64), PackedProduct._product
    assert isinstance(product_of(weight), InFours)
    if not isinstance(product_of(weight)._product, PackedProduct):
        pytest.skip("This CPU or this torch packs no fp32 weights.")
    monkeypatch.setattr(
        PackedProduct, "_product", lambda self, x: packed(self, x.bfloat16().float())
    )
    assert isinstance(product_of(weight)._product, PlainProduct)


@pytest.mark.parametrize("inputs", [64, 512])
def test_few_rows_of_a_large_weight_are_sent_as_four_and_keep_their_bits(inputs: int, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    made = product_of(torch.randn(1024, inputs, generator=generator).bfloat16())
    if not isinstance(made, PackedProduct):
        pytest.skip("This CPU or this torch packs no bf16 weights.")
    sent, plain = [], PackedProduct._product
    monkeypatch.setattr(
        PackedProduct, "_product", lambda self, x: sent.append(len(x)) or plain(self, x)
    )
    x = torch.randn(5, inputs, generator=generator).bfloat16()
    for rows in range(1, 6):
        assert torch.equal(made(x[:rows]), plain(made, x)[:rows])
    assert sent == ([4, 4, 3, 4, 5] if inputs == 512 else [1, 2, 3, 4, 5])


def test_a_packed_product_that_is_wrong_is_not_used(monkeypatch):
    weight = torch.randn(96, 64).bfloat16()
    monkeypatch.setattr(product.PackedProduct, "__call__", lambda self, x: x[:, :1] * 0)
    assert type(product_of(weight)) is PlainProduct
    monkeypatch.setattr(product.PackedProduct, "__init__", _raise)
    assert type(product_of(weight)) is PlainProduct


def test_b55_an_engine_computes_fp32_products_in_full_whatever_the_environment_says(folder: Path):
    torch.set_float32_matmul_precision("high")
    try:
        _engine(folder)
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_bytes_of_a_cache_are_known_before_it_is_made(any_folder: Path):
    for weights in ("fp32", "bf16"):
        model = _engine(any_folder, weights=weights)._model
        cache = model.new_cache(64)
        cache.reserve(192)
        held = cache.kv.size_bytes + (0 if cache.delta is None else cache.delta.size_bytes)
        assert model.cache_bytes(192) == held


def _run_to(engine: Engine, prompt: tuple[int, ...], count: int) -> Slot:
    slot = opened(engine, prompt, Chooser(PENALIZED, prompt, matcher=_letters_forever()))
    read(engine, slot)
    write_on(engine, slot, count)
    return slot


def _letters_forever() -> Matcher:
    form = form_of(Call("m", (), answer_format=AnswerFormat("regex", "[a-z ]*")), "hermes")
    assert form is not None
    return COMPILER.compile(form)


def test_a_thawed_slot_goes_on_with_the_same_logits_to_the_bit(any_folder: Path):
    engine = _engine(any_folder)
    whole_row = replace(PENALIZED, top_logprobs=511)
    slot = opened(engine, PROMPT, Chooser(whole_row, PROMPT, matcher=_letters_forever()))
    read(engine, slot)
    frozen = slot.freeze()
    first = chosen_in(engine, slot, 12)
    after = slot.freeze()
    other = opened(engine, (9,), Chooser(SEEDED, (9,)))  # a slot that held something else
    engine.read_chunk(other, 1)
    write_on(engine, other, 3)
    for thawed in (slot, other):
        thawed.thaw(frozen)
        assert thawed.freeze() == frozen
        assert chosen_in(engine, thawed, 12) == first
        assert thawed.freeze() == after
    assert frozen != after
    assert len(first[0].top) == 511


@pytest.mark.parametrize(
    "change", ["ctx", "prompt", "kv_len", "salt", "keys", "recurrent", "conv", "chooser"]
)
@torch.inference_mode()
def test_frozen_slots_differ_in_every_part(change: str, tmp_path: Path):
    write_tiny("qwen3_5", tmp_path)
    engine = _engine(tmp_path)
    slot = _run_to(engine, PROMPT, 5)
    frozen = slot.freeze()
    assert slot.freeze() == frozen
    match change:
        case "ctx":
            slot.ctx[3] += 1
        case "prompt":
            slot.prompt_length -= 1
        case "kv_len":
            slot.kv_len -= 1
        case "salt":
            slot.salt = "yours"
        case "keys":
            slot.cache.kv.read(0, 8)[0][0, 2, 0] += 1e-3
        case "recurrent":
            slot.cache.delta.recurrent[0, 0, 0, 0] += 1e-3
        case "conv":
            slot.cache.delta.conv[0, 0, 0] += 1e-3
        case "chooser":
            slot.chooser.skip(1)
    assert slot.freeze() != frozen


def test_a_prompt_that_another_slot_has_read_gives_the_same_answer(any_folder: Path):
    engine = _engine(any_folder)
    second = replace(SEEDED, choice=1)
    alone = opened(engine, PROMPT, Chooser(second, PROMPT))
    expected = [read(engine, alone), *write_on(engine, alone, 10)]
    engine.close(alone)
    reader = _open(engine, PROMPT)
    read(engine, reader)
    shared = engine.share(reader)
    write_on(engine, reader, 5)  # what the reader writes later is not shared
    taker = opened(engine, PROMPT, Chooser(second, PROMPT), is_shared=True)
    written = [engine.take_shared(taker, shared).token, *write_on(engine, taker, 10)]
    assert written == expected
    engine.close(reader)
    with pytest.raises(AssertionError):  # what a slot held before is nobody's prompt
        engine.share(_open(engine, PROMPT))


def test_tokens_that_are_put_in_are_read_once_and_the_last_is_the_root(any_folder: Path):
    engine = _engine(any_folder)
    slot = _open(engine, PROMPT)
    root = read(engine, slot)
    engine.inject(slot, [7, 8, 9])
    assert (len(slot.ctx), slot.ctx[-4:]) == (slot.kv_len + 1, [root, 7, 8, 9])
    assert slot.chooser.number == 5
    written = write_on(engine, slot, 6)
    prompt = (*PROMPT, root, 7, 8, 9)
    as_prompt = opened(engine, prompt, Chooser(SEEDED, prompt, number=5))
    assert [read(engine, as_prompt), *write_on(engine, as_prompt, 5)] == written


def test_x5_a_side_run_leaves_every_byte_of_the_others(any_folder: Path):
    engine = _engine(any_folder)
    main = _run_to(engine, PROMPT, 5)
    frozen, free = main.freeze(), engine.free_slots
    side = opened(engine, (5, 6, 7), Chooser(SEEDED, (5, 6, 7)), is_side=True)
    assert engine.free_slots == free
    read(engine, side)
    write_on(engine, side, 20)
    engine.close(side)
    assert main.freeze() == frozen
    assert engine.free_slots == free


def test_x5_a_side_run_between_the_chunks_of_a_prompt_changes_no_byte_of_what_is_read(
    any_folder: Path,
):
    frozen = []
    for has_side in (False, True):
        engine = _engine(any_folder)
        main = opened(engine, PROMPT, Chooser(SEEDED, PROMPT), salt="main")
        engine.read_chunk(main, 32)
        if has_side:
            side = opened(engine, (5, 6, 7), Chooser(SEEDED, (5, 6, 7)), is_side=True)
            read(engine, side)
            write_on(engine, side, 5)
        read(engine, main)
        write_on(engine, main, 5)
        frozen.append(main.freeze())
    assert frozen[0] == frozen[1]


def test_b57_a_run_whose_slot_another_had_goes_on_as_if_nothing_had_been(any_folder: Path):
    engine = _engine(any_folder)
    alone = _write(engine, PROMPT, 30)
    chooser = Chooser(SEEDED, PROMPT)
    slot = opened(engine, PROMPT, chooser, salt="slow")
    written = [read(engine, slot), *write_on(engine, slot, 9)]
    before, free = slot.freeze(), engine.free_slots
    aside = engine.set_aside(slot)
    assert engine.free_slots == free + 1
    for number in range(2):  # every slot holds something else by now
        _write(engine, tuple(range(100 + number, 300)), 10)
    slot = engine.take_back(aside, chooser)
    assert slot.freeze() == before
    assert slot.chooser is chooser  # the run's own, which it may still change
    assert [*written, *write_on(engine, slot, 20)] == alone
    engine.close(slot)


def test_nothing_is_set_aside_where_it_has_no_room(folder: Path):
    engine = _engine(folder, cache=CacheSettings(store_mb=1, entry_share=0.001))
    slot = _open(engine, PROMPT)
    read(engine, slot)
    free = engine.free_slots
    assert engine.set_aside(slot) is None
    assert engine.free_slots == free
    assert len(write_on(engine, slot, 5)) == 5
