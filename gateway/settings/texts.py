"""Everything that a configuration says, before anybody has understood it. Knows two keys by name.

A process that hands its configuration on to others hands on these texts, so that all have the same,
whatever becomes of the files.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from gateway.settings.yaml import StrictLoader

SKILL = "SKILL.md"
MOST_FILES = 1_000  # profiles, and packages: more is a wrong folder
MOST_BYTES = 2 * 1024**2  # of all of them, so that other processes can be told


@dataclass(frozen=True, slots=True)
class Texts:
    """Of `tandem.yaml`; of profiles and packages by path. None: there is no such folder.

    Bytes that are no UTF-8 are lone surrogates.
    """

    main: str
    profiles: dict[str, str] | None = None
    packages: dict[str, str] | None = None

    def pack(self) -> str:
        """As one text, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def unpack(cls, packed: str) -> "Texts":
        """As they were packed."""
        return cls(**json.loads(packed))


def read_all(path: Path) -> Texts:
    """The texts of the file at `path` and of the folders that it names.

    Raises: OSError, UnicodeDecodeError (the file), TooMuch.
    """
    main = path.read_text(encoding="utf-8")
    named = _folders(main)
    profiles, packages = (
        path.parent / Path(named.get(key, key)).expanduser() for key in ("profiles", "packages")
    )
    return Texts(
        main,
        _texts_of(profiles, [*profiles.glob("*.yaml"), *profiles.glob("*.yml")]),
        _texts_of(packages, _package_files(packages)),
    )


class TooMuch(Exception):
    """A folder holds more than profiles or packages can be."""


def _folders(main: str) -> dict[str, str]:
    """What stands under `conductor`, as far as it is text; mistakes are told by the real reader."""
    try:
        root = yaml.compose(main, Loader=StrictLoader)
    except yaml.YAMLError:
        return {}
    return _scalars(_mappings(root).get("conductor"))


def _mappings(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def _scalars(node: yaml.Node | None) -> dict[str, str]:
    found = _mappings(node)
    return {key: v.value for key, v in found.items() if isinstance(v, yaml.ScalarNode) and v.value}


def _package_files(folder: Path) -> Iterable[Path]:
    """Markdown files; of a skill's folder its `SKILL.md` alone, whatever else lies in it."""
    files = list(folder.rglob("*.md"))
    skills = {file.parent for file in files if file.name == SKILL}
    return [
        file
        for file in files
        if not skills.intersection(file.parents[1 if file.name == SKILL else 0 :])
    ]


def _texts_of(folder: Path, files: Iterable[Path]) -> dict[str, str] | None:
    if not folder.is_dir():
        return None
    texts: dict[str, str] = {}
    size = 0
    for file in sorted(files):
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue  # an editor's
        data = file.read_bytes()
        size += len(data)
        if len(texts) == MOST_FILES or size > MOST_BYTES:
            raise TooMuch(f"{folder}: more than {MOST_FILES} files or {MOST_BYTES} bytes")
        texts[str(file)] = data.decode("utf-8", "surrogateescape")
    return texts
