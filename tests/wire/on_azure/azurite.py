"""Azurite in a process of its own, if it is installed: Microsoft's emulator of Blob Storage, which needs Node."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAIN = "node_modules/azurite/dist/src/blob/main.js"
CURE = "Azurite is not installed: npm install --prefix build/azurite azurite@3.37.0"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everybody's
START_S = 30.0


def start() -> Iterator[str]:
    """Its connection string, as long as it runs; skips where it cannot."""
    main, node = ROOT / "build" / "azurite" / MAIN, shutil.which("node")
    if node is None or not main.exists():
        pytest.skip(CURE)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    options = ["--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    with subprocess.Popen([node, str(main), *place, *options], stdout=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            yield (
                f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};"
                f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
            )
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(round(START_S / 0.05)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    pytest.fail(f"Azurite does not answer on port {port}; start it by hand to see why")
