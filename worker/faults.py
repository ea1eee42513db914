"""Why a worker does not start. Knows nothing of runs: those are refused with `proto.faults`.

StartFault            one plain sentence; the process ends with status 2
├── LoadFault         the model's files
└── EndpointFault     the address to listen on
"""


class StartFault(Exception):
    """The worker cannot start. The message is one sentence for the operator."""


class LoadFault(StartFault):
    """A checkpoint that cannot be used: missing, damaged or of an unknown kind."""


class EndpointFault(StartFault):
    """An address that must not or cannot be bound."""
