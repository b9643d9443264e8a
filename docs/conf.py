"""How Sphinx builds the site: `make site`. Every warning is an error there.

The Markdown pages are the site's pages; the reference is written from the docstrings before each
build, and a page for each program from its file. The notebooks of examples/ are copied with their
outputs, as are the changelog and the page for contributors. docs/index.rst holds the navigation.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import plain_text
import programs
import public_names

import tensorcore_dsl

HERE = Path(__file__).parent
REFERENCE = HERE / "reference"  # written here, not kept
NOTEBOOKS = HERE / "notebooks"  # likewise
PROJECT = HERE / "project"  # likewise
PROGRAMS = HERE / "programs"  # likewise
EXTRA = HERE / "extra"  # likewise: copied to the site as it is
EXTRA.mkdir(exist_ok=True)  # Sphinx looks for it before anything is written

project = "tensorcore_dsl"
version = release = tensorcore_dsl.__version__
project_copyright = "the tensorcore_dsl authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "numpydoc", "sphinx_copybutton"]
nitpicky = True  # a reference that leads nowhere is a warning
nitpick_ignore = [("py:class", "tensorcore_dsl.errors.Meeting")]  # a base class that no user names
nb_execution_mode = "off"  # tests/test_docs.py executes notebooks; here they show their outputs
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # steps of a page may skip a level
exclude_patterns = ["_build", "extra"]
default_role = "code"  # `name` in docstrings, as in Markdown
highlight_language = "text"  # of a block without one
autodoc_typehints = "none"  # the sections of the docstrings say more
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
copybutton_prompt_text = ">>> "

html_theme = "furo"
html_title = f"tensorcore_dsl {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "static/logo.svg"
html_extra_path = ["extra"]
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False


def write_reference(_app: Any = None) -> None:
    """The pages of the reference; only what changed, so that a second build is short."""
    pages = {group.file: public_names.page(group) for group in public_names.groups()}
    for module in public_names.read_modules():
        pages[f"{module.rpartition('.')[2]}.rst"] = public_names.read_page(module)
    pages["values_and_results.rst"] = public_names.received_page()
    names = "\n".join(f"   {name.removesuffix('.rst')}" for name in pages)
    toctree = f".. toctree::\n   :maxdepth: 1\n\n{names}\n"
    pages["index.rst"] = f"{public_names.INTRODUCTION}\n{toctree}\n{public_names.all_names()}"
    _write(REFERENCE, pages)


def _write(folder: Path, pages: dict[str, str]) -> None:
    """Write the pages that changed, and remove others."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def write_programs(_app: Any = None) -> None:
    """The pages of the programs, and their kernels as pages of `tensorcore-dsl view`."""
    _write(PROGRAMS, dict(programs.pages()))
    programs.write_views(EXTRA / "view")


def copy_notebooks(_app: Any = None) -> None:
    """The notebooks of examples/, with links that lead on from here."""
    pages = {}
    for source in (HERE.parent / "examples").glob("*.ipynb"):
        text = source.read_text().replace("](../docs/", "](../")
        pages[source.name] = re.sub(r"\]\((\w+)\.py\)", r"](../programs/\1.md)", text)
    _write(NOTEBOOKS, pages)


def copy_pages(_app: Any = None) -> None:
    """Pages that lie at the top of the repository, with links that lead on from here."""
    copies = {}
    pages = {name: f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING")}
    for name, page in pages.items():
        text = (HERE.parent / f"{name}.md").read_text().replace("](docs/", "](../")
        for other, there in pages.items():
            text = text.replace(f"]({other}.md)", f"]({there})")
        text = text.replace("](LICENSE)", "](../../LICENSE)")
        text = re.sub(r"\]\(examples/(\w+\.ipynb)\)", r"](../notebooks/\1)", text)
        copies[page] = text
    _write(PROJECT, copies)


def check_names(_app: Any, env: Any) -> None:
    """Every public name has an entry of its own on some page."""
    from sphinx.util import logging

    entries = env.domains.python_domain.objects
    for group in public_names.groups():
        for name in group.own:
            if f"{group.module}.{name}" not in entries:
                logging.getLogger(__name__).warning("no entry for the public name %s.%s", group.module, name)


def adapt_links(_app: Any, _name: str, source: list[str]) -> None:
    """Links that suit a viewer of the repository, for the site.

    A folder is no page: its link leads to the list of modules. A notebook is where it was copied, and a
    program is the page that shows it. A page is called by its title.
    """

    def instead(match: re.Match[str]) -> str:
        return "](modules.md)" if (HERE / match[1]).is_dir() else match[0]

    text = re.sub(r"\]\(\.\./examples/(\w+\.ipynb)\)", r"](notebooks/\1)", source[0])
    shown = "|".join(program.name for program in programs.programs())
    if not _name.startswith("programs/"):
        text = re.sub(rf"\]\(\.\./(?:examples|kernels/tutorial)/({shown})\.py\)", r"](programs/\1.md)", text)
    text = re.sub(r"\]\((\.\./[^)]+)\)", instead, text)
    source[0] = re.sub(r"\[\w+\.md\]\((?=\w+\.md)", "[](", text)


LINK = re.compile(r"(<a\b.*?</a>)", re.DOTALL)  # what is a link already
# `tc.shared` in a block of code, and in a sentence.
NAME = re.compile(
    r'<span class="(?:n|nd)">@?(tc|kernels)</span><span class="o">\.</span><span class="\w+">(\w+)</span>'
    r'|(?<=<code class="docutils literal notranslate"><span class="pre">)(tc|kernels)\.(\w+)'
)
MODULES = {"tc": "tensorcore_dsl", "kernels": "tensorcore_dsl.kernels"}


def link_names(app: Any, page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Names of the package in code lead to their entries in the reference."""
    entries = app.env.domains.python_domain.objects

    def linked(match: re.Match[str]) -> str:
        module, name = match[1] or match[3], match[2] or match[4]
        entry = entries.get(f"{MODULES[module]}.{name}")
        if entry is None:
            return match[0]
        target = f"{app.builder.get_relative_uri(page, entry.docname)}#{entry.node_id}"
        return f'<a class="name" href="{target}">{match[0]}</a>'

    if "body" in context:
        parts = LINK.split(context["body"])
        parts[::2] = [NAME.sub(linked, part) for part in parts[::2]]
        context["body"] = "".join(parts)


def write_plain_text(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        plain_text.write(Path(app.outdir))


def setup(app: Any) -> None:
    app.connect("source-read", adapt_links)
    app.connect("builder-inited", write_reference)
    app.connect("builder-inited", write_programs)
    app.connect("builder-inited", copy_notebooks)
    app.connect("builder-inited", copy_pages)
    app.connect("env-check-consistency", check_names)
    app.connect("html-page-context", link_names)
    app.connect("build-finished", write_plain_text)
