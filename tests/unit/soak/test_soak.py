"""`make soak`: its table grows, no seed counts twice, and a finding is written with the command that shows it again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.drawn import small, whole
from tools.soak import __main__ as soak
from tools.soak.pieces import KINDS, Kind, Piece, drawn
from tools.soak.table import FIRST_SEED, Table, replace_file


def kind(name: str = "drawn-small-engine", **fields: Any) -> Kind:
    return replace(KINDS[name], takes_s=0.0, **fields)


class Done:
    """Pieces that are done at once; a soak's time ends with the last of them."""

    def __init__(self, count: int, findings: dict[int, str] | None = None) -> None:
        self.left = count
        self.findings = findings or {}
        self.seeds: list[int] = []

    def __call__(self, kind: Kind, seed: int) -> Piece:
        self.seeds.append(seed)
        self.left -= 1
        found = [self.findings[seed]] if seed in self.findings else []
        return Piece(runs=100, steps=7, faults=3, findings=found, cpu_s=1.5)


def run(folder: Path, pieces: Done, *kinds: Kind) -> soak.Soak:
    table = Table(folder)
    table.begin("here and now")
    running = soak.Soak(kinds or [kind()], table, minutes=60, run_piece=pieces)
    chosen = running.next_piece
    running.next_piece = lambda: chosen() if pieces.left else None  # type: ignore[method-assign]
    running.run(1)
    return running


def test_the_next_soak_goes_on_with_new_seeds_and_adds_up(tmp_path: Path) -> None:
    first, second = Done(3), Done(2)
    run(tmp_path, first)
    run(tmp_path, second)
    assert first.seeds + second.seeds == [*range(FIRST_SEED, FIRST_SEED + 5)]
    row = Table(tmp_path).rows["drawn-small-engine"]
    assert (row["first_seed"], row["last_seed"], row["runs"], row["faults"]) == (1_000, 1_004, 500, 15)
    text = (tmp_path / "soak.txt").read_text()
    assert "1,000 to 1,004" in text and "500 runs under seeded faults of the 1,000,000 aimed at" in text


def test_a_finding_is_kept_with_the_command_that_runs_it_again(tmp_path: Path) -> None:
    found = run(tmp_path, Done(3, {FIRST_SEED + 1: "NoLost: m1 is lost"}))
    assert sum(found.finding_counts.values()) == 1
    text = (tmp_path / "soak.txt").read_text()
    assert 'make soak ARGS="--again drawn-small-engine 1001"\n    NoLost: m1 is lost' in text
    assert json.loads((tmp_path / "soak.json").read_text())["findings"][0]["seed"] == 1_001


def test_a_kind_that_is_broken_is_left(tmp_path: Path) -> None:
    pieces = Done(100, dict.fromkeys(range(2000), "broken"))
    run(tmp_path, pieces)
    assert len(pieces.seeds) == soak.FINDING_COUNT_MAX


def test_kinds_take_turns_by_their_share(tmp_path: Path) -> None:
    table = Table(tmp_path)
    kinds = [kind(share=1), kind("bank-lives", share=3)]
    soaked = soak.Soak([replace(each, takes_s=1.0) for each in kinds], table, minutes=60)
    chosen = [found[0].name for _ in range(40) if (found := soaked.next_piece()) is not None]
    assert chosen.count("bank-lives") == 30


def test_no_piece_begins_that_does_not_fit_into_the_time_left(tmp_path: Path) -> None:
    long = replace(KINDS["sweep"], takes_s=90.0)
    assert soak.Soak([long], Table(tmp_path), minutes=1).next_piece() is None


def test_a_write_that_is_cut_short_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, Done(1))
    before = (tmp_path / "soak.json").read_text()

    def cut(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "soak.json", "{}")
    assert (tmp_path / "soak.json").read_text() == before


def test_two_soaks_do_not_count_into_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with soak.alone(tmp_path):
        assert soak.main(["--output", str(tmp_path), "--minutes", "0"]) == 2
    assert "another soak" in capsys.readouterr().err


def test_a_piece_that_fails_or_does_not_end_has_found_something() -> None:
    assert "ended with" in soak.run_apart(replace(KINDS["sweep"], name="nothing"), 1).findings[0]
    assert soak.run_apart(replace(KINDS["bank-lives"], limit_s=0.05), 1).findings == ["no end in 0.05 s"]


def test_a_soak_of_a_minute_does_nothing_that_takes_hours() -> None:
    assert not any(kind.once for kind in soak.chosen_kinds([], 1))
    assert [kind.name for kind in soak.chosen_kinds(["fuzz"], 1)] == ["fuzz-parsers", "fuzz-doors"]
    assert set(soak.chosen_kinds([], soak.WHOLE_MINUTES)) == set(KINDS.values())


def test_a_seed_is_the_same_shape_and_the_same_runs_again() -> None:
    assert [small("item", seed).describe() for seed in range(20)] == [
        small("item", seed).describe() for seed in range(20)
    ]
    assert len({small("item", seed).describe() for seed in range(20)}) > 10
    assert len({whole(seed).describe() for seed in range(20)}) > 10
    first, second = (drawn("partition", "small", 20, 5) for _ in range(2))
    assert first == second and first.runs == 20 and first.faults and not first.findings
