"""Fetching: from a server on this machine that can be made to misbehave."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.fetch import adopt, download, fetch, instructions
from communis.data.fetch.unpack import MOST_NESTED, Budget
from communis.data.recordings.about import About, Download
from communis.data.sources import own, synthetic

BODY = bytes(range(256)) * 4000  # 1 MB, every part of it different from its neighbours


class Server(ThreadingHTTPServer):
    """Serves `body`; breaks off after `cut[i]` bytes of the i-th answer (None: does not)."""

    body = BODY
    etag = '"1"'
    ranges = True
    status = 200
    length = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cut: list[int | None] = []
        self.asked: list[str | None] = []  # the Range of every request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/set.zip"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        body, total = self.server.body, len(self.server.body)
        if self.server.status != 200:
            return self.send_error(self.server.status)
        first = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if first >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{total - 1}/{total}")
        self.send_header("ETag", self.server.etag)
        if self.server.length:
            self.send_header("Content-Length", str(total - first))
        self.end_headers()
        cut = self.server.cut.pop(0) if self.server.cut else None
        self.wfile.write(body[first : None if cut is None else first + cut])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def get(server: Server, folder: Path, sha256: str = "", size: int = 0) -> bytes:
    seen: list[tuple[str, int, int]] = []
    wanted = Download(server.url, sha256, size)
    path = download.download(wanted, folder / "set.zip", lambda *a: seen.append(a))
    assert [p.name for p in folder.iterdir()] == ["set.zip"]  # nothing is left beside it
    assert not seen or seen[-1][:2] == ("set.zip", len(server.body))
    return path.read_bytes()


def test_checksum_is_checked(server: Server, tmp_path: Path) -> None:
    assert get(server, tmp_path, hashlib.sha256(BODY).hexdigest(), len(BODY)) == BODY
    shutil.rmtree(tmp_path)
    with pytest.raises(CommunisError, match="not the expected one"):
        get(server, tmp_path, "0" * 64)
    assert not list(tmp_path.iterdir())


def test_size_is_checked_where_no_checksum_is_known(server: Server, tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=f"received {len(BODY)} bytes, expected 5"):
        get(server, tmp_path, size=5)
    assert not list(tmp_path.iterdir())


def test_a_complete_file_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path)
    get(server, tmp_path)
    assert server.asked == [None]


def test_resumes_after_a_broken_connection(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 200_000]
    assert get(server, tmp_path, hashlib.sha256(BODY).hexdigest()) == BODY
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_gives_up_and_continues_in_the_next_command(server: Server, tmp_path: Path) -> None:
    server.cut = [1000] * download.TRIES
    with pytest.raises(CommunisError, match="run the same command again to continue"):
        get(server, tmp_path)
    assert len(server.asked) == download.TRIES
    assert (tmp_path / "set.zip.part").read_bytes() == BODY[: 1000 * download.TRIES]
    assert not (tmp_path / "set.zip").exists()
    assert get(server, tmp_path) == BODY
    assert server.asked[-1] == f"bytes={1000 * download.TRIES}-"


def test_tries_are_counted_anew_after_progress(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ENOUGH", 100_000)
    server.cut = [100_000] * 9
    assert get(server, tmp_path) == BODY


def test_server_without_ranges_starts_anew(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cut = False, [300_000]
    assert get(server, tmp_path) == BODY
    assert server.asked == [None, "bytes=300000-"]


@pytest.mark.parametrize("etag", ['"1"', '"2"'])  # with the old mark, the length gives it away
def test_changed_file_starts_anew(server: Server, tmp_path: Path, etag: str) -> None:
    server.cut = [1000] * download.TRIES
    with pytest.raises(CommunisError, match="again to continue"):
        get(server, tmp_path)
    server.body, server.etag = BODY[::-1] + (b"more" if etag == '"1"' else b""), etag
    assert get(server, tmp_path) == server.body
    assert server.asked[-1] is None


def test_part_that_is_complete_or_too_long(server: Server, tmp_path: Path) -> None:
    server.cut = [1000] * download.TRIES
    with pytest.raises(CommunisError, match="again to continue"):
        get(server, tmp_path)
    part = tmp_path / "set.zip.part"
    part.write_bytes(BODY)
    assert get(server, tmp_path) == BODY
    assert server.asked[-1] == f"bytes={len(BODY)}-"
    (tmp_path / "set.zip").unlink()
    part.write_bytes(BODY + b"x")  # whose marks nobody has kept
    assert get(server, tmp_path) == BODY
    assert server.asked[-1] is None


def test_server_that_does_not_tell_the_length(server: Server, tmp_path: Path) -> None:
    server.length = False
    assert get(server, tmp_path) == BODY


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (503, download.TRIES)])
def test_refusals(server: Server, tmp_path: Path, status: int, tries: int) -> None:
    server.status = status
    with pytest.raises(CommunisError, match=f"the server says {status}"):
        get(server, tmp_path)
    assert len(server.asked) == tries
    assert not list(tmp_path.iterdir())


def test_no_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.server_close()
    with pytest.raises(CommunisError, match=r"the connection failed .*refused"):
        get(server, tmp_path)
    with pytest.raises(CommunisError, match="only http and https"):
        download.download(Download("ftp://here/x"), tmp_path / "x", print)


# Archives


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def tarred(files: dict[str, bytes], mode: Any = "w:gz", **link: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in link.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return made.getvalue()


FILES = {"Set/s1/a.csv": b"1", "Set/s2/a.csv": b"2", "Set/readme.txt": b"hello"}
ABOUT = About("CC0", "Doe 2020", "https://owner.example", "Set/s*/*.csv", 2)


class Kept(NamedTuple):
    into: Path
    archive: Path


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    (tmp_path / "got").mkdir()
    return Kept(tmp_path / "data" / "set", tmp_path / "got" / "set.zip")


def content(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def test_fetch_unpacks_and_does_not_fetch_again(server: Server, tmp_path: Path) -> None:
    server.body = zipped(FILES | {"__MACOSX/Set/s1/._a.csv": b"", "Set/s1/._a.csv": b""})
    about = About("CC0", "Doe 2020", "", ABOUT.files, 2, (Download(server.url),), extra="edf")
    into = tmp_path / "set"
    outcome = fetch("set", about, into)
    assert (outcome.found, outcome.expected) == (2, 2)
    for said in ("2 of 2 files", "CC0", "Doe 2020", "pip install 'pyedflib>="):
        assert said in outcome.text
    assert content(into) == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["set"]
    again = fetch("set", about, into)
    assert "nothing was fetched" in again.text
    assert again.found == 2
    assert len(server.asked) == 1


def test_fetch_of_single_files_gets_those_that_are_missing(server: Server, tmp_path: Path) -> None:
    """Also where the owner has more files than are offered one by one."""
    server.body = b"1,2\n"
    base = server.url.rpartition("/")[0]
    urls = (Download(f"{base}/one/a.csv"), Download(f"{base}/two/b.csv?x=1"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("mine")
    (tmp_path / "set" / "b.csv").write_text("old")
    about = About("CC0", files="Set/*.csv", count=9, downloads=urls, how="The rest: ask.")
    assert "missing  The rest: ask." in fetch("set", about, tmp_path / "set").text
    assert content(tmp_path / "set") == {"mine.txt": b"mine", "b.csv": b"old", "a.csv": b"1,2\n"}
    assert "nothing was fetched" in fetch("set", about, tmp_path / "set").text
    assert len(server.asked) == 1


def test_downloads_of_the_same_name(server: Server, tmp_path: Path) -> None:
    server.body = b"1"
    base = server.url.rpartition("/")[0]
    urls = (Download(f"{base}/one/a.csv"), Download(f"{base}/two/a.csv"))
    fetch("set", About("CC0", files="*.csv", downloads=urls), tmp_path / "set")
    assert content(tmp_path / "set") == {"1-a.csv": b"1", "2-a.csv": b"1"}


def test_fetch_removes_a_corrupt_download(server: Server, tmp_path: Path) -> None:
    about = About("CC0", files="**/*.csv", downloads=(Download(server.url),))
    for body, what in [(b"<!DOCTYPE html>", "a web page"), (zipped(FILES)[:-30], "corrupt")]:
        server.body = body
        with pytest.raises(CommunisError, match=f"set.zip: {what}.*removed"):
            fetch("set", about, tmp_path / "set")
        assert content(tmp_path) == {}
    server.body = zipped(FILES)
    assert fetch("set", about, tmp_path / "set").found == 2


def test_a_download_of_something_else_is_kept(server: Server, tmp_path: Path) -> None:
    server.body = zipped({"cats/1.jpg": b""})
    about = About("CC0", files="**/*.csv", downloads=(Download(server.url),))
    with pytest.raises(CommunisError, match=r"no file matches.*is kept in .*set\.download: remove"):
        fetch("set", about, tmp_path / "set")
    assert content(tmp_path) == {"set.download/set.zip": server.body}


def test_instructions(tmp_path: Path) -> None:
    about = About("ask", "Doe 2020", "https://owner.example", "a/*.mat", 7, how="Sign the form.")
    outcome = fetch("set", about, tmp_path / "set")
    assert outcome.found == 0
    assert outcome.text == instructions("set", about, tmp_path / "set")
    for said in (
        "Sign the form.",
        "https://owner.example",
        "ask",
        "Doe 2020",
        "communis data fetch set --from FILE",
        f"{tmp_path / 'set'}",
        "7 files a/*.mat",
    ):
        assert said in outcome.text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (synthetic.ABOUT, "synthetic is not downloaded. It is generated when it is used."),
        (own.ABOUT, "own is not downloaded. Set data.folder to a folder of yours"),
    ],
)
def test_what_has_no_owner_elsewhere(tmp_path: Path, about: About, said: str) -> None:
    name = said.partition(" ")[0]
    outcome = fetch(name, about, tmp_path / name)
    assert outcome.found == 0
    assert outcome.text.startswith(said)
    assert "licence" not in outcome.text
    with pytest.raises(CommunisError, match="generated" if name == "synthetic" else "no file"):
        adopt(name, Path(__file__), about, tmp_path / name)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_adopt_tar(kept: Kept, mode: str) -> None:
    archive = kept.archive.with_name("set.tar" + mode.replace("w:", ".").removeprefix("w"))
    archive.write_bytes(tarred(FILES, mode))
    assert adopt("set", archive, ABOUT, kept.into).found == 2
    assert content(kept.into) == FILES
    shutil.rmtree(kept.into)
    body = tarred({"Set/s1/a.csv": BODY}, mode)
    archive.write_bytes(body[: len(body) // 2])
    with pytest.raises(CommunisError, match=r"set\.tar.*: corrupt or cut short"):
        adopt("set", archive, ABOUT, kept.into)
    assert content(kept.into.parent) == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_damage_inside_a_tar(kept: Kept, mode: str) -> None:
    noise = np.random.default_rng(0).bytes(2_000_000)  # so that the damage comes after the header
    body = bytearray(tarred({"Set/s1/a.csv": noise, "Set/s2/a.csv": b"2"}, mode))
    body[len(body) // 2] ^= 0xFF
    archive = kept.archive.with_name(f"set.tar.{mode[2:]}")
    archive.write_bytes(body)
    with pytest.raises(CommunisError, match=r"set\.tar.*: corrupt or cut short"):
        adopt("set", archive, ABOUT, kept.into)
    assert content(kept.into.parent) == {}


def test_adopt_archives_in_archives(kept: Kept) -> None:
    """As UCI ships them: one inside is a folder of its own, another lacks it."""
    one = zipped({"Set/s1/a.csv": b"1"})
    two = tarred({"a.csv": b"2", "b.csv": b"3"})
    kept.archive.write_bytes(zipped({"top/one.zip": one, "top/Set/s2.tar.gz": two}))
    about = About("CC0", files="Set/s*/*.csv", count=3)
    assert adopt("set", kept.archive, about, kept.into).found == 3
    expected = {"Set/s1/a.csv": b"1", "Set/s2/a.csv": b"2", "Set/s2/b.csv": b"3"}
    assert content(kept.into) == expected


def test_an_archive_without_a_name_is_opened_too(kept: Kept) -> None:
    kept.archive.write_bytes(zipped({"Set/.zip": zipped({"a.csv": b"1", "b.csv": b"2"})}))
    about = About("CC0", files="Set/*/*.csv", count=2)
    assert adopt("set", kept.archive, about, kept.into).found == 2


def test_archives_are_opened_to_a_certain_depth(kept: Kept) -> None:
    body = zipped({"a.csv": b"1"})
    for level in range(MOST_NESTED + 1):
        body = zipped({f"level{level}.zip": body})
    kept.archive.write_bytes(body)
    with pytest.raises(CommunisError, match=f"an archive within {MOST_NESTED} others"):
        adopt("set", kept.archive, About("CC0", files="*/never.csv", count=1), kept.into)
    assert content(kept.into.parent) == {}


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 3), ("MOST_BYTES", 900)])
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_that_holds_too_much_is_refused(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, kind: str, limit: str, most: int
) -> None:
    """Also if the archives in it do so only together."""
    name = {"MOST_FILES": "files", "MOST_BYTES": "bytes"}[limit]
    monkeypatch.setattr(Budget.__init__, "__defaults__", tuple(
        most if field.name == name else field.default for field in fields(Budget)
    ))  # fmt: skip
    make = zipped if kind == "zip" else tarred
    one, two = (make({f"{n}{i}.txt": bytes(250) for i in range(2)}) for n in "ab")
    archive = kept.archive.with_name(f"set.{kind}")
    archive.write_bytes(zipped({f"one.{kind}": one, f"two.{kind}": two}))
    archive = archive.rename(kept.archive.with_name("both.zip"))
    with pytest.raises(CommunisError, match="holds more than"):
        adopt("set", archive, About("CC0", files="*/never.csv", count=1), kept.into)


def test_an_archive_and_those_in_it_are_counted_together(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget.__init__, "__defaults__", (1000, 100))
    inner = zipped({"b.txt": bytes(500)})
    kept.archive.write_bytes(zipped({"a.txt": bytes(600), "inner.zip": inner}))
    with pytest.raises(CommunisError, match=r"inner\.zip: holds more than .* or .* files"):
        adopt("set", kept.archive, About("CC0", files="*/never.csv", count=1), kept.into)
    assert content(kept.into.parent) == {}


def test_clutter_is_counted(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget.__init__, "__defaults__", (1000, 100))
    for name, make in (("set.zip", zipped), ("set.tar.gz", tarred)):
        archive = kept.archive.with_name(name)
        archive.write_bytes(make(FILES | {"__MACOSX/a": bytes(2000)}))
        with pytest.raises(CommunisError, match="holds more than"):
            adopt("set", archive, ABOUT, kept.into)


def test_archives_that_the_source_reads_stay_closed(kept: Kept) -> None:
    inner = {"Set/s1/acc.zip": zipped({"acc.csv": b"1"})}
    kept.archive.write_bytes(zipped(inner))
    adopt("set", kept.archive, About("CC0", files="Set/s*/*.zip", count=9), kept.into)
    assert content(kept.into) == inner


def test_adopt_folder_and_parts(kept: Kept) -> None:
    for name, body in FILES.items():
        path = kept.archive.parent / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    folder = kept.archive.parent / "unpacked"
    (folder / "Set/s2/a.csv").unlink()
    outcome = adopt("set", folder, ABOUT, kept.into)
    assert outcome.found == 1
    assert "1 of 2 files" in outcome.text
    assert "to add another archive" in outcome.text
    kept.archive.write_bytes(zipped({"Set/s2/a.csv": b"2"}))
    assert adopt("set", kept.archive, ABOUT, kept.into).found == 2
    assert content(kept.into) == FILES
    with pytest.raises(CommunisError, match=r"set data\.folder"):
        adopt("set", kept.into / "Set", ABOUT, kept.into)
    with pytest.raises(CommunisError, match="no such file"):
        adopt("set", kept.into / "none", ABOUT, kept.into)


def test_adopt_a_folder_with_what_cannot_be_copied(kept: Kept) -> None:
    folder = kept.archive.parent / "Set" / "s1"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_bytes(b"1")
    (folder / "gone.csv").symlink_to("nowhere")
    with pytest.raises(CommunisError, match=r"^/.*/gone\.csv: cannot be copied \(.*No such file"):
        adopt("set", folder.parent, ABOUT, kept.into)
    os.mkfifo(folder / "pipe")
    with pytest.raises(
        CommunisError, match=r"cannot be copied .*; 1 more cannot be copied either; .*folder"
    ):
        adopt("set", folder.parent, ABOUT, kept.into)
    assert content(kept.into.parent) == {}


def test_adopt_something_else(kept: Kept) -> None:
    kept.archive.write_bytes(zipped({"cats/1.jpg": b""}))
    with pytest.raises(CommunisError, match=r"set.zip: no file matches Set/s\*.*1.jpg.*owner"):
        adopt("set", kept.archive, ABOUT, kept.into)
    assert content(kept.into.parent) == {}
    rar = kept.archive.with_suffix(".rar")
    rar.write_bytes(b"Rar!")
    with pytest.raises(CommunisError, match="unpack it yourself"):
        adopt("set", rar, ABOUT, kept.into)


@pytest.mark.parametrize("name", ["../evil.csv", "/evil.csv", "a/../../evil", "C:/evil", "..\\e"])
def test_names_that_point_out(kept: Kept, name: str) -> None:
    for suffix, body in [
        (".zip", zipped(FILES | {name: b"!"})),
        (".tar.gz", tarred(FILES | {name: b"!"})),
    ]:
        archive = kept.archive.with_suffix(suffix)
        archive.write_bytes(body)
        with pytest.raises(CommunisError, match=r"set\..*refused.*points out of the folder"):
            adopt("set", archive, ABOUT, kept.into)
        assert content(kept.into.parent) == {}


def test_links(kept: Kept) -> None:
    """Wherever they point to."""
    archive = kept.archive.with_suffix(".tar")
    for target in ("/etc/passwd", "../../../x", "Set/readme.txt"):
        archive.write_bytes(tarred(FILES, "w", link=target))
        with pytest.raises(CommunisError, match="refused, because 'link' in it is a link"):
            adopt("set", archive, ABOUT, kept.into)
    with zipfile.ZipFile(kept.archive, "w") as made:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        made.writestr(link, "/etc/passwd")
    with pytest.raises(CommunisError, match="is a link"):
        adopt("set", kept.archive, ABOUT, kept.into)


def test_damage_inside_a_zip(kept: Kept) -> None:
    body = bytearray(zipped({"Set/s1/a.csv": bytes(range(256)) * 9, "Set/s2/a.csv": b"2"}))
    body[60] ^= 0xFF
    kept.archive.write_bytes(body)
    with pytest.raises(CommunisError, match=r"set.zip: corrupt"):
        adopt("set", kept.archive, ABOUT, kept.into)
    assert content(kept.into.parent) == {}
    assert not kept.into.exists()
    assert kept.archive.exists()  # it is the user's


def test_full_disk_and_missing_permission(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.archive.write_bytes(zipped(FILES))
    kept.into.parent.mkdir()
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 0))
        with pytest.raises(CommunisError, match=r"are needed, 0\.0 MB are free"):
            adopt("set", kept.archive, ABOUT, kept.into)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(kept.into))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CommunisError, match="set: Permission denied"):
        adopt("set", kept.archive, ABOUT, kept.into)
