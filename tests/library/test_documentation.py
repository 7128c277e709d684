"""Every example in a docstring, in the README and in docs/ runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

import bayesagg_pyro
from bayesagg_pyro import aggregation, gradients, heads, inference, posteriors, priors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LISTS = {"index.md", "changelog.md", "swap_matrix.md", "reference"}  # of contents, or generated
PROSE = [page for page in PAGES[1:] if page.relative_to(DOCS).parts[0] not in LISTS]
LONGEST = 150

#: From no paper: bases, textbook models, and what is this library's own.
OWN = {
    *("Aggregation", "Combined", "MatrixAggregator", "Mean", "PerSample", "Sum"),
    *("AtPoint", "Estimator", "Exact", "PlugIn", "Quadrature"),
    *("Bernoulli", "Categorical", "FromPyro", "Gaussian", "Head", "OnePredictor", "Poisson"),
    *("Body", "Embedding", "SharedWeights"),
    *("Delta", "Iterative", "Scheme", "SecondOrder"),
    *("BlockedGaussian", "DiagonalGaussian", "GaussianFamily", "PackedGaussian", "Point"),
    "Posterior",
}

pytestmark = pytest.mark.usefixtures("registry")


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Fenced blocks marked `python`, with the line each begins at."""
    pattern = re.compile(r"^```python[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in pattern.finditer(text)]


def test_what_comes_from_a_paper_links_it() -> None:
    bases = (
        aggregation.Aggregation,
        gradients.Estimator,
        heads.Head,
        heads.Embedding,
        inference.Scheme,
        posteriors.Posterior,
    )
    stages = aggregation, gradients, heads, inference, posteriors
    public = [getattr(stage, name) for stage in stages for name in stage.__all__]
    found = [one for one in public if isinstance(one, type) and issubclass(one, bases)]
    assert len(found) > 40
    for one in found:
        source = inspect.getsource(sys.modules[one.__module__])
        assert "https://" in source or one.__name__ in OWN, one


def test_one_of_each_kind_on_one_page_is_short() -> None:
    """At most 40 lines, and three members that its base leaves to it."""
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    tree = ast.parse("\n".join(code for _, code in python_blocks(page)))
    made = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert len(made) == 5
    for one in made:
        assert (one.end_lineno or 0) - one.lineno < 40
        assert len(one.bases) == 1
        own = [f.name for f in one.body if isinstance(f, ast.FunctionDef) and f.name != "__init__"]
        assert len(own) <= 3
    bases = (
        heads.OnePredictor,
        inference.Iterative,
        gradients.Estimator,
        aggregation.Aggregation,
        priors.Policy,
    )
    assert all(1 <= len(base.__abstractmethods__) <= 3 for base in bases)
    assert {ast.unparse(one.bases[0]).rpartition(".")[2] for one in made} == {
        base.__name__ for base in bases
    }


def test_docstring_examples() -> None:
    package = Path(bayesagg_pyro.__file__).parent
    files = [file for file in package.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8")]
    assert files
    for file in files:
        parts = file.relative_to(package.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        results = doctest.testmod(module, optionflags=doctest.ELLIPSIS, raise_on_error=False)
        assert results.attempted > 0, module
        assert results.failed == 0, module


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks run one after the other in one namespace, as a reader would type them."""
    text = page.read_text(encoding="utf-8")
    blocks = python_blocks(text)
    if page == ROOT / "README.md" and len(text.splitlines()) > 5:
        assert blocks, "the README shows no code"
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__page__"}
    for line, code in blocks:
        exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_what_it_is_for_and_where_to_go_next(page: Path) -> None:
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    parts = re.split(r"\n\s*\n", text.strip())
    assert parts[0].startswith("# ")
    assert parts[1][0].isalnum(), "the title is followed by a sentence"
    assert re.search(r"[.:]$", parts[1])
    assert re.match(r"Next: .*\]\([^)]+\)", parts[-1], re.DOTALL), (
        "the last paragraph: Next: [...](...)"
    )
    by_hand = re.sub(
        r"<!-- \w.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert len(by_hand.splitlines()) < LONGEST


def test_a_notebook_opens_in_jupyter() -> None:
    jupytext = pytest.importorskip("jupytext")
    found = [page for page in PAGES if page.read_text("utf-8").startswith("---\nfile_format")]
    assert DOCS / "tour.md" in found
    for page in found:
        assert any(cell.cell_type == "code" for cell in jupytext.read(page).cells), page


def test_the_gallery_has_every_figure() -> None:
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    figures = [
        f.relative_to(DOCS).as_posix()
        for f in DOCS.rglob("*.png")
        if not {"_build", "jupyter_execute", "scans"} & {*f.parts}
    ]
    assert [name for name in sorted(figures) if f"]({name})" not in gallery] == []


@pytest.mark.parametrize(
    "base",
    [
        heads.Head,
        heads.OnePredictor,
        inference.Scheme,
        inference.Iterative,
        gradients.Estimator,
        aggregation.Aggregation,
        priors.Policy,
    ],
)
def test_a_class_of_ones_own_has_little_to_give(base: type) -> None:
    given = base.__abstractmethods__
    assert 1 <= len(given) <= 3
    page = (DOCS / "contributing.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in given)


def test_the_index_has_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = sorted(page.name for page in DOCS.glob("*.md") if page.name != "index.md")
    assert [name for name in pages if f"]({name})" not in index] == []


def test_blocks_are_found_where_they_are() -> None:
    text = "a\n```python\nx = 1\n```\nb\n```bash\nls\n```\n```python\nassert x == 1\n```\n"
    assert python_blocks(text) == [(2, "x = 1\n"), (9, "assert x == 1\n")]
