"""From a path to a checkpoint ready to build a model from. Knows no model code and no tokenizer.

A checkpoint is a folder (config.json and `*.safetensors`) or one `.gguf` file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from worker.faults import LoadFault
from worker.loading.gguf import GgufFile
from worker.loading.pooling import Pooling, pooling_of
from worker.loading.safetensors import SafetensorsFiles
from worker.models.config import ModelConfig, SamplingDefaults
from worker.models.config_gguf import config_from_gguf
from worker.models.config_json import config_from_json, text_fields
from worker.models.placement import TensorSource
from worker.models.registry import family_of, family_of_gguf

SAMPLED_BLOCKS = 64  # evenly spaced blocks of each file that go into the weights' hash
SAMPLED_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What tokenizer and template are made of.

    `tokenizer_json`: text of tokenizer.json, None when GGUF metadata stand in. `special`: the
    spellings of `bos_token` and `eos_token`, where known.
    """

    tokenizer_json: str | None
    gguf_keys: Mapping[str, Any] | None
    template: str | None
    special: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files, opened and checked. `end_ids` is empty when the files do not say.

    `pooling`: how its states become one vector a text, None where the files do not say.
    `weights_hash`: SHA-256 over each file's size, header and 64 evenly spaced blocks of 4 KiB
    (with config.json), in name order. It tells models and quantisations apart at no cost; a file
    altered only between the sampled blocks keeps its hash.
    """

    config: ModelConfig
    tensors: TensorSource
    text: TextFiles
    end_ids: tuple[int, ...]
    sampling: SamplingDefaults
    weights_hash: str
    pooling: Pooling | None = None


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a folder or a `.gguf` file and checks its headers.

    Raises: LoadFault with one sentence on what is missing, damaged or not supported.
    """
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return _open_gguf(path)
    if not path.exists():
        raise LoadFault(f"There is no model at {str(path)!r}.")
    raise LoadFault(f"{str(path)!r} is neither a folder with config.json nor a .gguf file.")


def _open_folder(folder: Path) -> Checkpoint:
    fields = _read_json(folder / "config.json")
    if fields is None:
        raise LoadFault(f"{str(folder)!r} holds no config.json.")
    shape = text_fields(fields)
    config = config_from_json(shape, family_of(str(shape.get("model_type"))))
    tensors = SafetensorsFiles.open(folder)
    generation = _read_json(folder / "generation_config.json") or {}
    marks = _read_json(folder / "tokenizer_config.json") or {}
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path, header_bytes in tensors.headers():
        _sample_file(digest, path, header_bytes)
    ends = generation.get("eos_token_id")
    for source in (fields, shape):
        ends = source.get("eos_token_id") if ends is None else ends
    return Checkpoint(
        config=config,
        tensors=tensors,
        text=TextFiles(
            tokenizer_json=_read_text(folder / "tokenizer.json"),
            gguf_keys=None,
            template=_folder_template(folder, marks),
            special={key: _spelling(marks.get(key)) for key in ("bos_token", "eos_token")},
        ),
        end_ids=_ids(ends),
        sampling=_sampling_of(generation),
        weights_hash=digest.hexdigest(),
        pooling=_folder_pooling(folder),
    )


def _folder_pooling(folder: Path) -> Pooling | None:
    fields = _read_json(folder / "1_Pooling" / "config.json")
    if fields is None:
        return None
    path = folder / "modules.json"
    text = _read_text(path)
    return pooling_of(fields, None if text is None else _parsed(path, text))


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile.open(path)
    family = family_of_gguf(file.architecture)
    config = config_from_gguf(
        file.architecture_keys(),
        family,
        embedding_rows=file.embedding_rows(),
        is_tied=not file.has("output.weight"),
    )
    digest = hashlib.sha256()
    _sample_file(digest, path, file.header_bytes)
    keys = file.keys
    tokens = keys.get("tokenizer.ggml.tokens", [])
    special = {
        name: tokens[index]
        for name in ("bos_token", "eos_token")
        if (index := keys.get(f"tokenizer.ggml.{name}_id")) is not None and index < len(tokens)
    }
    return Checkpoint(
        config=file.with_rope_divisors(config),
        tensors=file.tensor_source(config),
        text=TextFiles(
            tokenizer_json=_read_text(path.parent / "tokenizer.json"),
            gguf_keys=keys,
            template=keys.get("tokenizer.chat_template"),
            special=special,
        ),
        end_ids=_gguf_end_ids(keys, family.end_tokens),
        sampling=SamplingDefaults(),
        weights_hash=digest.hexdigest(),
    )


def _gguf_end_ids(keys: Mapping[str, Any], spellings: tuple[str, ...]) -> tuple[int, ...]:
    # The file names one end id; models end their turns with others of the family as well.
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [keys.get(f"tokenizer.ggml.{name}") for name in names]
    spelled = [
        index
        for index, token in enumerate(keys.get("tokenizer.ggml.tokens", ()))
        if token in spellings
    ]
    return tuple(sorted({index for index in (*named, *spelled) if index is not None}))


def _sample_file(digest: "hashlib._Hash", path: Path, header_bytes: int) -> None:
    size = path.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(header_bytes))
        for index in range(SAMPLED_BLOCKS):
            digest.update(_block_at(file, size * index // SAMPLED_BLOCKS))


def _block_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(SAMPLED_BLOCK_BYTES)


def _folder_template(folder: Path, marks: Mapping[str, Any]) -> str | None:
    text = _read_text(folder / "chat_template.jinja")
    if text is not None:
        return text
    template = marks.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _sampling_of(generation: Mapping[str, Any]) -> SamplingDefaults:
    # `do_sample: false` is transformers' own default and says nothing about the model.
    plain = SamplingDefaults()
    return SamplingDefaults(
        temperature=_number(generation.get("temperature"), plain.temperature),
        top_p=_number(generation.get("top_p"), plain.top_p),
        top_k=int(generation.get("top_k") or plain.top_k),
    )


def _number(value: Any, default: float) -> float:
    return default if value is None else float(value)


def _spelling(token: Any) -> str:
    if isinstance(token, dict):  # an AddedToken written out
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(value) if isinstance(value, list) else ()


def _read_text(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise LoadFault(f"{str(path)!r} cannot be read: {fault}.") from fault


def _read_json(path: Path) -> dict[str, Any] | None:
    text = _read_text(path)
    if text is None:
        return None
    fields = _parsed(path, text)
    if not isinstance(fields, dict):
        raise LoadFault(f"{str(path)!r} must hold a JSON object.")
    return fields


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as fault:
        raise LoadFault(f"{str(path)!r} is not JSON: {fault}.") from fault
