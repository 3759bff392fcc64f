"""README and docs: every code block runs or is checked, every link leads somewhere, every page is
in the navigation, and the generated pages are those of the code."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from communis.cli.main import app, main
from communis.core import plugins
from communis.core.plugins import names
from communis.core.settings import build
from communis.data.own import manifest
from communis.data.own.guess import write_manifest
from communis.fleet.device import profiles
from communis.run.config import Config, load_cells, pick
from communis.run.presets import names as presets

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOOLS = DOCS / "tools"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(DOCS.rglob("*.md")),
        *sorted((ROOT / "benchmarks").rglob("*.md")),
    )
}
# Pages whose blocks run from top to bottom in an empty folder, as a reader would.
WALKED = (
    "docs/start/install.md",
    "docs/start/first-run.md",
    "docs/start/own-data.md",
    "docs/start/own-method.md",
    "docs/start/own-network.md",
    "docs/guides/results.md",
    "docs/guides/use.md",
)
SLOW = (
    "docs/start/first-run.md",
    "docs/start/own-data.md",
    "docs/start/own-method.md",
    "docs/start/own-network.md",
    "docs/guides/use.md",
)
# Programs whose lines are not run, with the reason. Lines of `communis` on pages that are not
# walked are checked: the command, its options, presets, methods, cells and settings.
NOT_RUN = {
    "pip": "changes the environment",
    "hf": "downloads a model",
    "git": "needs the network",
    "ray": "starts the node of a cluster; belongs to an extra",
    "cd": "belongs to the line before",
    "make": "installs, or takes minutes; the target must exist",
    "python": "takes minutes, or needs datasets; the script must exist",
}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that the block is, by its first line: `# trial.toml`."""
        found = re.match(r"# ([\w/]+\.(?:toml|py))\n", self.text)
        return found[1] if found else ""

    def commands(self) -> list[list[str]]:
        """The lines of a shell block as words, without comments."""
        joined = self.text.replace("\\\n", " ")
        lines = [shlex.split(line, comments=True) for line in joined.splitlines()]
        return [words for words in lines if words]


@cache
def blocks(*languages: str) -> list[Block]:
    """The code blocks of all pages in these languages; without any, all of them."""
    found = []
    for page, text in PAGES.items():
        for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, match[1] or "bash", match[2]))
    return [block for block in found if not languages or block.language in languages]


def by_name(block: Block) -> str:
    return block.name


def test_blocks_have_a_known_language() -> None:
    unknown = [b.name for b in blocks() if b.language not in ("bash", "toml", "python", "text")]
    assert not unknown


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in WALKED],
)
def test_a_page_can_be_followed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_trusted", {})
    copy_examples(tmp_path)
    space: dict[str, object] = {}
    for block in blocks():
        if block.page != page:
            continue
        if block.file:
            Path(block.file).write_text(block.text, "utf-8")
        elif block.language == "python":
            exec(compile(block.text, block.name, "exec", dont_inherit=True), space)
        elif block.language == "bash":
            for program, *arguments in block.commands():
                assert program == "communis", block.name
                assert call(monkeypatch, arguments) == 0, f"{block.name}: {arguments}"


def copy_examples(folder: Path) -> None:
    """Puts the data that come along where a reader in the repository has them."""
    made_by_readers = shutil.ignore_patterns(manifest.NAME, "__pycache__")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=made_by_readers)


def test_the_manifest_on_the_page_is_the_one_that_is_written(tmp_path: Path) -> None:
    copy_examples(tmp_path)
    path, _ = write_manifest(tmp_path / "examples" / "walk")
    shown = [b for b in blocks("toml") if b.page == "docs/start/own-data.md" and b.file]
    assert shown[0].text.partition("\n")[2] in path.read_text("utf-8")


def test_the_recordings_that_come_along_are_those_of_their_script(tmp_path: Path) -> None:
    copy_examples(tmp_path)
    there = tmp_path / "examples" / "walk"
    before = {path: path.read_text("utf-8") for path in there.rglob("*.csv")}
    runpy.run_path(str(there / "make.py"), run_name="__main__")
    assert len(before) == 5
    assert {path: path.read_text("utf-8") for path in there.rglob("*.csv")} == before


def call(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> int:
    monkeypatch.setattr("sys.argv", ["communis", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if block.page not in WALKED], ids=by_name
)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.name, "exec", dont_inherit=True), {})


@pytest.mark.parametrize("block", blocks("toml"), ids=by_name)
def test_toml_is_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_modules(block.page, tmp_path, monkeypatch)
    path = tmp_path / (block.file or "block.toml")
    path.write_text(block.text, "utf-8")
    if block.file == "devices.toml":
        assert profiles.load(path)
    elif block.file == "communis.toml":
        assert manifest.load(tmp_path)
    else:
        for config in load_cells(str(path)).values():
            for name in (*config.compare, *config.variants):
                assert config.under(name).make_method()


