"""The site: its navigation, its reference, and the pictures of its pages."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import tensorcore_dsl as tc
from docs import conf, public_names
from tensorcore_dsl import kernels

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


programs, plain_text = conf.programs, conf.plain_text


# -- navigation ------------------------------------------------------------------------------------


def navigation():
    """The pages in the order of docs/index.rst."""
    text = (DOCS / "index.rst").read_text()
    return re.findall(r"^   [^\n<`]+<([\w/]+)>$", text, re.M)


def test_navigation_lists_every_page_once():
    """Except pages that declare themselves orphans, to which only other pages lead."""
    pages = [p.stem for p in DOCS.glob("*.md") if not p.read_text().startswith("---\norphan: true\n---\n")]
    notebooks = [f"notebooks/{path.stem}" for path in (ROOT / "examples").glob("*.ipynb")]
    copied = ["project/changelog", "project/contributing"]
    written = ["reference/index", "programs/index"]
    assert sorted(navigation()) == sorted([*pages, *notebooks, *copied, *written])


def test_the_first_page_leads_to_pages_that_exist():
    named = re.findall(r":doc:`(?:[^`<]+<)?([\w/]+)>?`", (DOCS / "index.rst").read_text())
    assert set(named) <= set(navigation()) and len(named) > 10


def _adapted(path):
    """The text of a page as the site reads it."""
    source = [path.read_text()]
    conf.adapt_links(None, path.stem, source)
    return source[0]


def test_pages_lead_only_to_pages_that_the_site_has():
    """A Markdown file outside `docs/` is no page: a link to it breaks the site."""
    for path in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+\.md)[)#]", _adapted(path)):
            written = ("project/changelog.md", "project/contributing.md")
            assert target in written or target.startswith("programs/") or "/" not in target, (
                f"{path.name}: {target}"
            )
            assert (DOCS / target).exists() or "/" in target, f"{path.name}: {target}"


def test_configuration_of_the_site_is_strict():
    text = (ROOT / "Makefile").read_text()
    assert re.search(r"-m sphinx -W ", text) and "make site" in (ROOT / ".ci" / "run").read_text()
    assert "nitpicky = True" in (DOCS / "conf.py").read_text()


SMALL_SITE = f"""
import runpy
globals().update(runpy.run_path({str(DOCS / "conf.py")!r}))
extensions, html_theme, html_theme_options = ["myst_parser"], "basic", {{}}
html_static_path = html_css_files = html_extra_path = []
html_logo = html_favicon = None

def setup(app):
    app.connect("source-read", adapt_links)
"""
GOOD = "# Page\n\n## A part\n\n[whole](other.md), [part](other.md#a-part), [file](notes.txt)\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text, complaint",
    [
        (GOOD, ""),
        ("# Page\n\n[away](nowhere.md)\n", "target not found: 'nowhere.md'"),
        ("# Page\n\n[away](other.md#a-gap)\n", "local id not found in doc 'other': 'a-gap'"),
        ("# Page\n\n![none](none.png)\n", "image file not readable"),
        (GOOD + "UNLISTED", "isn't included in any toctree"),
    ],
    ids=["good", "link", "anchor", "picture", "unlisted"],
)
def test_a_broken_page_fails_the_site(tmp_path, text, complaint):
    """With the settings of the site: a link, an anchor, a picture, a page that no navigation has."""
    pages = {
        "conf.py": SMALL_SITE,
        "notes.txt": "",
        "other.md": "# Other\n\n## A part\n",
        "page.md": text,
        "index.rst": "Site\n====\n\n.. toctree::\n\n   page\n   other\n",
    }
    if "UNLISTED" in text:
        pages["lonely.md"] = "# Lonely\n"
    for name, content in pages.items():
        (tmp_path / name).write_text(content)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", tmp_path, tmp_path / "out"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert complaint in process.stderr and (process.returncode == 0) == (not complaint), process.stderr


# -- reference -------------------------------------------------------------------------------------


def test_reference_has_every_public_name_once():
    shown = [
        name for group in public_names.groups() if group.module == "tensorcore_dsl" for name in group.names
    ]
    modules = {name.rpartition(".")[2] for name in public_names.MODULES}
    assert sorted(shown) == sorted(set(tc.__all__) - modules)


def test_reference_has_every_public_module():
    """Modules with `__all__` that users import: of the package's top, and of its public folders."""
    internal = {"isa", "interpreter", "lowering"}
    modules = {"tensorcore_dsl.kernels"}
    for path in (ROOT / "tensorcore_dsl").glob("*/__init__.py"):
        if "\n__all__ = " in path.read_text() and path.parent.name not in internal:
            modules.add(f"tensorcore_dsl.{path.parent.name}")
    for path in (ROOT / "tensorcore_dsl").glob("*.py"):
        if "\n__all__ = " in path.read_text() and path.stem != "__init__":
            modules.add(f"tensorcore_dsl.{path.stem}")
    assert modules <= {*public_names.MODULES, *public_names.READ}


