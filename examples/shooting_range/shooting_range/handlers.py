"""The application: what may be asked of a shooting range, what it keeps, and what happens then.

A player fires at a target of a game.  A target counts its attempts and hits and holds the sheet that hangs there now;
the leader board of the game counts the same by player, from what targets report.  A sheet with ten holes is taken down:
it is written once as a blob, and whoever archives sheets is told its name.  An attempt may come over HTTP or by queue,
any number of times: each counts once, hangs on one sheet and moves one player.

Keys are made so that no two games or targets can run into each other, whatever they are called; the first part of a
key is its game, which is also where Cosmos DB keeps it (see `storage`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote, unquote

from outbox import App, Context, Reject
from shooting_range.sheet import Hole, draw, is_bullseye, is_on_paper

app = App("shooting range")
app.queue("sheets")  # read by whoever archives them

SHOTS_PER_SHEET = 10
NAME_LENGTH_MAX = 64


@dataclass
class FireAt:
    """One attempt of a player at a target; `x` and `y` in millimetres from its middle."""

    attempt: str
    game: str
    target: str
    player: str
    x: int
    y: int


@dataclass
class AttemptMade:
    """What became of an attempt, for the leader board."""

    attempt: str
    game: str
    player: str
    is_hit: bool


@app.message("SheetFull")  # no handler takes it, so nothing else says that it is one of the messages
@dataclass
class SheetFull:
    """A sheet was taken down; `blob` is where it is kept."""

    game: str
    target: str
    number: int
    blob: str


@dataclass
class Shot:
    """The answer to an attempt over HTTP: on which sheet it is, as which hole (from 1)."""

    attempt: str
    is_hit: bool
    sheet: int
    hole: int


@dataclass
class LookAtTarget:
    """Ask for a target."""

    game: str
    target: str


@dataclass
class LookAtBoard:
    """Ask for the leader board of a game."""

    game: str


@dataclass
class Target:
    """A target: `holes` are those of the sheet that hangs there, whose number counts from 1."""

    attempts: int = 0
    hits: int = 0
    sheet: int = 1
    holes: list[Hole] = field(default_factory=list)
    last_full: str = ""
    """Where the sheet before this one is kept."""


@dataclass
class Score:
    """One player's line."""

    attempts: int = 0
    hits: int = 0


@dataclass
class Board:
    """The scores of a game by player."""

    scores: dict[str, Score] = field(default_factory=dict)


@dataclass
class Place:
    """One line of the leader board, as it is shown."""

    player: str
    attempts: int
    hits: int


@dataclass
class LeaderBoard:
    """The leader board of a game, best first."""

    game: str
    places: list[Place]


class OfGame(Protocol):
    """Whatever belongs to a game."""

    game: str


class OfTarget(OfGame, Protocol):
    """Whatever belongs to a target of a game."""

    target: str


def game_key(message: OfGame) -> str:
    """The key of a game's leader board."""
    return quote(message.game, safe="")


def target_key(message: OfTarget) -> str:
    """The key of a target: no two games and targets have the same, whatever characters they are written with."""
    return f"{quote(message.game, safe='')}/{quote(message.target, safe='')}"


def game_of(key: str) -> str:
    """The game that a key belongs to."""
    return unquote(key.partition("/")[0])


@app.http("POST", "/games/{game}/attempts", key=target_key, name="fire over http")
@app.handler("attempts", key=target_key, name="fire")
def fire(attempt: FireAt, target: Target, ctx: Context) -> Shot:
    check(attempt)
    is_hit = is_bullseye(attempt.x, attempt.y)
    target.attempts += 1
    target.hits += is_hit
    target.holes.append(Hole(attempt.attempt, attempt.player, attempt.x, attempt.y))
    shot = Shot(attempt.attempt, is_hit, target.sheet, len(target.holes))
    ctx.send("results", AttemptMade(attempt.attempt, attempt.game, attempt.player, is_hit))
    if len(target.holes) == SHOTS_PER_SHEET:
        take_down(attempt, target, ctx)
    return shot


def check(attempt: FireAt) -> None:
    """Refuse what is no attempt: it is kept as a dead letter, with the reason, and nothing else happens."""
    for name in (attempt.attempt, attempt.game, attempt.target, attempt.player):
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise Reject(f"attempt, game, target and player have 1 to {NAME_LENGTH_MAX} characters each")
    if not is_on_paper(attempt.x, attempt.y):
        raise Reject("that went past the paper; look where you shoot")


def take_down(attempt: FireAt, target: Target, ctx: Context) -> None:
    """Keep the sheet that is full, and hang up the next."""
    title = f"{attempt.game}, {attempt.target}, sheet {target.sheet}"
    kept = ctx.write_blob("sheet.svg", draw(title, target.holes))
    ctx.send("sheets", SheetFull(attempt.game, attempt.target, target.sheet, kept.name))
    target.sheet += 1
    target.holes = []
    target.last_full = kept.name


@app.handler("results", key=game_key)
def count(result: AttemptMade, board: Board) -> None:
    score = board.scores.get(result.player, Score())
    moved = {**board.scores, result.player: Score(score.attempts + 1, score.hits + result.is_hit)}
    board.scores = dict(sorted(moved.items()))  # the same board in whatever order results arrive


@app.http("GET", "/games/{game}", key=game_key)
def show_board(query: LookAtBoard, board: Board) -> LeaderBoard:
    places = [Place(player, score.attempts, score.hits) for player, score in board.scores.items()]
    return LeaderBoard(query.game, sorted(places, key=lambda place: (-place.hits, place.attempts, place.player)))


@app.http("GET", "/games/{game}/targets/{target}", key=target_key)
def show_target(query: LookAtTarget, target: Target) -> Target | None:
    return target if target.attempts else None
