"""The levels of speed that the engine is held to, and what a run says of them."""

from dataclasses import dataclass

from bench.engine.rounds import Phase, Ratio, Series, ratio

# Source: the vLLM project's CPU backend, measured once on 2 cores with AVX-512 and bf16, on another
# machine, with the embedded model in bf16: tokens/s.
VLLM: dict[Phase, float] = {"decode": 42.0, "prefill": 922.0}
VLLM_MISSING = (
    "good: not judged, vLLM is missing: what PyPI has of it is for CUDA, and its CPU backend is "
    "built from source."
)


@dataclass(frozen=True, slots=True)
class Line:
    """A ratio that a level asks for."""

    level: str
    ours: str
    theirs: str
    phase: Phase
    least: float | None

    def verdict(self, series: dict[str, Series], where: str) -> str:
        """One line of the report, or why there is none."""
        asked = "–" if self.least is None else f"≥ {self.least}"
        missing = [name for name in (self.ours, self.theirs) if name not in series]
        if missing:
            return (
                f"| {self.level} | {where}: {self.phase} | – | ≥ {self.least} | no {missing[0]} |"
            )
        found = ratio(series[self.ours], series[self.theirs], self.phase)
        what = f"{where}: {self.phase}, {self.ours} / {self.theirs}"
        return f"| {self.level} | {what} | {found} | {asked} | {said(found, self.least)} |"


def said(found: Ratio, least: float | None) -> str:
    """Whether a ratio is what is asked, in words."""
    if least is None:
        return ""
    if found.least >= least:
        return "holds"
    if found.most < least:
        return "missed"
    return "holds, not in every round" if found.middle >= least else "missed, mostly"


FLOOR = {"decode": 1.3, "prefill": 0.95}


def floor(layout: str) -> tuple[Line, ...]:
    """Against transformers with the same weights in the same dtype."""
    ours, theirs = f"tandem {layout}", f"transformers {layout}"
    return (
        Line("floor", ours, theirs, "decode", FLOOR["decode"]),
        Line("floor", ours, theirs, "prefill", FLOOR["prefill"]),
    )


STRONG = tuple(
    Line("strong", f"tandem {layout}", "llama.cpp Q4_1", phase, least)
    for layout in ("q4", "mixed")
    for phase, least in (("decode", 0.8), ("prefill", 2.0))
)
# No targets: what torch is away from llama.cpp at equal bits.
BESIDE = (
    Line("–", "tandem bf16", "llama.cpp BF16", "decode", None),
    Line("–", "tandem int8", "llama.cpp Q8_0", "decode", None),
)


def notes_on_vllm(medians: dict[Phase, float]) -> list[str]:
    """What is missing for the level "good", and a ratio that is no verdict."""
    found = ", ".join(
        f"{phase} {speed / VLLM[phase]:.2f}" for phase, speed in sorted(medians.items())
    )
    return [VLLM_MISSING, f"Beside its numbers from another machine, as a note: {found}."]