def test_a_module_that_cannot_be_imported_is_read(monkeypatch):
    """A module that needs PyTorch is documented: its signatures and docstrings come from the source."""
    monkeypatch.setitem(public_names.READ, "tensorcore_dsl.kernels", "Read")
    monkeypatch.setattr(
        public_names,
        "_source",
        lambda module: (
            ROOT.joinpath("kernels", *module.split(".")[2:]).with_suffix(".py")
            if module.count(".") > 1
            else ROOT / "kernels" / "__init__.py"
        ),
    )
    text = public_names.read_page("tensorcore_dsl.kernels")
    assert all(f":: {name}" in text for name in kernels.__all__)
    assert ".. function:: swiglu(x, w_gate, w_up, *, out=None, epilogue=None," in text
    assert ".. class:: HopperConfig" in text and "Rows and columns of a CTA's tile" in text


@pytest.mark.parametrize("group", public_names.groups(), ids=lambda group: group.file)
def test_pages_of_the_reference_name_what_they_show(group):
    text = public_names.page(group)
    for name in group.names:
        assert re.search(rf"\b{name}\b", text), name


# -- programs ------------------------------------------------------------------------------------


def test_every_program_has_a_page():
    """The steps of the tutorial with what changes, and the examples."""
    pages = dict(programs.pages())
    for path in (*(ROOT / "kernels" / "tutorial").glob("hopper_*.py"), *(ROOT / "examples").glob("*.py")):
        text = pages[f"{path.stem}.md"]
        assert f"literalinclude}} ../../{path.relative_to(ROOT)}\n" in text
        assert f"\n| [{path.name}]({path.stem}.md) | " in pages["index.md"]
    step = pages["hopper_gemm_5_producer_consumer.md"]
    assert "## Changes from hopper_gemm_4_tma.py" in step
    assert re.search(r"^\+    tc.warp_specialize\(", step, re.M)
    assert "## Changes" not in pages["hopper_gemm_1_mma_sync.md"] + pages["histogram.md"]


def test_links_to_programs_lead_to_their_pages():
    text = _adapted(DOCS / "examples.md")
    assert "](programs/flash_attention.md)" in text and "](../examples/" not in text


# -- names in code ---------------------------------------------------------------------------------


def linked(body):
    """What the site makes of the body of a page, where the reference has `tc.shared` alone."""
    entry = types.SimpleNamespace(docname="reference/memory", node_id="tensorcore_dsl.shared")
    domain = types.SimpleNamespace(objects={"tensorcore_dsl.shared": entry})
    env = types.SimpleNamespace(domains=types.SimpleNamespace(python_domain=domain))
    builder = types.SimpleNamespace(get_relative_uri=lambda page, other: f"{other}.html")
    context = {"body": body}
    conf.link_names(types.SimpleNamespace(env=env, builder=builder), "page", "", context, None)
    return context["body"]


NAME = '<span class="n">tc</span><span class="o">.</span><span class="n">{}</span>'
INLINE = '<code class="docutils literal notranslate"><span class="pre">{}</span></code>'


def test_names_in_code_lead_to_the_reference():
    target = '<a class="name" href="reference/memory.html#tensorcore_dsl.shared">'
    name = NAME.format("shared")
    assert linked(name) == f"{target}{name}</a>"
    assert linked(INLINE.format("tc.shared(8,")) == INLINE.format(f"{target}tc.shared</a>(8,")


@pytest.mark.parametrize(
    "body", [NAME.format("unknown"), INLINE.format("np.shared"), f'<a href="x">{NAME.format("shared")}</a>']
)
def test_other_code_and_links_stay(body):
    assert linked(body) == body


# -- texts for programs ----------------------------------------------------------------------------


def test_the_list_of_pages_for_programs():
    text = plain_text.llms()
    assert text.startswith("# tensorcore_dsl\n\n> A Python DSL")
    assert "- [Get started](_sources/start.md.txt)" in text and "llms-full.txt" in text


def test_the_text_for_programs_has_pages_and_every_name():
    text = plain_text.full()
    assert "# Get started" in text and "# The museum of public bugs" in text
    for group in public_names.groups():
        for name in group.own:
            assert re.search(rf"^### {name}\b", text, re.M), name


# -- pictures --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures():
    pytest.importorskip("matplotlib")
    from docs import pictures

    return pictures


def test_pictures_are_shown_and_small(pictures):
    shown = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"\]\(pictures/([\w.]+)\)", page.read_text())
    }
    kept = {path.name for path in pictures.FOLDER.iterdir()}
    assert shown == kept == {pictures.path_of(name).name for name in pictures.PICTURES}
    assert all(path.stat().st_size < 150_000 for path in pictures.FOLDER.iterdir())


@pytest.mark.thorough
def test_pictures_are_current(pictures):
    """`make pictures` draws those that are not."""
    stale = [n for n, draw in pictures.PICTURES.items() if pictures.recorded(n) != pictures.digest(draw())]
    assert stale == []


def test_a_picture_of_something_else_has_another_digest(pictures):
    one, changed = (
        pictures.fragment(*pictures.FRAGMENTS[name][:1], "a")
        for name in ("mma_m16n8k16_f16", "mma_m16n8k8_tf32")
    )
    assert pictures.digest(one) != pictures.digest(changed)
    assert pictures.digest(one) == pictures.recorded("mma_m16n8k16_f16_a")
