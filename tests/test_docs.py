"""The docs are true: their programs run, their outputs are current, their links lead somewhere."""

import json
import re
from pathlib import Path

import pytest

from docs import generate
from tensorcore_dsl import isa
from tensorcore_dsl.isa import stubs
from tensorcore_dsl.isa.reference import CHAPTERS, braces, chapter, merged, numbered, page

ROOT = Path(__file__).parent.parent


ALL = [*generate.PAGES, generate.INSTRUCTIONS, "CONTRIBUTING.md", "CHANGELOG.md"]


@pytest.mark.parametrize("name", generate.PAGES)
def test_programs_print_what_the_page_shows(name):
    """`make docs` brings a page up to date."""
    if lacks := generate.missing(name):
        pytest.skip(f"{lacks} is not installed: pip install 'tensorcore-dsl[{lacks}]'")
    assert generate.run(name) == (ROOT / name).read_text()


@pytest.mark.parametrize("name", generate.NOTEBOOKS)
def test_notebooks_show_what_their_cells_give(name):
    """`make docs` brings a notebook up to date."""
    if lacks := generate.missing(name):
        pytest.skip(f"{lacks} is not installed: pip install 'tensorcore-dsl[test]'")
    assert generate.executed(name) == (ROOT / name).read_text()


@pytest.mark.thorough
def test_a_wrong_output_of_a_notebook_is_noticed(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="comes with nbclient, of the extra test")
    pytest.importorskip("nbclient", reason="of the extra test")
    cell = nbformat.v4.new_code_cell("print(1 + 1)", id="only")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="3\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "book.ipynb")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    text = generate.executed("book.ipynb")
    assert '"2\\n"' in text and '"3\\n"' not in text


def test_a_wrong_output_is_noticed(tmp_path, monkeypatch):
    text = "# Page\n\n```python\nprint(1 + 1)\n```\n```text\n3\n```\n"
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.run("page.md") == text.replace("3", "2")


def test_an_output_that_is_not_shown_is_refused(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("```python\nprint(1)\n```\n\nand so on\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="does not show it"):
        generate.run("page.md")


def test_outputs_settle_although_they_name_lines(tmp_path, monkeypatch):
    first = "```python\nprint('a\\n' * 3)\n```\n```text\n```\n"
    second = "```python\nimport sys\nprint(sys._getframe().f_lineno)\n```\n```text\n```\n"
    (tmp_path / "page.md").write_text(first + second)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "PAGES", ("page.md",))
    monkeypatch.setattr(generate, "NOTEBOOKS", ())
    monkeypatch.setattr(generate, "reference", lambda: "")
    monkeypatch.setattr(generate, "museum_page", lambda: "")
    monkeypatch.setattr(generate, "STUB", "docs/stub.pyi")
    (tmp_path / "docs").mkdir()
    assert generate.main() == 0
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[-2] == str(lines.index("import sys") + 2)


def test_instruction_page_is_current():
    """`make docs` brings it up to date."""
    assert (ROOT / generate.INSTRUCTIONS).read_text() == page()


def test_stub_is_current():
    """`make docs` brings it up to date."""
    assert (ROOT / generate.STUB).read_text() == stubs.page()


def test_instruction_page_holds_exactly_the_table():
    """What a shell would make of the braces are all the mnemonics, each once."""
    mnemonics = []
    for line in page().splitlines():
        match = re.match(r"\| `(\S+)`", line)
        if match:
            names = list(expanded(match[1]))
            assert len(names) == int(line.rstrip(" |").rsplit("|", 1)[1]), line
            mnemonics += names
    assert sorted(mnemonics) == sorted(f.mnemonic for f in isa.instructions())


def expanded(text):
    """Brace expansion as a shell does it: `a{b,c}`, `{8..16..4}`, nested."""
    start = text.find("{")
    if start < 0:
        yield text
        return
    depth, cuts = 0, [start]
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if (text[end] == "," and depth == 1) or depth == 0:
            cuts.append(end)
        if depth == 0:
            break
    choices = [text[a + 1 : b] for a, b in zip(cuts, cuts[1:])]
    steps = re.fullmatch(r"(\d+)\.\.(\d+)\.\.(\d+)", choices[0])
    if len(choices) == 1 and steps:
        low, high, step = map(int, steps.groups())
        choices = [str(n) for n in range(low, high + 1, step)]
    for choice in choices:
        for middle in expanded(choice):
            for rest in expanded(text[cuts[-1] + 1 :]):
                yield text[:start] + middle + rest


def test_every_section_has_a_chapter():
    for instr in isa.instructions():
        assert chapter(instr.section) in CHAPTERS.values(), (instr, instr.section)


@pytest.mark.parametrize(
    "values, text",
    [
        ([".f32", ".f64"], ".f{32,64}"),
        (["", ".ftz"], "{,.ftz}"),
        ([".s8", ".u8"], ".{s8,u8}"),
        ([f".m64n{n}k16" for n in range(8, 257, 8)], ".m64n{8..256..8}k16"),
        (["", ".a.x", ".a.y", ".b.x", ".b.y"], "{,.{a,b}.{x,y}}"),
    ],
)
def test_alternatives_are_joined_in_braces(values, text):
    assert braces(values) == text
    assert sorted(expanded(text)) == sorted(values)


def test_numbers_in_uneven_steps():
    assert numbered([8, 16, 24, 32, 48]) == "{{8..32..8},48}"
    assert numbered([4, 8, 16]) == "{4,8,16}"


def test_products_with_a_hole_stay_apart():
    names = [("a", x, y) for x in "pq" for y in "rs" if (x, y) != ("q", "s")]
    actual = merged((name, "".join(name)) for name in names)
    assert sorted(m for _, members in actual for m in members) == ["apr", "aps", "aqr"]
    assert len(actual) == 2


@pytest.mark.parametrize("name, least", [("hopper_tutorial", 8), ("attention_tutorial", 5)])
def test_excerpts_of_a_tutorial_are_its_kernels(name, least):
    """Each block that is only shown stands in the file that its section links to."""
    sections = (ROOT / f"docs/{name}.md").read_text().split("\n## ")
    shown = 0
    for section in sections:
        files = re.findall(r"\(\.\./(kernels/tutorial/\w+\.py)\)", section)
        for excerpt in (block.text for block in generate.blocks(section) if block.language == "py"):
            assert excerpt in (ROOT / files[0]).read_text(), files[0]
            shown += 1
    assert shown >= least


def test_the_hopper_tutorial_has_the_newest_results():
    recorded = sorted((ROOT / "benchmarks/results").glob("tutorial-*.json"))
    if not recorded:
        pytest.skip("an sdist has no recorded results")
    cells = {}
    for result in json.loads(recorded[-1].read_text())["results"]:
        cells.setdefault(result["name"], []).extend([f"{result['tflops']:.0f}", f"{result['share']:.1%}"])
    text = (ROOT / "docs/hopper_tutorial.md").read_text()
    assert len(cells) == 10
    for name, figures in cells.items():
        assert f"| {name} | {' | '.join(figures)} |" in text


@pytest.mark.parametrize("name", ALL)
def test_links_lead_somewhere(name):
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / name).read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        recorded = "benchmarks/results/" in target and not (ROOT / ".git").exists()  # an sdist
        if not target.startswith("http") and not recorded:
            assert (ROOT / name).parent.joinpath(target).exists(), f"{name} links to {target}"


