"""Downloading one file: an interrupted download continues where it broke off.

Pooch looks after the checksum and the final name; it cannot resume, so it is handed `Resuming`. Of
TARGET, what has come in so far lies in TARGET.part; TARGET.part.json holds what the server said of
the file, so that a file that has changed in between is begun anew.
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

TRIES = 5  # failures in a row that each brought less than ENOUGH
ENOUGH = 1 << 20  # bytes
PAUSE = 1.0  # seconds before the second try, doubled before each further one
TIMEOUT = (15.0, 60.0)  # seconds to connect, and to wait for the next byte
CHUNK = 1 << 18
AGAIN = "run the same command again to continue"


class BrokenError(Exception):
    """A failure that may pass."""


@dataclass(frozen=True)
class Marks:
    """What tells one version of a file from another; empty or 0 where the server does not say."""

    etag: str = ""
    modified: str = ""
    total: int = 0


def download(wanted: Download, target: Path, progress: Progress) -> Path:
    """The file at `target`: as it is if it is complete, else downloaded or continued."""
    import pooch

    if not wanted.url.startswith(("http://", "https://")):
        raise CommunisError(f"{wanted.url}: only http and https addresses can be downloaded")
    known = f"sha256:{wanted.sha256}" if wanted.sha256 else None
    pooch.get_logger().setLevel(logging.WARNING)  # the bar and the final text say it all
    try:
        pooch.retrieve(
            wanted.url, known, target.name, target.parent, downloader=Resuming(target, progress)
        )
    except ValueError as error:  # pooch's word for a wrong checksum; it has removed the file
        raise CommunisError(
            f"{wanted.url}: the file that came is not the one expected ({error}); it was removed. "
            "Try again; if that does not help, the owner has changed the file"
        ) from None
    if wanted.size and target.stat().st_size != wanted.size:
        found = target.stat().st_size
        target.unlink()
        raise CommunisError(
            f"{wanted.url}: {found} bytes came, {wanted.size} were expected; removed. Try again; "
            "if that does not help, the owner has changed the file"
        )
    return target


@dataclass(frozen=True)
class Resuming:
    """A downloader for pooch."""

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
                        f"{url}: {error}; {megabytes(self._size())} have come in: {AGAIN}"
                    ) from None
                time.sleep(PAUSE * 2 ** (failures - 1))
        self.part.replace(output)
        self.notes.unlink(missing_ok=True)

    def _try(self, url: str) -> None:
        """All that is missing of the part, or BrokenError."""
        import requests
        import urllib3

        try:
            with self._answer(url) as answer:
                self._receive(answer)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise BrokenError(f"the connection failed ({_first_cause(error)})") from None

    def _answer(self, url: str) -> Response:
        """The server's answer, with the part cut to what it continues."""
        import requests

        have, marks = self._size(), self._marks()
        headers = {"Accept-Encoding": "identity"}  # ranges count the bytes of the file itself
        if have:
            headers["Range"] = f"bytes={have}-"
        answer = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
        fits = answer.status_code == 206 and _first_byte(answer) == have and _marks(answer) == marks
        if have and not fits and answer.status_code in (206, 416):
            if answer.status_code == 416 and _marks(answer).total == have == marks.total:
                return answer  # nothing is missing: it broke off between the last byte and the name
            answer.close()
            self.part.unlink()  # the file has changed
            return self._answer(url)
        if answer.status_code in (408, 429) or answer.status_code >= 500:
            answer.close()
            raise BrokenError(f"the server says {answer.status_code} {answer.reason}")
        if answer.status_code >= 400:
            answer.close()
            raise CommunisError(
                f"{url}: the server says {answer.status_code} {answer.reason}; the owner may have "
                "moved the file"
            )
        if not fits:  # all of the file: the first time, or from a server that knows no ranges
            self.part.parent.mkdir(parents=True, exist_ok=True)
            self.part.write_bytes(b"")
            self.notes.write_text(json.dumps(asdict(_marks(answer))), "utf-8")
        return answer

    def _receive(self, answer: Response) -> None:
        if answer.status_code == 416:
            return
        total, done = _marks(answer).total, self._size()
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
            return Marks(etag="unknown")  # equals no server's: the part is begun anew


def _marks(answer: Response) -> Marks:
    ranged = re.search(r"/(\d+)$", answer.headers.get("Content-Range", ""))
    length = 0 if answer.status_code in (206, 416) else answer.headers.get("Content-Length", 0)
    return Marks(
        answer.headers.get("ETag", ""),
        answer.headers.get("Last-Modified", ""),
        int(ranged[1] if ranged else length),
    )


def _first_byte(answer: Response) -> int:
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1


def _first_cause(error: BaseException) -> str:
    """The innermost reason, which is the one that a person understands."""
    while isinstance(cause := error.__cause__ or error.__context__, Exception):
        error = cause
    return str(error) or type(error).__name__
