"""From the model name in a request to the one place that serves it. Knows no sockets.

A name leads exactly where the operator said; nothing ever falls through to a backend that was not
meant, because a typing mistake must not reach a paid API.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gateway.errors import ApiError
from gateway.exchange import header_text
from gateway.settings.types import BackendSettings, Settings, Spoken, Surface
from proto.limits import KNOWN_NAMES_LISTED

FOUND_NAMES = 1_000  # remembered; a client may ask for any name that begins with a prefix

_OPENAI: tuple[Spoken, ...] = (
    "chat", "completions", "responses", "embeddings", "audio", "images", "moderations",
)  # fmt: skip
_LOCAL: tuple[Spoken, ...] = ("chat", "completions", "embeddings")
_ENGINE = _LOCAL[:2]  # and embeddings, where its model makes them
_ANTHROPIC: tuple[Spoken, ...] = ("messages", "count_tokens")


@dataclass(frozen=True)
class Target:
    """Where a request goes. `backend` None means our own engine; `model` is the name sent there.

    `model` is "" for what names no model.
    """

    backend: str | None
    model: str

    @cached_property
    def routed_via(self) -> str:
        """How the answer's header names it."""
        backend = self.backend or "worker"
        return f"{backend}/{self.model}" if self.model else backend

    @cached_property
    def via_header(self) -> bytes:
        """The value of that header."""
        return header_text(self.routed_via)


Listed = Callable[[str], Iterable[str]]  # backend name → the model ids it says it has


class RoutingTable:
    """The names a client may ask for. `listed` gives a backend's models as known right now.

    `can_embed`: whether our own engine's model makes embeddings, as known right now.
    """

    def __init__(
        self, settings: Settings, listed: Listed, can_embed: Callable[[], bool] = lambda: True
    ) -> None:
        self._backends = settings.backends
        self._listed = listed
        self._can_embed = can_embed
        self._engine_model = settings.worker.model_name if settings.worker else None
        self._spoken = {name: spoken_by(backend) for name, backend in settings.backends.items()}
        defaults = [name for name, backend in settings.backends.items() if backend.default]
        self._default = Target(defaults[0], "") if defaults else None
        self._routes: dict[str, Target] = {}
        self._route_models: dict[str, Target] = {}
        self._found: dict[str, Target] = {}  # at most FOUND_NAMES
        for name, route in settings.routes.items():
            target = Target(route.targets[0].backend, route.targets[0].model)
            for alias in (name, *route.aliases):
                self._routes[alias] = target
            self._route_models.setdefault(target.model, target)

    def find(self, model: str) -> Target | None:
        """The target of a name, or None; looked up once, until a backend lists other models.

        "" is the name of no model: it leads to the default backend.

        Raises: ApiError 404 `no_default_backend` when there is none.
        """
        target = self._found.get(model)
        if target is None and (target := self._look_up(model)) is not None:
            if len(self._found) >= FOUND_NAMES:
                self._found.clear()
            self._found[model] = target
        return target

    def forget(self) -> None:
        """A backend lists other models than before: names may lead elsewhere."""
        self._found.clear()

    def _look_up(self, model: str) -> Target | None:
        """The order is the contract."""
        if not model:
            if self._default is None:
                raise _no_default()
            return self._default
        if model == self._engine_model:
            return Target(None, model)
        if (routed := self._routes.get(model)) is not None:
            return routed
        backend, slash, rest = model.partition("/")
        if slash and rest and backend in self._backends and self._may_hold(backend, rest):
            return Target(backend, rest)
        if (held := self._route_models.get(model)) is not None:
            return held
        for name in self._backends:
            if model in self._listed(name):
                return Target(name, model)
        if (claimed := self._claimed_by_prefix(model)) is not None:
            return Target(claimed, model)
        if self._engine_model is not None and not self._backends:
            return Target(None, model)
        return None

    def resolve(self, model: str, surface: Surface) -> Target:
        """The target of a name on a surface.

        Raises: ApiError 404 `model_not_found` (400 on Responses) or `surface_not_served`.
        """
        return self.check(self.find(model), model, surface)

    def check(self, target: Target | None, model: str, surface: Surface) -> Target:
        """The target that was found for a name, if it is one and serves the surface.

        Raises: as `resolve`.
        """
        if target is None:
            known = list(self.names())[:KNOWN_NAMES_LISTED]
            raise ApiError(
                400 if surface == "responses" else 404,
                "model_not_found",
                f"No model is named {model!r} here. Known: {', '.join(known) or 'none'}.",
                param="model",
            )
        spoken = self.speaks(target)
        if surface not in spoken and target is not self._default:
            raise ApiError(
                404,
                "surface_not_served",
                f"The model {model!r} is not served on {surface}; it is on {', '.join(spoken)}.",
                param="model",
            )
        return target

    def speaks(self, target: Target) -> tuple[Spoken, ...]:
        """The surfaces on which a target answers."""
        if target.backend is None:
            return _LOCAL if self._can_embed() else _ENGINE
        return self._spoken[target.backend]

    def names(self) -> Iterable[str]:
        """Every name a client may ask for, without doubles, ours first."""
        seen: dict[str, None] = {}
        if self._engine_model is not None:
            seen[self._engine_model] = None
        seen.update(dict.fromkeys(self._routes))
        for name in self._backends:
            seen.update(dict.fromkeys(self._listed(name)))
        return seen

    def _may_hold(self, backend: str, model: str) -> bool:
        settings = self._backends[backend]
        if settings.models == "auto" or model in settings.models:
            return True
        return settings.prefix is not None and model.startswith(settings.prefix)

    def _claimed_by_prefix(self, model: str) -> str | None:
        claims = [
            (len(settings.prefix), name)
            for name, settings in self._backends.items()
            if settings.prefix and model.startswith(settings.prefix)
        ]
        return max(claims, key=lambda claim: claim[0])[1] if claims else None


def _no_default() -> ApiError:
    message = (
        "Files and batches name no model, and no backend takes them here: "
        "the operator can mark one with 'default: true' under 'backends'."
    )
    return ApiError(404, "no_default_backend", message)


def spoken_by(backend: BackendSettings) -> tuple[Spoken, ...]:
    """The surfaces a backend speaks: as configured, else by its kind and flavor."""
    if backend.speaks is not None:
        return backend.speaks
    if backend.kind == "anthropic":
        return _ANTHROPIC
    if backend.kind == "gemini":
        return ("gemini",)
    return {
        "vllm": _LOCAL,
        "sglang": _LOCAL,
        "llamacpp": _LOCAL,
        "openrouter": _OPENAI[:2],
        "none": _OPENAI,
    }[backend.flavor]


def shadowed_models(models: Mapping[str, Iterable[str]]) -> list[tuple[str, str, str]]:
    """Model ids listed by two backends: (model, the owner, the one reached as `backend/model`)."""
    owners: dict[str, str] = {}
    shadowed = []
    for backend, listed in models.items():
        for model in listed:
            owner = owners.setdefault(model, backend)
            if owner != backend:
                shadowed.append((model, owner, backend))
    return shadowed
