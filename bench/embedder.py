"""An OpenAI-compatible embedder with a configurable share of failures, for soak tests."""

import base64
import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

import numpy as np

DIMENSIONS = 64
FAULTS = (429, 500)


class FailingEmbedder(ThreadingHTTPServer):
    """Server of `/v1/embeddings` that answers a share of the requests with 429 or 500.

    Attributes:
        fail_share: Share of failing requests, 0..1. May be changed at run time.
        delay_s: Seconds by which each response is delayed.
        request_count, failure_count: Number of requests and of failures so far.
    """

    daemon_threads = True
    # The default of 5 refuses connections during bursts.
    request_queue_size = 128

    def __init__(self, *, fail_share: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fail_share, self.delay_s = fail_share, 0.0
        self._random = random.Random(7)
        self._lock = threading.Lock()
        self.request_count = self.failure_count = 0

    @property
    def url(self) -> str:
        """Base URL, the value for `embedding.baseURL`."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients: soak tests kill some."""

    def next_fault(self) -> int | None:
        """Return the status with which the next request fails, or None if it succeeds."""
        with self._lock:
            self.request_count += 1
            if self._random.random() >= self.fail_share:
                return None
            self.failure_count += 1
            return FAULTS[self.failure_count % len(FAULTS)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FailingEmbedder

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.server.delay_s)
        if status := self.server.next_fault():
            self._answer(status, {"error": {"message": "injected", "type": "server_error"}})
            return
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        is_base64 = body.get("encoding_format") == "base64"
        rows = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector_of(text, body["model"]), is_base64)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        self._answer(200, {"object": "list", "data": rows, "model": body["model"], "usage": usage})

    def _answer(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def vector_of(text: str, model: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a unit vector that depends only on the text and the model."""
    numbers = np.random.default_rng(crc32(f"{model}: {text}".encode())).standard_normal(DIMENSIONS)
    return (numbers / np.linalg.norm(numbers)).astype("<f4")


def _encoded(vector: Any, is_base64: bool) -> Any:
    return base64.b64encode(vector.tobytes()).decode() if is_base64 else vector.tolist()


@contextlib.contextmanager
def embedder(*, fail_share: float) -> Iterator[FailingEmbedder]:
    """Serve while the context is open."""
    with FailingEmbedder(fail_share=fail_share) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
