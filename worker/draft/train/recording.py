"""Text that the target wrote, with all that a drafter learns from, on disk. Knows no drafter.

Hidden states and likeliest tokens are kept as they fall off while the text is written: to compute
them again would take two thirds of the time that writing takes, at every pass over the text. They
take about 6 KB a token for the embedded model. There are ids on disk, and no text.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from worker.draft.train.lanes import LIKELIEST, Lanes, Likeliest
from worker.models.decoder import Decoder

PART_SAMPLES = 64  # sequences in a file
TEMPERATURE = 0.7  # of what is not greedy
SAMPLED_EVERY = 4  # of the first pass; later passes are sampled, or they would say the same again
HELD_OUT_EVERY = 20  # prompts kept for the evaluation
LEAST_ANSWER = 8  # tokens; from less there is nothing to learn


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A sequence with what the target made of it.

    ids: (tokens,) int64, of which the first `prompt` were given. taps: (tokens - 1, taps x hidden)
    bfloat16. likeliest: behind each token from the first written one on, but the last.
    """

    ids: Tensor
    prompt: int
    taps: Tensor
    likeliest: Likeliest


@dataclass(frozen=True, slots=True)
class Recorded:
    """Where a sample lies. `number`: of its prompt in the order of asking."""

    path: Path
    number: int
    is_greedy: bool
    tokens: int
    prompt: int
    first_token: int  # of the sample, in the file's rows
    first_tap: int
    first_likeliest: int


class Recording:
    """A folder of parts, each a safetensors file of some sequences."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._waiting: list[tuple[int, bool, Sample]] = []
        self.samples: list[Recorded] = []
        self.seconds = 0.0  # that it took so far
        for path in sorted(folder.glob("part-*.safetensors")):
            self._list(path)

    @property
    def written(self) -> int:
        """Tokens that the target wrote, in all parts."""
        return sum(sample.tokens - sample.prompt for sample in self.samples)

    @property
    def numbers(self) -> set[int]:
        """Of the prompts that were answered."""
        return {sample.number for sample in self.samples}

    def add(self, number: int, sample: Sample, *, is_greedy: bool) -> None:
        """Keeps a sequence; it is on disk once its part is full, or at `flush`."""
        self._waiting.append((number, is_greedy, sample))
        if len(self._waiting) >= PART_SAMPLES:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        if not self._waiting:
            return
        index = len(list(self._folder.glob("part-*.safetensors")))
        path = self._folder / f"part-{index:05}.safetensors"
        samples = [sample for _, _, sample in self._waiting]
        facts = [
            [number, int(is_greedy), len(sample.ids), sample.prompt]
            for number, is_greedy, sample in self._waiting
        ]
        unfinished = path.with_suffix(".tmp")
        save_file(
            {
                "ids": torch.cat([sample.ids.int() for sample in samples]),
                "taps": torch.cat([sample.taps.bfloat16() for sample in samples]),
                "top_ids": torch.cat([sample.likeliest.ids.int() for sample in samples]),
                "top_logprobs": torch.cat([sample.likeliest.logprobs.half() for sample in samples]),
            },
            unfinished,
            metadata={"facts": json.dumps({"samples": facts, "seconds": self.seconds})},
        )
        unfinished.rename(path)
        self._waiting.clear()
        self._list(path)

    def load(self, at: Recorded) -> Sample:
        """Reads one sequence."""
        with safe_open(at.path, framework="pt") as file:
            taps, likeliest = at.tokens - 1, at.tokens - at.prompt - 1

            def rows(name: str, first: int, count: int) -> Tensor:
                part: Tensor = file.get_slice(name)[first : first + count]
                return part

            return Sample(
                ids=rows("ids", at.first_token, at.tokens).long(),
                prompt=at.prompt,
                taps=rows("taps", at.first_tap, taps),
                likeliest=Likeliest(
                    rows("top_ids", at.first_likeliest, likeliest).long(),
                    rows("top_logprobs", at.first_likeliest, likeliest).float(),
                ),
            )

    def _list(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
        self.seconds = facts["seconds"]
        token = tap = likeliest = 0
        for number, is_likeliest, tokens, prompt in facts["samples"]:
            self.samples.append(
                Recorded(path, number, bool(is_likeliest), tokens, prompt, token, tap, likeliest)
            )
            token, tap, likeliest = (
                token + tokens,
                tap + tokens - 1,
                likeliest + tokens - prompt - 1,
            )


def is_held_out(number: int, prompts: int) -> bool:
    """Whether the drafter must not learn from what was asked with this number."""
    return number % prompts % HELD_OUT_EVERY == 0


def is_greedy(number: int, prompts: int) -> bool:
    """Whether this answer is the target's likeliest."""
    return number < prompts and (number % SAMPLED_EVERY != 1)