def anchors(text):
    """The anchors of a page's headings, as viewers of repositories make them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", ALL)
def test_anchors_exist(name):
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / name).read_text(), flags=re.S)
    for target, anchor in re.findall(r"\]\(([^)#:]*\.md)?#([^)]*)\)", text):
        page = (ROOT / name).parent / target if target else ROOT / name
        assert anchor in anchors(page.read_text()), f"{name} links to {target}#{anchor}"


@pytest.mark.parametrize("name", [n for n in ALL if n != "CHANGELOG.md"])
def test_files_that_pages_name_exist(name):
    named = re.findall(
        r"(?<![\w/])((?:tests|benchmarks|docs|\.ci)/[\w/]+(?:\.py|\.md|\.json)?)(?=`|,|\s)",
        (ROOT / name).read_text(),
    )
    assert [n for n in named if not (ROOT / n).exists()] == []


def test_architecture_names_only_what_is_there():
    text = (ROOT / "docs/architecture.md").read_text()
    there = {p.name for top in ("tensorcore_dsl", "kernels", "tests") for p in (ROOT / top).rglob("*.py")}
    named = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text))
    assert len(named) > 30 and named - there == set()


def test_every_module_says_what_it_is():
    """The page of modules lists their first lines, folder by folder."""
    listed = (ROOT / "docs/modules.md").read_text()
    for top in ("tensorcore_dsl", "kernels"):
        for path in (ROOT / top).rglob("*.py"):
            folder = path.parent.relative_to(ROOT).as_posix()
            inside = listed.split(f"\n{folder}/ ")[1]
            name = folder if path.name == "__init__.py" else f"\n  {path.name} "
            assert name in (listed if path.name == "__init__.py" else inside), path


def test_language_page_names_every_function():
    """What `tc.` offers to kernels is in the reference, and what the reference names exists."""
    import tensorcore_dsl as tc

    text = (ROOT / "docs/language.md").read_text()
    words = set(re.findall(r"\w+", text))
    offered = [
        name
        for name in dir(tc)
        if str(getattr(getattr(tc, name), "__module__", "")).startswith("tensorcore_dsl.lang.")
    ]
    missing = [name for name in offered if name[0].islower() and name not in words]
    assert len(offered) > 50 and missing == []
    functions = text.split("## Functions")[1].split("\n## ")[0]
    for name in re.findall(r"`(\w+)(?=[(`])", functions):
        assert hasattr(tc, name), name


@pytest.mark.parametrize("name", ALL)
def test_pages_are_tidy(name):
    lines = (ROOT / name).read_text().split("\n")
    assert not [i for i, line in enumerate(lines, 1) if line != line.rstrip() or "\t" in line]
    assert lines[-1] == "" and lines[-2] != ""


def test_recorded_results_are_as_many_as_the_pages_say():
    golden = ROOT / "tests" / "golden" / "sm_90a"
    counts = {path.stem: len(json.loads(path.read_text())) for path in golden.glob("*.json")}
    products = counts.pop("gemm_kernels")
    single = sum(n for stem, n in counts.items() if not stem.startswith("approximate"))
    matrix = sum(len(json.loads(path.read_text())) for path in golden.glob("matrix/*.json"))
    fidelity = " ".join((ROOT / "docs/fidelity.md").read_text().split())
    assert f"All {matrix:,} matrix instructions of sm_90a" in fidelity
    assert f"{single:,} instructions of single threads" in fidelity
    assert f"{products} whole products" in fidelity
