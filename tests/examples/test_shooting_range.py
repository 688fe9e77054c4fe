"""The shooting range on the engine, in item scope: what a player, a target and an archive see."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from outbox import BlobRef
from outbox.testing import Harness
from outbox.verify import Faults
from shooting_range.handlers import SHOTS_PER_SHEET, Board, FireAt, Score, SheetFull, Target, app, game_of, target_key


def shot(n: int, *, player: str = "ann", x: int = 0, game: str = "g", target: str = "left") -> FireAt:
    return FireAt(f"a{n}", game, target, player, x, 0)


async def fire(world: Harness, *shots: FireAt) -> None:
    for one in shots:
        await world.send("attempts", one, id=one.attempt)
    await world.wait_idle()


def attempts_on(sheet: bytes) -> list[str]:
    return re.findall(r'class="hole".*?<title>(.*?)</title>', sheet.decode())


async def sheets(world: Harness) -> list[bytes]:
    """The full sheets that the archive was told of."""
    refs = [BlobRef(full.blob, 0, "") for full in world.sent("sheets")]
    return [await world.engine.blobs.read(ref.name, bytes_max=1 << 20) or b"" for ref in refs]


async def test_a_hit_counts_for_the_target_and_for_its_player() -> None:
    async with Harness(app, scope="item") as world:
        await fire(world, shot(1), shot(2, x=90), shot(3, player="bob"))
        target = await world.state(Target, "g/left")
        assert target is not None and (target.attempts, target.hits, len(target.holes)) == (3, 2, 3)
        assert await world.state(Board, "g") == Board({"ann": Score(2, 1), "bob": Score(1, 1)})
        assert sorted(made.attempt for made in world.sent("results")) == ["a1", "a2", "a3"]


async def test_a_full_sheet_is_written_once_and_the_next_one_hangs_there() -> None:
    async with Harness(app, scope="item") as world:
        shots = [shot(n) for n in range(SHOTS_PER_SHEET + 1)]
        await fire(world, *shots)
        await fire(world, *shots)  # all of them once more
        [sheet] = await sheets(world)
        target = await world.state(Target, "g/left")
        assert target is not None and (target.sheet, target.attempts) == (2, SHOTS_PER_SHEET + 1)
        hanging = [hole.attempt for hole in target.holes]
        assert sorted([*attempts_on(sheet), *hanging]) == sorted(one.attempt for one in shots)
        assert world.sent("sheets") == [SheetFull("g", "left", 1, target.last_full)]


@pytest.mark.parametrize("seed", range(6))
async def test_crashes_lost_replies_and_duplicates_change_nothing(seed: int) -> None:
    faults = Faults.drawn(seed=seed, crashes=2, lost=3, refused=2, duplicates=6, within=120)
    async with Harness(app, scope="item", faults=faults, seed=seed) as world:
        shots = [shot(n, player="ann" if n % 3 else "bob", x=n * 6) for n in range(2 * SHOTS_PER_SHEET)]
        await fire(world, *shots)
        await world.advance(hours=1)  # locks run out, the sweeper comes
        assert world.faults_fired >= 6
        hits = sum(n * 6 <= 50 for n in range(2 * SHOTS_PER_SHEET))
        target, board = await world.state(Target, "g/left"), await world.state(Board, "g")
        assert target is not None and board is not None
        assert (target.attempts, target.hits, target.sheet, target.holes) == (20, hits, 3, [])
        assert sum(score.attempts for score in board.scores.values()) == 20
        assert sum(score.hits for score in board.scores.values()) == hits
        drawn = await sheets(world)
        assert sorted(name for sheet in drawn for name in attempts_on(sheet)) == sorted(f"a{n}" for n in range(20))


async def test_over_http_an_attempt_is_answered_with_its_hole_and_the_same_again() -> None:
    async with Harness(app, scope="item") as world:
        body = {"attempt": "a1", "target": "left", "player": "ann", "x": 3, "y": -4}
        answers = [await world.request("POST", "/games/g/attempts", json=body, key="k1") for _ in range(2)]
        reported = {"attempt": "a1", "is_hit": True, "sheet": 1, "hole": 1}
        assert [(answer.status, json.loads(answer.body)) for answer in answers] == [(200, reported)] * 2
        other = await world.request("POST", "/games/g/attempts", json=body | {"x": 5}, key="k1")
        assert other.status == 422
        await world.wait_idle()
        board = await world.request("GET", "/games/g")
        assert json.loads(board.body) == {"game": "g", "places": [{"player": "ann", "attempts": 1, "hits": 1}]}
        assert (await world.request("GET", "/games/g/targets/right")).status == 404
        target = json.loads((await world.request("GET", "/games/g/targets/left")).body)
        assert target["holes"] == [{"attempt": "a1", "player": "ann", "x": 3, "y": -4}]


async def test_the_leader_board_shows_the_best_first() -> None:
    async with Harness(app, scope="item") as world:
        await fire(world, shot(1, player="cleo", x=99), shot(2, player="bob"), shot(3, player="ann", x=99), shot(4))
        board: Any = json.loads((await world.request("GET", "/games/g")).body)
        assert [(place["player"], place["hits"]) for place in board["places"]] == [("bob", 1), ("ann", 1), ("cleo", 0)]
        kept = await world.state(Board, "g")
        assert kept is not None and list(kept.scores) == ["ann", "bob", "cleo"]  # whatever came first


async def test_a_shot_past_the_paper_is_refused_and_moves_nothing() -> None:
    async with Harness(app, scope="item") as world:
        await fire(world, shot(1, x=251), shot(2, game="g" * 65), shot(3, game=""), shot(4, game="g" * 64))
        reasons = {dead_letter.id: dead_letter.reason for dead_letter in world.dead_letters("attempts")}
        assert reasons["a1"] == "that went past the paper; look where you shoot"
        assert sorted(reasons) == ["a1", "a2", "a3"]
        assert [made.attempt for made in world.sent("results")] == ["a4"] and await world.state(
            Target, "g/left"
        ) is None


async def test_a_players_name_is_text_on_the_sheet_and_nothing_else() -> None:
    async with Harness(app, scope="item") as world:
        await fire(world, *[shot(n, player="</desc><script>") for n in range(SHOTS_PER_SHEET)])
        [sheet] = await sheets(world)
        assert b"<script>" not in sheet and b"&lt;script&gt;" in sheet


@pytest.mark.parametrize("game", ["g", "a/b", "ä ö", "100%", "?#\\", "a~2fb"])
def test_a_key_names_its_game_and_no_two_targets_share_one(game: str) -> None:
    assert game_of(target_key(shot(1, game=game))) == game
    assert target_key(shot(1, game=game, target="b/c")) != target_key(shot(1, game=f"{game}/b", target="c"))