def write_modules(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the Python files of a page, which its configurations name, and trusts them."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_trusted", {"": None})
    for block in blocks("python"):
        if block.page == page and block.file:
            (folder / block.file).write_text(block.text, "utf-8")
            monkeypatch.delitem(sys.modules, Path(block.file).stem, raising=False)


@pytest.mark.parametrize("page", ["README.md", "docs/guides/experiments.md"])
def test_configurations_make_fleets(page: str, tmp_path: Path) -> None:
    found = [block for block in blocks("toml") if block.page == page]
    assert found
    for block in found:
        path = tmp_path / "block.toml"
        path.write_text(block.text, "utf-8")
        for config in load_cells(str(path)).values():
            assert config.make_fleet()


@pytest.mark.parametrize("block", blocks("bash"), ids=by_name)
def test_commands_are_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # files of the page may name its modules
    for other in blocks("toml", "python"):
        if other.page == block.page and other.file:
            path = tmp_path / other.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(other.text, "utf-8")
            monkeypatch.delitem(sys.modules, path.stem, raising=False)
    for words in block.commands():
        called = words[0]
        if called == "communis":
            check(words[1:], block.name, tmp_path)
        elif called == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        elif called == "python" and words[1] != "-m":
            assert (ROOT / words[1]).exists(), f"{block.name}: {words[1]}"
        else:
            assert called in NOT_RUN, f"{block.name}: {called} is neither run nor excused"


def check(arguments: list[str], where: str, folder: Path) -> None:
    """Refuses a command that could not start: by its parser, and by the configuration it names."""
    command, context = parsed(arguments)
    given = context.params
    if command.name in ("run", "compare"):
        source = str(given.get("source") or given.get("on"))
        if source not in presets():
            assert (folder / source).exists(), f"{where}: no block of the page is {source}"
            source = str(folder / source)
        words = given.get("methods") or ()
        methods = [m for m in words if ":" not in m and "=" not in m]
        bare = [*(given.get("changes") or ()), *(word for word in words if "=" in word)]
        settings = [*bare, *(given.get("settings") or ())]
        # Names of methods and networks of the page, which are not importable here.
        changed = [s for s in settings if not re.search(r"""=[\["']*\w+:\w+[\]"']*$""", s)]
        found = load_cells(source, changed, methods, alone=command.name == "run")
        chosen = given.get("cell") or ()
        for cell in [chosen] if isinstance(chosen, str) else chosen:
            assert pick(found, cell, source)


@cache
def program() -> click.Command:
    """The command line, built once: building it takes longer than parsing a line with it."""
    return typer.main.get_command(app)


def parsed(arguments: list[str]) -> tuple[click.Command, click.Context]:
    """The command that the arguments call, with its own arguments parsed; nothing is run."""
    command = program()
    if arguments == ["--version"]:
        return command, click.Context(command)
    context = command.make_context("communis", list(arguments))
    while isinstance(command, click.Group) and (rest := remaining(context)):
        name, inner, rest = command.resolve_command(context, rest)
        assert name is not None
        assert inner is not None
        command, context = inner, inner.make_context(name, rest, parent=context)
    return command, context


def remaining(context: click.Context) -> list[str]:
    return [*context._protected_args, *context.args]


def test_the_check_of_commands_fails_where_it_should(tmp_path: Path) -> None:
    for line in (
        "run nosuch.toml",
        "run watch --sett method.lr=1",
        "run synthetic --set method.lrr=1",
        "run synthetic method.lrr=1",
        "compare nosuch --on synthetic",
        "compare --on fedduet/dsads --cell nosuch",
        "data fetsh dsads",
    ):
        with pytest.raises(Exception):  # noqa: B017, PT011 - the parser's, ours or an assertion
            check(shlex.split(line), "here", tmp_path)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


def test_every_method_has_a_page() -> None:
    for name in names("methods"):
        assert "eviation" in PAGES[f"docs/methods/{name}.md"]


def test_every_decision_is_listed_with_its_title() -> None:
    for path in sorted((DOCS / "adr").glob("0*.md")):
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        assert f"* [{title}]({path.name})" in PAGES["docs/adr/README.md"]


GENERATED = ("synthetic", "watch")  # described where they are used


def test_every_dataset_has_a_page_and_a_line() -> None:
    listed = PAGES["docs/reference/data/README.md"]
    for name in names("data"):
        assert re.search(rf"\| \[?{name}\b", listed), name
        page = "docs/guides/world.md" if name == "world" else f"docs/reference/data/{name}.md"
        assert name in GENERATED or page in PAGES, name


