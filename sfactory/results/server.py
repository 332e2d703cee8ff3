"""Serves the page of runs while they train, to this machine alone; it reads their files and changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from sfactory import atomic
from sfactory.clock import now
from sfactory.config.saved_config import CONFIG_NAME, LOG_NAME, METRICS_NAME, RUN_NAME
from sfactory.errors import ConfigError, ResourceError
from sfactory.pbt.event_log import EVENT_LOG_NAME
from sfactory.results.page import data_of, data_text, page_of, videos_of
from sfactory.results.runs import Run

HOST = "127.0.0.1"
# A page of another site must not read runs, even if the name of that site leads here. A forwarded port may be any.
_NAMES = (HOST, "localhost")
_TIMEOUT_S = 30.0  # for a client to send its request, or take the answer
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")  # of a video, without which no browser can move to a place in it
_CHUNK_BYTES = 1 << 20
_REST = 19.0  # times what the last computation took, until the next one: it takes 5% of a core at most

_log = logging.getLogger(__name__)


class LivePage:
    """The page of runs as their files are now; computed again only when one of them has changed, and not too often."""

    def __init__(self, runs: Sequence[Path], find: Callable[[], Sequence[Path]] = tuple) -> None:
        """find: runs that are there by now. They come after ``runs``, so that groups keep their places."""
        self._runs, self._find = runs, find
        self._lock = threading.Lock()
        self._seen: object = None
        self._rest_until = -math.inf
        self._read: dict[Path, tuple[object, Run]] = {}
        self._data: dict[str, Any] = {}
        self._text = b""
        self._videos: dict[str, Path] = {}

    def data(self) -> dict[str, Any]:
        """What ``data_of`` returns."""
        self._update()
        return self._data

    def _update(self) -> None:
        """Compute the data if they are another, and the last time was long enough ago for what it took."""
        with self._lock:
            began = now()
            if began < self._rest_until:
                return
            with contextlib.suppress(ConfigError):  # a folder is gone
                self._runs = list(dict.fromkeys([*self._runs, *self._find()]))
            seen = [_stamp(path) for run in self._runs for path in _files(run)]
            if seen != self._seen or self._status_differs():
                self._videos = {}
                self._data = data_of(self._runs, self._video_url, serving=True, read=self._run)
                self._text = data_text(self._data).encode()
                self._seen = seen
                self._rest_until = now() + _REST * (now() - began)

    def _status_differs(self) -> bool:
        """Whether a run has another status than in the data: a main process that is killed changes no file."""
        shown = sorted(run["status"] for run in self._data["runs"])
        return shown != sorted(run.status for _, run in self._read.values())

    def _run(self, path: Path) -> Run:
        """A run, which is read again only if one of its files has changed."""
        stamps = [_stamp(path / name) for name in (CONFIG_NAME, RUN_NAME, METRICS_NAME)]
        before, run = self._read.get(path, (None, None))
        if run is None or before != stamps:
            run = Run(path)
            self._read[path] = stamps, run
        return run

    def _video_url(self, number: int, video: Path) -> str:
        url = f"videos/{number}/{quote(os.fsencode(video.name))}"
        self._videos[f"/{url}"] = video
        return url

    def answer(self, path: str) -> tuple[str, BinaryIO] | None:
        """The content type and the content of ``path``; None if there is none. Raises OSError."""
        if path == "/":
            return "text/html; charset=utf-8", io.BytesIO(page_of(self.data()))
        if path == "/data.json":
            self._update()
            return "application/json", io.BytesIO(self._text)
        video = self._videos.get(path)
        return None if video is None else ("video/mp4", open(video, "rb", opener=atomic.opened))


def _files(run: Path) -> list[Path]:
    names = (CONFIG_NAME, RUN_NAME, METRICS_NAME, EVENT_LOG_NAME, LOG_NAME)
    return [*(run / name for name in names), *videos_of(run)]


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_mtime_ns, found.st_size


def _tag(file: BinaryIO) -> str:
    """Of the content, as ETag; for a video, which is large and never changed but replaced, of its file."""
    if isinstance(file, io.BytesIO):
        return f'"{hashlib.sha256(file.getbuffer()).hexdigest()[:32]}"'
    found = os.fstat(file.fileno())
    return f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'


class PageServer(ThreadingHTTPServer):
    """Answers on 127.0.0.1 at ``port`` (0: a free one); a context manager. Raises ResourceError if it is taken."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int) -> None:
        self.page = page
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ResourceError(
                f"--port={port} cannot be used: {error.strerror or error}; --port=0 finds one"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _TIMEOUT_S

    def handle(self) -> None:
        """Answer a connection; a browser may close it at any time, as when it has seen enough of a video."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """Answer one request; errors of reading are logged and answered."""
        if self.headers.get("Host", "").partition(":")[0].lower() not in _NAMES:
            names = " or ".join(_NAMES)
            self.send_error(HTTPStatus.FORBIDDEN, explain=f"The page is at the names {names} alone, at any port")
            return
        try:
            found = self.server.page.answer(self.path)
        except OSError as error:
            _log.warning("%s: %s", self.path, error)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, file = found
        with file:
            self._send(kind, file)

    def _send(self, kind: str, file: BinaryIO) -> None:
        tag, size = _tag(file), file.seek(0, io.SEEK_END)
        part = _RANGE.fullmatch(self.headers.get("Range", "")) if self.headers.get("If-Range", tag) == tag else None
        places = range(size)[int(part[1]) : int(part[2]) + 1 if part[2] else size] if part else range(0)
        sent = places or range(size)
        headers = {"Content-Type": kind, "ETag": tag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
        status = HTTPStatus.OK
        if self.headers.get("If-None-Match") == tag:
            status, sent = HTTPStatus.NOT_MODIFIED, range(0)
        elif places:
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {places[0]}-{places[-1]}/{size}"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(sent))}.items():
            self.send_header(name, value)
        self.end_headers()
        file.seek(sent.start)
        for at in sent[::_CHUNK_BYTES]:
            self.wfile.write(file.read(min(_CHUNK_BYTES, sent.stop - at)))

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""
