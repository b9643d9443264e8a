"""Serve the page on the loopback interface, and make it again when a source file changes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from tensorcore_dsl.errors import ArgumentError

HOST = "127.0.0.1"
# Appended to a served page: reloads it when its version changes.
WATCH = """<script>setInterval(async () => {
  try { if (await (await fetch("version")).text() !== "%s") location.reload(); } catch { /* it has ended */ }
}, 1500);</script>"""


class Pages:
    """The page of a `view` command. A new process makes it, so that changed modules are imported again."""

    def __init__(self, arguments: Sequence[str], script: str) -> None:
        self.arguments, self.script = list(arguments), Path(script)
        self._made: tuple[str, bytes] | None = None
        self._lock = Lock()

    def version(self) -> str:
        """Return a text that changes with any file in the script's folder."""
        return str(max(path.stat().st_mtime_ns for path in self.script.resolve().parent.glob("*.py")))

    def page(self) -> bytes:
        with self._lock:
            version = self.version()
            if self._made is None or self._made[0] != version:
                self._made = version, self._make() + (WATCH % version).encode()
            return self._made[1]

    def _make(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "page.html")
            command = [
                sys.executable,
                "-m",
                "tensorcore_dsl",
                "view",
                "--export",
                str(target),
                *self.arguments,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if target.exists():
                return target.read_bytes()
        said = escape(done.stdout + done.stderr)
        return f"<!doctype html><meta charset=utf-8><title>view</title><pre>{said}</pre>".encode()


def serve(pages: Pages, port: int) -> None:
    """Serve until the program is interrupted; port 0 chooses a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another site's name that leads to the loopback must not read the page.
            if (self.headers.get("Host") or "").rpartition(":")[0] not in (HOST, "localhost"):
                self.send_error(403)
            elif self.path == "/":
                self._send(pages.page(), "text/html; charset=utf-8")
            elif self.path == "/version":
                self._send(pages.version().encode(), "text/plain")
            else:
                self.send_error(404)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"cannot serve on port {port}: {error}") from None
    with server:
        print(f"http://{HOST}:{server.server_port}/ shows the kernel; Ctrl+C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
