"""Downloads one file; an interrupted download continues where it stopped.

Pooch checks the checksum and gives the final name. It cannot resume, so it uses `Resuming`. The
received part of TARGET is in TARGET.part; TARGET.part.json holds the server's description of the
file, so that a file that has changed in the meantime is downloaded from the beginning.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from communis.core.errors import CommunisError
from communis.data.fetch.unpack import Progress, megabytes, need
from communis.data.recordings.about import Download

if TYPE_CHECKING:
    from requests import Response

TRIES = 5  # failures in a row, each after less than ENOUGH, before an error is raised
ENOUGH = 1 << 20  # bytes
PAUSE = 1.0  # seconds before the second try, doubled before each further try
TIMEOUT = (15.0, 60.0)  # seconds to connect, and to wait for the next byte
CHUNK = 1 << 18
AGAIN = "run the same command again to continue"


class BrokenError(Exception):
    """A failure that may be temporary."""


@dataclass(frozen=True)
class Marks:
    """The version of a file; empty or 0 if the server does not give it."""

    etag: str = ""
    modified: str = ""
    total: int = 0


def download(wanted: Download, target: Path, progress: Progress) -> Path:
    """Returns `target`, after downloading the file or the missing rest of it."""
    import pooch

    if not wanted.url.startswith(("http://", "https://")):
        raise CommunisError(f"{wanted.url}: only http and https addresses can be downloaded")
    known_hash = f"sha256:{wanted.sha256}" if wanted.sha256 else None
    pooch.get_logger().setLevel(logging.WARNING)  # communis shows the progress itself
    downloader = Resuming(target, progress)
    try:
        pooch.retrieve(wanted.url, known_hash, target.name, target.parent, downloader=downloader)
    except ValueError as error:  # the checksum is wrong; pooch has removed the file
        raise CommunisError(
            f"{wanted.url}: the downloaded file is not the expected one ({error}); it was removed. "
            "Try again; if that does not help, the owner has changed the file"
        ) from None
    size = target.stat().st_size
    if wanted.size and size != wanted.size:
        target.unlink()
        raise CommunisError(
            f"{wanted.url}: received {size} bytes, expected {wanted.size}; the file was removed. "
            "Try again; if that does not help, the owner has changed the file"
        )
    return target


@dataclass(frozen=True)
class Resuming:
    """A downloader for pooch that continues a partial download."""

    target: Path
    progress: Progress

    @property
    def part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def notes(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    def __call__(self, url: str, output: str, _: Any) -> None:
        failures = 0
        while True:
            before = self._size()
            try:
                self._try(url)
                break
            except BrokenError as error:
                failures = 1 if self._size() - before >= ENOUGH else failures + 1
                if failures == TRIES:
                    raise CommunisError(
                        f"{url}: {error}; {megabytes(self._size())} were received: {AGAIN}"
                    ) from None
                time.sleep(PAUSE * 2 ** (failures - 1))
        self.part.replace(output)
        self.notes.unlink(missing_ok=True)

    def _try(self, url: str) -> None:
        """Downloads the rest of the part; raises BrokenError if the connection fails."""
        import requests
        import urllib3

        try:
            with self._answer(url) as answer:
                self._receive(answer)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise BrokenError(f"the connection failed ({_first_cause(error)})") from None

    def _answer(self, url: str) -> Response:
        """Returns the server's answer, which continues the part; the part is emptied if the answer
        is the complete file."""
        import requests

        received = self._size()
        marks = self._marks()
        headers = {"Accept-Encoding": "identity"}  # ranges count the bytes of the file itself
        if received:
            headers["Range"] = f"bytes={received}-"
        answer = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
        status = answer.status_code
        continues = status == 206 and _first_byte(answer) == received and _marks(answer) == marks
        if received and not continues and status in (206, 416):
            if status == 416 and _marks(answer).total == received == marks.total:
                return answer  # complete: the interruption was after the last byte
            answer.close()
            self.part.unlink()  # the file has changed
            return self._answer(url)
        if status in (408, 429) or status >= 500:
            answer.close()
            raise BrokenError(f"the server says {status} {answer.reason}")
        if status >= 400:
            answer.close()
            raise CommunisError(
                f"{url}: the server says {status} {answer.reason}; the owner may have moved the "
                "file"
            )
        if not continues:  # the first answer, or that of a server without ranges
            self.part.parent.mkdir(parents=True, exist_ok=True)
            self.part.write_bytes(b"")
            self.notes.write_text(json.dumps(asdict(_marks(answer))), "utf-8")
        return answer

    def _receive(self, answer: Response) -> None:
        if answer.status_code == 416:
            return
        total = _marks(answer).total
        done = self._size()
        need(total - done, self.part.parent)
        with self.part.open("ab") as file:
            while chunk := answer.raw.read(CHUNK, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                self.progress(self.target.name, done, total)
        if total and done != total:
            raise BrokenError(f"the connection broke after {megabytes(done)} of {megabytes(total)}")

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _marks(self) -> Marks:
        try:
            return Marks(**json.loads(self.notes.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return Marks(etag="unknown")  # differs from any server's: the part is discarded


def _marks(answer: Response) -> Marks:
    """Returns the version of the file from the headers of an answer."""
    total_of_range = re.search(r"/(\d+)$", answer.headers.get("Content-Range", ""))
    if total_of_range:
        total = int(total_of_range[1])
    elif answer.status_code in (206, 416):  # the length is that of a part
        total = 0
    else:
        total = int(answer.headers.get("Content-Length", 0))
    return Marks(answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", ""), total)


def _first_byte(answer: Response) -> int:
    """Returns the position of the first byte in the file; -1 if the answer is not a range."""
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else -1


def _first_cause(error: BaseException) -> str:
    """Returns the message of the innermost cause, which is the most understandable one."""
    while isinstance(cause := error.__cause__ or error.__context__, Exception):
        error = cause
    return str(error) or type(error).__name__