def links(text: str) -> Iterator[str]:
    """The targets of a page's links, without those in code."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"`[^`\n]*`", "code", plain)
    yield from re.findall(r"\]\(([^)\s]+)\)", plain)


@cache
def anchors(path: Path) -> list[str]:
    """The anchors of a page's headings, as sites and repositories make them."""
    plain = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return [re.sub(r"[\s-]+", "-", text) for text in words]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in links(PAGES[page]):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.resolve()), target


def mentions() -> Iterator[tuple[str, str]]:
    """Pages of docs that comments and docstrings name."""
    for folder, pattern in (("src", "*.py"), ("src", "*.toml"), ("tests", "*.py")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text("utf-8")):
                yield path.relative_to(ROOT).as_posix(), name


def test_pages_that_the_code_mentions_exist() -> None:
    gone = [f"{where}: {name}" for where, name in mentions() if not (ROOT / name).exists()]
    assert not gone


def tool(name: str) -> dict[str, object]:
    return runpy.run_path(str(TOOLS / f"{name}.py"), run_name=name)


@pytest.mark.parametrize("page", ["commands", "configuration"])
def test_the_generated_reference_is_current(page: str) -> None:
    written = tool("reference")[page]
    assert callable(written)
    assert PAGES[f"docs/reference/{page}.md"] == written(), (
        "run `make reference`: the code has changed"
    )


def test_the_tables_of_settings_are_current() -> None:
    pages = tool("reference")["methods"]
    assert callable(pages)
    written = pages()
    assert len(written) == len(names("methods")) + 1
    for path, text in written.items():
        page = path.relative_to(ROOT).as_posix()
        assert PAGES[page] == text, f"{page}: run `make reference`: the code has changed"


def test_every_page_is_in_the_navigation(tmp_path: Path) -> None:
    stage = tool("stage")["stage"]
    assert callable(stage)
    stage(tmp_path)
    entries = re.findall(
        r"^ *\* (?:.*\]\((.+)\)|(\S+\*\.md))$", (tmp_path / "SUMMARY.md").read_text(), re.MULTILINE
    )
    shown = [path for one, many in entries for path in tmp_path.glob(one or many)]
    pages = [path for path in tmp_path.rglob("*.md") if path.name != "SUMMARY.md"]
    missing = [str(path.relative_to(tmp_path)) for path in pages if path not in shown]
    assert not missing, "add a line to docs/SUMMARY.md"
    assert all(list(tmp_path.glob(one or many)) for one, many in entries)


def test_links_of_the_site_lead_from_page_to_page(tmp_path: Path) -> None:
    """Also to pages from elsewhere in the repository; a file that is no page is plain text."""
    stage = tool("stage")["stage"]
    assert callable(stage)
    stage(tmp_path)
    for page in tmp_path.rglob("*.md"):
        for target in links(page.read_text("utf-8")):
            file = target.partition("#")[0]
            if file and ":" not in file:
                assert (page.parent / file).exists(), f"{page.name}: {target}"
    assert "](reference/configuration.md)" in (tmp_path / "index.md").read_text("utf-8")
    fedavg = (tmp_path / "methods" / "fedavg.md").read_text("utf-8")
    assert "`tests/unit/methods/test_fedavg.py`" in fedavg
    assert "](../../tests" not in fedavg


def test_the_site_check_finds_what_is_wrong(tmp_path: Path) -> None:
    problems = tool("check")["problems"]
    assert callable(problems)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<h2 id="part">Part</h2>', "utf-8")
    page = tmp_path / "index.html"
    page.write_text('<p><a href="there/#part">x</a> <a href="//elsewhere/x">y</a></p>', "utf-8")
    assert problems(tmp_path) == []
    page.write_text(
        '<p><a href="gone/">x</a><a href="there/#gone">y</a><img src="gone.svg"></p>\n'
        "<p>a list:\n- one</p><p>[a](b.md)</p><p><code>- code](</code></p>",
        "utf-8",
    )
    assert problems(tmp_path) == [
        "index.html: dead link gone/",
        "index.html: dead link there/#gone",
        "index.html: dead link gone.svg",
        "index.html: not rendered: a list: - one",
        "index.html: not rendered: [a](b.md)",
    ]


def test_tables_of_the_guides_build() -> None:
    """Parts of configurations, without the checks against a dataset."""
    found = [b for b in blocks("toml") if b.page.startswith("docs/guides/") and not b.file]
    assert found
    for block in found:
        assert build(Config, tomllib.loads(block.text), "") is not None, block.name
