"""The README tells the truth: its blocks run, its commands and files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from builders import Journal
from costguard.cli.main import main
from costguard.ledger.files import LocalFiles

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"<!-- run.*?-->\n```python\n(.*?)```", README, re.DOTALL)
CONSOLE = [line[2:].split("#")[0].strip() for line in README.splitlines() if line.startswith("$ ")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a run under runs/demo."""
    monkeypatch.chdir(tmp_path)
    journal = Journal(LocalFiles(), root=str(tmp_path / "runs" / "demo"))
    journal.attempt().train(10, tokens=100).close()
    return tmp_path


def test_every_python_block_of_the_readme_is_run() -> None:
    """No block of Python stands in the README that no test runs."""
    assert len(PYTHON) == README.count("```python") == 5


@pytest.mark.parametrize("code", PYTHON)
@pytest.mark.filterwarnings("ignore")
def test_a_python_block_runs(code: str, here: Path) -> None:
    """A block of the README runs as it stands."""
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("command", [c for c in CONSOLE if c.startswith("costguard ")])
def test_a_costguard_command_runs(command: str, here: Path) -> None:
    """A command of the README runs as it stands."""
    assert main(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("command", [c for c in CONSOLE if c.startswith("make ")])
def test_a_make_command_is_a_target(command: str) -> None:
    """`make` commands of the README are targets with a help text."""
    assert re.search(rf"^{command.split()[1]}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    """`.ci/run` calls `make test`."""
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]


@pytest.mark.parametrize("page", sorted(p for d in (ROOT, ROOT / "docs") for p in d.glob("*.md")), ids=lambda p: p.name)
def test_links_and_files_of_a_page_exist(page: Path) -> None:
    """Every relative link, and every example or config named, is there."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\]\((?!https?://)([^)#]+)\)", text)
    for target in named:
        assert (page.parent / target).exists(), target
    for target in re.findall(r"\b((?:examples|configs|benchmarks)/\w+\.\w+)", text):
        if page.name != "design.md":
            assert (ROOT / target).exists(), target


def test_every_key_of_the_receipt_is_documented(here: Path) -> None:
    """docs/receipt.md names every top-level key that the receipt has."""
    from costguard import load_receipt

    page = (ROOT / "docs" / "receipt.md").read_text(encoding="utf-8")
    for key in load_receipt(str(here)).data:
        assert f"`{key}" in page, key
