"""The museum of public bugs: what is reported of each exhibit, and the program and the page that show them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from docs import generate
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.scheduling.orders import order_of
from tensorcore_dsl.kernels import museum

ROOT = Path(__file__).parent.parent
EXHIBITS = museum.exhibits()
MARK = re.compile(r"# (error|race: first|race: second)$")
# Classes other than Race: a race is reported where both accesses are marked.
CLASSES: dict[str, type[tc.EmulationError]] = {
    "cutlass_3643": tc.Uninitialised,
    "deepgemm_415": tc.Deadlock,
    "flashinfer_1351": tc.OutOfBounds,
    "flashinfer_3615": tc.Deadlock,
    "flashinfer_5013": tc.Misaligned,
    "llama_cpp_28358": tc.OutOfBounds,
    "sageattention_377": tc.Uninitialised,
}
ORDERS = (0, 3, "down")  # a seed, a seed that parts the lanes of warps, the last warp first

each = pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)


def marks(exhibit: museum.Exhibit) -> dict[str, set[int]]:
    """The marked lines of an exhibit's file, by mark."""
    lines: dict[str, set[int]] = {"error": set(), "race: first": set(), "race: second": set()}
    for number, line in enumerate(Path(str(exhibit.module.__file__)).read_text().splitlines(), 1):
        if found := MARK.search(line):
            lines[found[1]].add(number)
    return lines


def lines_of(place: Any) -> set[int]:
    return {loc.line for loc in place.chain()}


@each
@pytest.mark.parametrize(
    "policy", [{"regions": False}, {"compile_cost": 0, "regions_on_disk": False}], ids=["steps", "regions"]
)
def test_the_broken_form_is_reported_at_the_marked_lines(exhibit, policy):
    """By single steps, as in a first launch, and by compiled regions, which later processes find on disk."""
    marked = marks(exhibit)
    races = bool(marked["race: first"])
    expected = tc.Race if races else CLASSES.get(exhibit.name, tc.EmulationError)
    with executing(**policy), pytest.raises(expected) as raised:
        exhibit.broken()
    error: Any = raised.value
    if races:
        assert not marked["error"]
        here, there = lines_of(error.loc), lines_of(error.first)
        one, other = marked["race: first"], marked["race: second"]
        assert (here & one and there & other) or (here & other and there & one)
    else:
        assert type(error) is CLASSES.get(exhibit.name, tc.EmulationError)
        assert not marked["race: second"] and lines_of(error.loc) & marked["error"]


@each
def test_the_fixed_form_is_clean(exhibit):
    """In the orders of launches that `tc.explore` tries."""
    exhibit.fixed()


@each
@pytest.mark.parametrize("order", ORDERS)
def test_the_fixed_form_is_clean_in_other_orders_of_threads(exhibit, order):
    with checking(arch="sm_90a", order=order_of(order)) as session:
        exhibit.module.launches(True)
    assert session.result.ok and not session.result.warnings, session.result


def test_explore_finds_the_hang_that_only_some_orders_have():
    """The exhibit names an order; in the emulator's own one the broken form ends."""
    group = museum.exhibit("flashinfer_3615").module.group
    words = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    group.emulator("sm_90a")[2, 32](*words, fixed=False)
    exploration = group.explore(10, arch="sm_90a")[2, 32](*(word * 0 for word in words), fixed=False)
    assert isinstance(exploration.error, tc.Deadlock)


def test_there_are_exhibits_of_every_kind():
    assert len(EXHIBITS) >= 24
    assert {exhibit.kind for exhibit in EXHIBITS} == {*museum.KINDS}


@each
def test_an_exhibit_tells_its_story(exhibit):
    """Title, what happened, the report and the cure; a public thread; a kernel that can be copied."""
    assert len(exhibit.story) == 3 and not exhibit.story[0].endswith("..")
    assert all(40 < len(paragraph.split()) < 110 for paragraph in exhibit.story[1:2])
    number = exhibit.source.rpartition("#")[2]
    assert re.fullmatch(r"[\w-]+/[\w.-]+#\d+", exhibit.source) and exhibit.name.endswith(f"_{number}")
    source = inspect.getsource(exhibit.module)
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert imports == [
        "from __future__ import annotations",
        "import numpy as np",
        "import tensorcore_dsl as tc",
    ]


def test_titles_are_unique():
    assert len({exhibit.title for exhibit in EXHIBITS}) == len(EXHIBITS)


# -- the program -------------------------------------------------------------------------------


def test_the_program_lists_all(capsys):
    assert main(["museum"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EXHIBITS) + len(museum.KINDS)
    for exhibit in EXHIBITS:
        assert f"  {exhibit.name:<24} {exhibit.title} ({exhibit.source})" in lines


def test_the_program_runs_one(capsys):
    assert main(["museum", "tilelang_2556"]) == 0
    out = capsys.readouterr().out
    assert "\nbroken: Race: `tile[47 - t]` is read here by thread 0" in out
    assert "tilelang_2556.py:" in out and out.endswith("\nfixed: clean\n")


def test_the_program_refuses_an_unknown_name(capsys):
    assert main(["museum", "cccl"]) == 2
    assert "the museum has no exhibit 'cccl'; `tensorcore-dsl museum` lists" in capsys.readouterr().err


@pytest.mark.parametrize("fixed", [False, True])
def test_an_exhibit_that_does_not_behave_gives_a_status(fixed, monkeypatch, capsys):
    """Both forms alike: the broken one is not reported, or the fixed one is."""
    exhibit = museum.exhibit("tilelang_2556")
    launches = exhibit.module.launches
    monkeypatch.setattr(exhibit.module, "launches", lambda _: launches(fixed))
    monkeypatch.setattr(museum, "exhibits", lambda: [exhibit])
    assert main(["museum", "--all"]) == 1
    out = capsys.readouterr().out
    assert ("broken: NOTHING IS REPORTED\nfixed: clean" in out) is fixed


# -- the page ----------------------------------------------------------------------------------


def test_the_page_is_current():
    """`make docs` brings it up to date."""
    assert (ROOT / generate.MUSEUM).read_text() == generate.museum_page()


def test_the_page_refuses_an_exhibit_that_does_not_behave(monkeypatch):
    exhibit = museum.exhibit("tilelang_2556")
    launches = exhibit.module.launches
    monkeypatch.setattr(exhibit.module, "launches", lambda _: launches(True))
    monkeypatch.setattr(museum, "exhibits", lambda: [exhibit])
    with pytest.raises(ValueError, match="tilelang_2556: the broken form must be reported"):
        generate.museum_page()
