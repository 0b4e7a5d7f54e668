"""Listens on an address and serves the API; lets running answers end before it shuts down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from types import FrameType

import uvicorn

from glgpt.api.engine import Engine
from glgpt.api.routes import Api
from glgpt.errors import ArgumentError, quoted
from glgpt.page.serve import bound_socket, settings
from glgpt.system.network import LOOPBACK, in_address, is_loopback, reachable

logger = logging.getLogger(__name__)
PORT = 8080
DRAIN_TIMEOUT_S = 30.0  # maximum seconds for running answers to end
AFTER_DRAIN_S = 2  # maximum seconds for connections to close, after the answers have ended


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that lets running answers end after one signal. A second signal ends the server at once."""

    api: Api

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the shutdown; at a second signal, ends the server at once.

        When the server has ended, uvicorn raises the signal again, for the handler that was installed before its own.
        """
        if self.api.draining:
            super().handle_exit(sig, frame)
            self.force_exit = True
            return
        self.api.draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._begin, sig)

    def _begin(self, sig: int) -> None:
        self._draining = asyncio.ensure_future(self._drain(sig))  # a reference, so that the task is not collected

    async def _drain(self, sig: int) -> None:
        try:
            end = time.monotonic() + DRAIN_TIMEOUT_S
            if self.api.busy:
                logger.warning(
                    "the server ends when the running answers have ended, in %g s at the latest; interrupt it again to "
                    "end it at once", DRAIN_TIMEOUT_S,
                )  # fmt: skip
            while self.api.busy and time.monotonic() < end:
                await asyncio.sleep(0.05)
        finally:
            self.api.engine.stop()  # so that clients of the remaining answers receive an error before the server ends
            super().handle_exit(sig, None)


class ApiServer:
    """A server on `host`. The constructor binds the port; port 0 selects a free port.

    Raises ArgumentError for an address that cannot be used, or that other machines could use without a key.
    """

    def __init__(
        self,
        port: int = PORT,
        host: str = LOOPBACK,
        key: str | None = None,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        if not is_loopback(host) and key is None:
            raise ArgumentError(
                f"--host {quoted(host)} lets other machines use the model; give a key with --api-key-file FILE, or in "
                "the environment variable GLGPT_API_KEY"
            )
        self._key, self._origins, self._hosts = key, tuple(origins), (*hosts, host)
        self._socket = bound_socket(host, port, "--port")
        self.url = f"http://{in_address(reachable(host))}:{self._socket.getsockname()[1]}/v1"
        self._server: _Uvicorn | None = None

    def run(self, engine: Engine, started: Callable[[], None] = lambda: None) -> None:
        """Calls `started`, then serves until `stop` or a signal. After a signal, waits for running answers."""
        api = Api(engine, self._key, self._origins, self._hosts)
        config = settings(api.asgi, self._socket.connections, timeout_graceful_shutdown=AFTER_DRAIN_S)
        self._server = _Uvicorn(config)
        self._server.api = api
        started()
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            api.close()

    def stop(self) -> None:
        """Ends `run` from another thread, without waiting for answers."""
        if self._server:
            self._server.should_exit = self._server.force_exit = True

    def close(self) -> None:
        """Stops listening, if `run` was never called."""
        self._socket.close()
