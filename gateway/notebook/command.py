"""The store as `serve` and the command line open it. Knows no table and no query."""

from gateway.preflight import CommandFailed
from gateway.settings.types import Settings
from gateway.store.db import Database, StoreFault, file_of


def open_store(settings: Settings) -> Database:
    """The database of every table but the ledger, where the configuration says.

    Raises: CommandFailed.
    """
    try:
        return Database.open(settings.store_target)
    except (StoreFault, OSError) as fault:
        raise CommandFailed(f"the store cannot be opened: {fault}") from fault


def open_existing_store(settings: Settings) -> Database:
    """The same, where `serve` has been: no verb that only reads makes a file.

    Raises: CommandFailed.
    """
    file = file_of(settings.store_target)
    if file is not None and not file.is_file():
        raise CommandFailed(f"there is no store at {file}; 'tandem serve' makes it")
    return open_store(settings)