class Writer:
    """Lets the target answer prompts, a lane each, and records what it writes.

    `prompts`: the ids of each, () for one to leave out. After the last comes the first again, whose
    answer is then sampled.
    """

    def __init__(
        self,
        model: Decoder,
        recording: Recording,
        prompts: Sequence[tuple[int, ...]],
        *,
        taps: Sequence[int],
        lanes: int,
        answer: int,
        end_ids: Sequence[int],
        masked: Sequence[int],
        seed: int,
    ) -> None:
        longest = max(map(len, prompts)) + answer
        self._lanes = Lanes(model, lanes=lanes, capacity=longest, taps=taps, masked=masked)
        self._recording = recording
        self._prompts = prompts
        self._answer = answer
        self._ends = frozenset(end_ids)
        self._noise = torch.Generator().manual_seed(seed)
        self._numbers = _numbers_left(prompts, recording.numbers)
        width = len(taps) * model.config.hidden_size
        self._taps = torch.zeros(lanes, longest, width, dtype=torch.bfloat16)
        self._top_ids = torch.zeros(lanes, answer, LIKELIEST, dtype=torch.int32)
        self._top_logprobs = torch.zeros(lanes, answer, LIKELIEST, dtype=torch.float16)
        self._number = [0] * lanes
        self._ids: list[list[int]] = [[] for _ in range(lanes)]
        self._next = torch.zeros(lanes, dtype=torch.int64)
        self._temperature = torch.zeros(lanes, 1)

    def write(self, goes_on: Callable[[int], bool]) -> None:
        """Writes until `goes_on`, which hears of all tokens written so far, says no."""
        for lane in range(len(self._ids)):
            self._begin(lane)
        written = self._recording.written
        while goes_on(written):
            taps, likeliest = self._lanes.step(self._next)
            self._note(taps, likeliest)
            written += len(self._ids)
            chosen = self._choose(likeliest)
            for lane, token in enumerate(chosen.tolist()):
                self._ids[lane].append(token)
                prompt = self._prompts[self._number[lane] % len(self._prompts)]
                if token in self._ends or len(self._ids[lane]) - len(prompt) >= self._answer:
                    self._keep(lane)
                    self._begin(lane)
                else:
                    self._next[lane] = token
        for lane in range(len(self._ids)):
            self._keep(lane)
        self._recording.flush()

    def _begin(self, lane: int) -> None:
        number = self._number[lane] = next(self._numbers)
        prompt = self._prompts[number % len(self._prompts)]
        self._temperature[lane] = 0.0 if is_greedy(number, len(self._prompts)) else TEMPERATURE
        taps, likeliest = self._lanes.read(lane, prompt)
        self._taps[lane, : len(prompt)] = taps
        first = self._choose(likeliest, lane)
        self._ids[lane] = [*prompt, int(first)]
        self._next[lane] = int(first)

    def _note(self, taps: Tensor, likeliest: Likeliest) -> None:
        for lane, ids in enumerate(self._ids):
            prompt = len(self._prompts[self._number[lane] % len(self._prompts)])
            place = len(ids) - 1  # of the token that was forwarded
            self._taps[lane, place] = taps[lane]
            self._top_ids[lane, place - prompt] = likeliest.ids[lane]
            self._top_logprobs[lane, place - prompt] = likeliest.logprobs[lane]

    def _choose(self, likeliest: Likeliest, lane: int | None = None) -> Tensor:
        """One token a row: the likeliest, or one drawn under the lane's temperature."""
        temperature = self._temperature if lane is None else self._temperature[lane : lane + 1]
        uniform = torch.rand(likeliest.logprobs.shape, generator=self._noise).clamp_min(1e-9)
        noisy = likeliest.logprobs.cpu() - temperature * (-uniform.log()).log()
        return likeliest.ids.cpu().gather(1, noisy.argmax(-1, keepdim=True))[:, 0]

    def _keep(self, lane: int) -> None:
        ids, number = self._ids[lane], self._number[lane]
        prompt = len(self._prompts[number % len(self._prompts)])
        forwarded = len(ids) - 1
        if len(ids) - prompt < LEAST_ANSWER:
            return
        sample = Sample(
            torch.tensor(ids),
            prompt,
            self._taps[lane, :forwarded].clone(),
            Likeliest(
                self._top_ids[lane, : forwarded - prompt].clone(),
                self._top_logprobs[lane, : forwarded - prompt].clone(),
            ),
        )
        self._recording.add(number, sample, is_greedy=is_greedy(number, len(self._prompts)))


def _numbers_left(prompts: Sequence[tuple[int, ...]], done: set[int]) -> Iterator[int]:
    """Numbers of prompts that are still to be asked, without end."""
    number = 0
    while True:
        # What is held out is asked once, for the evaluation.
        is_again = number >= len(prompts) and is_held_out(number, len(prompts))
        if number not in done and prompts[number % len(prompts)] and not is_again:
            yield number
        number += 1
