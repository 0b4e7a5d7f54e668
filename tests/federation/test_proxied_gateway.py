"""Tests a gateway behind nginx with TLS and a path. `make test-federate` installs nginx."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

httpx = pytest.importorskip("httpx", reason="make test-federate has what this needs")
sync = pytest.importorskip("websockets.sync.client", reason="make test-federate has what this needs")

from peer import Peer  # noqa: E402
from reverse_proxy import proxied  # noqa: E402
from websockets.exceptions import InvalidStatus  # noqa: E402

from glgpt.federation.serve import Place  # noqa: E402


def test_a_round_is_trained_over_tls_and_a_path(served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = served(rounds=1, quorum=1, dtype="f32")
    port = int(host.address.rpartition(":")[2].strip("/"))
    with proxied(tmp_path, together=port) as (origin, cert):
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        base = f"{origin}/together/"
        host.gateway.sockets.origins = (Place(url=base).origin(),)
        assert httpx.get(f"{base}health", verify=ssl.create_default_context()).json() == {"status": "ok"}
        token = host.gateway.invitations.create()
        peer = Peer(SimpleNamespace(address=base, gateway=host.gateway), token)
        peer.next("welcome")
        round_ = peer.next("round")
        assert peer.train(round_, round_["parameters"] + np.float32(0.1))["type"] == "accepted"
        peer.next("closed")
        socket = base.replace("https", "wss") + "v1/socket"
        with sync.connect(socket, origin=origin):
            pass
        with pytest.raises(InvalidStatus, match="403"), sync.connect(socket, origin="https://elsewhere.example"):
            pass
