"""A server that answers as the Hugging Face Hub does to uploads and downloads of models, over HTTP on this machine."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_a_test"
_COMMIT = "c" * 40


class HubServer:
    """files: {repository: {path: content}} of what was committed. requests: method, path and token of each request."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[tuple[str, str, str]] = []

    def answer(self, path: str, body: bytes) -> Mapping[str, Any]:
        """To a POST."""
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path.endswith("/commit/main"):
            repository = path.removeprefix("/api/models/").removesuffix("/commit/main")
            self._commit(repository, body)
            url = f"{self.address}/{repository}/commit/{_COMMIT}"
            return {"commitUrl": url, "commitOid": _COMMIT, "hookOutput": "", "success": True}
        asked = json.loads(body)
        if path == "/api/repos/create":
            repository = f"{asked['organization']}/{asked['name']}"
            self.files.setdefault(repository, {})
            return {"url": f"{self.address}/{repository}", "name": repository}
        assert path.endswith("/preupload/main"), path
        # As small files are: large ones would go to a storage whose protocol is no HTTP of the Hub's.
        return {
            "files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked["files"]]
        }

    def _commit(self, repository: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                file = line["value"]
                self.files[repository][file["path"]] = base64.b64decode(file["content"])


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._file(with_content=False)

        def do_GET(self) -> None:
            self._file(with_content=True)

        def do_POST(self) -> None:
            answer = hub.answer(self._noted(), self._body())
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

        def _noted(self) -> str:
            hub.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
            return self.path

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers["Content-Length"]))

        def _file(self, with_content: bool) -> None:
            repository, _, name = self._noted().strip("/").partition("/resolve/main/")
            content = hub.files.get(repository, {}).get(name)
            if content is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound" if repository in hub.files else "RepoNotFound"})
                return
            self._send(200, content, {"ETag": f'"{len(content)}"', "X-Repo-Commit": _COMMIT}, with_content)

        def _send(self, status: int, content: bytes, headers: Mapping[str, str], with_content: bool = True) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_content:
                self.wfile.write(content)

    return Handler


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """The server, in a thread, for the time of the context."""
    hub = HubServer("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
