"""A git host: `git http-backend` behind a small HTTP server."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


@contextmanager
def serve_repositories(folder: Path, password: str = "") -> Iterator[str]:
    """Serve the repositories below a folder; the URL of the folder. With a password, requests need it as a bearer of basic credentials."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            """Print nothing."""

        def _answer(self) -> None:
            if password and self.headers.get("Authorization") != password:
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            split = urlsplit(self.path)
            variables = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "PATH_INFO": split.path,
                "QUERY_STRING": split.query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=variables, capture_output=True, check=True
            )
            head, _, rest = done.stdout.partition(b"\r\n\r\n")
            lines = [line.partition(": ")[::2] for line in head.decode().split("\r\n")]
            status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
            self.send_response(status)
            for name, value in lines:
                if name != "Status":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
