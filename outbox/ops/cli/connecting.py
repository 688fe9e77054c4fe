"""Connect an admin for the folder, for the application on Azure or for ordered logs there, by the options."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from outbox.ops.shared.arguments import Options
from outbox.ops.values.requests import Admin


def connect(options: Options) -> AbstractAsyncContextManager[Admin]:
    """The admin of the folder, of the application on Azure or of ordered logs there, by the options."""
    if options.data is not None:
        from outbox.ops.admins.folder import connect_admin

        return connect_admin(options.data, accept_clock=options.accept_clock)
    import logging

    from outbox.ops.admins.azure import Addresses, connect_azure_admin

    logging.getLogger("azure").addHandler(logging.NullHandler())  # its lines about connections are no answer
    names = ("cosmos", "servicebus", "database", "container", "states", "blobs", "blob_states")
    addresses = Addresses(**{name: getattr(options, name, "") for name in names})
    if not hasattr(options, "blob_states"):
        return connect_azure_admin(addresses)
    from outbox.ops.admins.azure import connect_stream_admin

    return connect_stream_admin(addresses)
