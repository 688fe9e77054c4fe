"""HTTP that sends a request once.

aiohttp repeats a PUT, DELETE or GET of its own accord when a connection that was kept open breaks, below every retry
setting of the SDKs.  A conditional PUT whose answer was lost then meets itself and looks as if it had lost.
"""

from __future__ import annotations

from azure.core.pipeline.transport import AioHttpTransport


class OnceTransport(AioHttpTransport):  # type: ignore[misc]  # without types
    """A transport of its client's own; it does not look for proxies and passwords in the environment, at each request.

    That search costs two hops through a thread pool for each request.
    """

    def __init__(self) -> None:
        super().__init__(use_env_settings=False)

    async def open(self) -> None:
        """Open, and keep aiohttp from repeating; there is no public way to say so."""
        await super().open()
        if self.session is not None:
            self.session._retry_connection = False
